package cqrshooks

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/middleware"
)

// ErrUnnamed: a group has two handlers for one event that have no names, so that one
// would be taken for the other. Another try does not help: give them names by [Named].
var ErrUnnamed = errors.New("two handlers without a name for one event in a group")

// OnCommand handles each command once. The scope is the CQRS handler, by its name.
//
// A command that can't be handled now is an error that matches dedupe.ErrRetryLater,
// since a CQRS processor knows nothing else; let PoisonQueue and Retry pass it by.
func OnCommand(once *middleware.Once) cqrs.CommandProcessorOnHandleFn {
	return func(params cqrs.CommandProcessorOnHandleParams) error {
		return run(once, params.Message, params.Handler.HandlerName(), func(ctx context.Context) error {
			return params.Handler.Handle(ctx, params.Command)
		})
	}
}

// OnEvent handles each event once. The scope is the CQRS handler, by its name. Errors
// are as for [OnCommand].
func OnEvent(once *middleware.Once) cqrs.EventProcessorOnHandleFn {
	return func(params cqrs.EventProcessorOnHandleParams) error {
		return run(once, params.Message, params.Handler.HandlerName(), func(ctx context.Context) error {
			return params.Handler.Handle(ctx, params.Event)
		})
	}
}

// OnGroupEvent handles each event once in each handler of a group: when the second one
// fails, only it and those after it run again. Errors are as for [OnCommand].
//
// Watermill gives the handlers of a group no names. [Named] does; so does a method
// HandlerName() string. One without a name is known by the group and the event, and so
// must be the only one of its event: a second one is ErrUnnamed.
func OnGroupEvent(once *middleware.Once) cqrs.EventGroupProcessorOnHandleFn {
	first := &unnamed{handlers: make(map[[2]string]cqrs.GroupEventHandler)}
	return func(params cqrs.EventGroupProcessorOnHandleParams) error {
		scope, err := first.scope(params)
		if err != nil {
			return err
		}
		return run(once, params.Message, scope, func(ctx context.Context) error {
			return params.Handler.Handle(ctx, params.Event)
		})
	}
}

func run(once *middleware.Once, msg *message.Message, handler string, fn func(context.Context) error) error {
	_, err := once.Run(msg.Context(), msg, handler, func(ctx context.Context) ([]*message.Message, error) { return nil, fn(ctx) })
	return err
}

// Named gives a handler of a group a name, which must be unique in the group and stay
// the same: under another one, events are handled again.
func Named(name string, h cqrs.GroupEventHandler) cqrs.GroupEventHandler {
	return named{GroupEventHandler: h, name: name}
}

type named struct {
	cqrs.GroupEventHandler
	name string
}

// HandlerName returns the name.
func (n named) HandlerName() string { return n.name }

// unnamed remembers which handler is the one without a name for a group and event. The
// processor calls the handlers in order, so it is the same one in every process.
type unnamed struct {
	mu       sync.Mutex
	handlers map[[2]string]cqrs.GroupEventHandler
}

// scope names the handler: <group>/<handler>, or <group>//<event> without a name.
func (u *unnamed) scope(params cqrs.EventGroupProcessorOnHandleParams) (string, error) {
	if n, ok := params.Handler.(interface{ HandlerName() string }); ok && n.HandlerName() != "" {
		return params.GroupName + "/" + n.HandlerName(), nil
	}
	fault := permanentError{fmt.Errorf("cqrshooks: group %q, event %q: %w: use cqrshooks.Named", params.GroupName, params.EventName, ErrUnnamed)}
	if !reflect.ValueOf(params.Handler).Comparable() {
		return "", fault // it can't be told from another one of its type
	}
	key := [2]string{params.GroupName, params.EventName}
	u.mu.Lock()
	defer u.mu.Unlock()
	if known, ok := u.handlers[key]; !ok {
		u.handlers[key] = params.Handler
	} else if known != params.Handler {
		return "", fault
	}
	return params.GroupName + "//" + params.EventName, nil
}

// permanentError is one for middleware.IsPermanent.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks it.
func (permanentError) Permanent() bool { return true }
