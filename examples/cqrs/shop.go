package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/cqrshooks"
)

// PlaceOrder is a command of a customer, who sends it again when the answer is late.
type PlaceOrder struct {
	OrderID string `json:"order_id"`
	Amount  int    `json:"amount"`
}

// EventKey begins with a word for the type: other commands share the topic.
func (c PlaceOrder) EventKey() []string { return []string{"place", c.OrderID} }

// OrderPlaced says that it was done.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
	Amount  int    `json:"amount"`
}

// EventKey implements cqrshooks.Keyed.
func (e OrderPlaced) EventKey() []string { return []string{"placed", e.OrderID} }

// topics are where commands and events go. A topic has the types of one bus.
type topics struct{ commands, events string }

// shop has the buses and the handlers of the service.
type shop struct {
	commands *cqrs.CommandBus
	events   *cqrs.EventBus

	place, charge, mail func(ctx context.Context, orderID string) error
}

// wire connects Watermill's CQRS component with the backend: OnSend and OnPublish give each
// command and event its key, OnCommand and OnGroupEvent have each handled once.
func (s *shop) wire(backend *idempotent.PubSub, router *message.Router, topics topics) error {
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	logger := watermill.NopLogger{}
	var err error
	s.commands, err = cqrs.NewCommandBusWithConfig(backend.Publisher(), cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return topics.commands, nil },
		OnSend:               cqrshooks.OnSend(),
		Marshaler:            marshaler,
		Logger:               logger,
	})
	if err != nil {
		return err
	}
	s.events, err = cqrs.NewEventBusWithConfig(backend.Publisher(), cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return topics.events, nil },
		OnPublish:            cqrshooks.OnPublish(),
		Marshaler:            marshaler,
		Logger:               logger,
	})
	if err != nil {
		return err
	}

	commands, err := cqrs.NewCommandProcessorWithConfig(router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) {
			return topics.commands, nil
		},
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return backend.Subscriber(), nil
		},
		OnHandle:  cqrshooks.OnCommand(backend.Once()),
		Marshaler: marshaler,
		Logger:    logger,
	})
	if err != nil {
		return err
	}
	if err := commands.AddHandlers(cqrs.NewCommandHandler("place", s.placeOrder)); err != nil {
		return err
	}
	events, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return topics.events, nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return backend.Subscriber(), nil
		},
		OnHandle:  cqrshooks.OnGroupEvent(backend.Once()),
		Marshaler: marshaler,
		Logger:    logger,
	})
	if err != nil {
		return err
	}
	// A group reads an event once for all of its handlers. Each has a name of its own, under
	// which what it has handled is recorded: when one fails, the event comes again, and the
	// others are not run again.
	return events.AddHandlersGroup("billing",
		cqrshooks.Named("charge", cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderPlaced) error { return s.charge(ctx, e.OrderID) })),
		cqrshooks.Named("mail", cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderPlaced) error { return s.mail(ctx, e.OrderID) })),
	)
}

// placeOrder publishes under the context that it was given: should it fail after that and run
// again, the event is the same one.
func (s *shop) placeOrder(ctx context.Context, c *PlaceOrder) error {
	if err := s.place(ctx, c.OrderID); err != nil {
		return err
	}
	return s.events.Publish(ctx, OrderPlaced{OrderID: c.OrderID, Amount: c.Amount})
}

// serve runs the shop until the work is done, which begins when all handlers are subscribed.
func (s *shop) serve(ctx context.Context, backend *idempotent.PubSub, topics topics, work func() error) error {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := s.wire(backend, router, topics); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	select {
	case <-router.Running():
	case err := <-ended:
		return fmt.Errorf("router: %w", err)
	}
	return errors.Join(work(), router.Close(), <-ended)
}
