// Package cqrshooks connects Watermill's CQRS component with this library: keys come
// from typed events and commands, and each CQRS handler handles each event once.
//
//	bus, err := cqrs.NewEventBusWithConfig(publisher, cqrs.EventBusConfig{
//		OnPublish: cqrshooks.OnPublish(), ...
//	})
//	processor, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
//		OnHandle: cqrshooks.OnGroupEvent(once), ...
//	})
//	err = processor.AddHandlersGroup("billing",
//		cqrshooks.Named("charge", cqrs.NewGroupEventHandler(charge)),
//		cqrshooks.Named("mail", cqrs.NewGroupEventHandler(mail)),
//	)
//
// It is a package of its own since the CQRS component brings protobuf along.
package cqrshooks

import (
	"fmt"
	"reflect"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// Keyed is what events and commands implement to have a key:
//
//	func (e OrderPlaced) EventKey() []string { return []string{"placed", e.OrderID} }
//
// The parts are joined by eventkey.Join, which escapes them. A key is unique per topic:
// where several types share one, begin with a word for the type. Begin so, too, where a
// handler publishes an event with the ID of the one that it handles: an equal key counts
// as inherited.
type Keyed interface {
	EventKey() []string
}

// OnPublish puts the key of an event that is Keyed onto its message. Other events
// are left to the publisher's key source. A key that the marshaler has set stays.
// The next ones are called after it, in order.
func OnPublish(next ...cqrs.OnEventSendFn) cqrs.OnEventSendFn {
	return func(params cqrs.OnEventSendParams) error {
		if err := setKey(params.Message, params.EventName, params.Event); err != nil {
			return err
		}
		for _, fn := range next {
			if err := fn(params); err != nil {
				return err
			}
		}
		return nil
	}
}

// OnSend does for commands what OnPublish does for events.
func OnSend(next ...cqrs.CommandBusOnSendFn) cqrs.CommandBusOnSendFn {
	return func(params cqrs.CommandBusOnSendParams) error {
		if err := setKey(params.Message, params.CommandName, params.Command); err != nil {
			return err
		}
		for _, fn := range next {
			if err := fn(params); err != nil {
				return err
			}
		}
		return nil
	}
}

func setKey(msg *message.Message, name string, value any) error {
	if msg.Metadata.Get(eventkey.MetadataKey) != "" {
		return nil
	}
	keyed, ok := asKeyed(value)
	if !ok {
		return nil
	}
	key, err := keyOf(keyed, name, msg)
	if err != nil {
		return err
	}
	msg.Metadata.Set(eventkey.MetadataKey, key)
	return nil
}

func keyOf(keyed Keyed, name string, msg *message.Message) (key string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("cqrshooks: EventKey of %s panicked: %v", name, p)
		}
	}()
	parts := keyed.EventKey()
	missing := func(what string) error {
		return fmt.Errorf("cqrshooks: %w", &eventkey.NoKeyError{Field: name + ".EventKey()", UUID: msg.UUID, Reason: what})
	}
	if len(parts) == 0 {
		return "", missing("returned no parts")
	}
	for i, part := range parts {
		if part == "" {
			return "", missing(fmt.Sprintf("returned an empty part at position %d: another event may lack it, too", i))
		}
	}
	key = eventkey.Join(parts...)
	if err := eventkey.CheckKey(key); err != nil {
		return "", fmt.Errorf("cqrshooks: EventKey of %s: %w", name, err)
	}
	return key, nil
}

// asKeyed finds the method on the value or on its pointer: Publish(ctx, event) with a
// method on *OrderPlaced must not overlook it.
func asKeyed(value any) (Keyed, bool) {
	if keyed, ok := value.(Keyed); ok {
		return keyed, true
	}
	v := reflect.ValueOf(value)
	if !v.IsValid() {
		return nil, false
	}
	if v.Kind() == reflect.Pointer { // a pointer to a pointer
		if v.IsNil() || v.Elem().Kind() != reflect.Pointer {
			return nil, false
		}
		return asKeyed(v.Elem().Interface())
	}
	if !reflect.PointerTo(v.Type()).Implements(keyedType) {
		return nil, false
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	keyed, ok := p.Interface().(Keyed)
	return keyed, ok
}

var keyedType = reflect.TypeFor[Keyed]()
