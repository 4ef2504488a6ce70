package eventkey

import (
	"context"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/childkey"
)

// Handled is the event that is being handled, and by whom.
type Handled struct {
	// Namespace is the service or consumer group, Handler the handler in it.
	// Equal handler names in two services are two handlers.
	Namespace, Handler string
	// Topic and Key are those of the message being handled.
	Topic, Key string
	// ID is what child keys are made of; empty stands for Key. It is another one where each
	// attempt counts as an event of its own, as for a handler on a poison topic.
	ID string
	// Metadata is that of the message being handled, as it came. Its marks of attempts,
	// poisonings and dead letters distinguish a copy of the message from the message going
	// on. Leave it as it is.
	Metadata message.Metadata
}

// WithHandled puts onto a context what is being handled. Messages published under it then
// have keys that are the same when the handler runs again: their own, or those that their
// source finds, else child keys made of Handled. The middleware of package middleware does
// so for its handlers.
//
// Each run of a handler needs a call of its own: the context also remembers what this run
// has published.
func WithHandled(ctx context.Context, h Handled) context.Context {
	h.Metadata = maps.Clone(h.Metadata) // a handler may change its message
	return childkey.With(ctx, h)
}

// HandledFrom returns what is being handled, if anything is.
func HandledFrom(ctx context.Context) (Handled, bool) {
	if ctx == nil {
		return Handled{}, false
	}
	run := childkey.From(ctx)
	if run == nil {
		return Handled{}, false
	}
	h, ok := run.Handled.(Handled)
	return h, ok
}
