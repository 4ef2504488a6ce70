package cqrshooks

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"sync"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/middleware"
)

// Faults of a group, for which another try does not help: one handler would be taken for
// the other. Give them names by [Named].
var (
	// ErrUnnamed means that two handlers for one event have no names.
	ErrUnnamed = errors.New("two handlers without a name for one event in a group")
	// ErrSameName means that two handlers have the same name.
	ErrSameName = errors.New("two handlers with one name in a group")
)

// OnCommand handles each command once. The scope is the CQRS handler, by its name.
//
// A command that can't be handled now is an error that matches dedupe.ErrRetryLater,
// since a CQRS processor knows nothing else; middleware.ShouldPoison and
// middleware.ShouldRetry keep PoisonQueue and Retry from it.
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
// must be the only one of its event: a second one is ErrUnnamed. A second one of the same
// name is ErrSameName. Make one hook for each processor.
func OnGroupEvent(once *middleware.Once) cqrs.EventGroupProcessorOnHandleFn {
	scopes := &scopes{handlers: make(map[string]cqrs.GroupEventHandler)}
	return func(params cqrs.EventGroupProcessorOnHandleParams) error {
		scope, err := scopes.of(params)
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
	if errors.Is(err, dedupe.ErrRetryLater) {
		// A processor that is to acknowledge what fails (AckCommandHandlingErrors) comes
		// too late with it: this did not fail.
		msg.Nack()
	}
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

// scopes remembers which handler has a scope. The processor calls the handlers in order,
// so the first one of a scope is the same one in every process.
type scopes struct {
	mu       sync.Mutex
	handlers map[string]cqrs.GroupEventHandler
}

// of names the handler: <group>/<handler>, or <group>//<event> without a name.
func (s *scopes) of(params cqrs.EventGroupProcessorOnHandleParams) (string, error) {
	scope, twice := url.PathEscape(params.GroupName)+"/", ErrSameName
	isComparable := reflect.ValueOf(params.Handler).Comparable()
	if n, ok := params.Handler.(interface{ HandlerName() string }); ok && n.HandlerName() != "" {
		scope += url.PathEscape(n.HandlerName())
		if !isComparable { // whether there is another one can't be found out
			return scope, nil
		}
	} else {
		scope, twice = scope+"/"+url.PathEscape(params.EventName), ErrUnnamed
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if isComparable {
		known, ok := s.handlers[scope]
		if !ok {
			s.handlers[scope] = params.Handler
		}
		if !ok || known == params.Handler {
			return scope, nil
		}
	}
	return "", permanentError{fmt.Errorf("cqrshooks: group %q, event %q, scope %s: %w: use cqrshooks.Named", params.GroupName, params.EventName, scope, twice)}
}

// permanentError is one for middleware.IsPermanent.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks it.
func (permanentError) Permanent() bool { return true }
