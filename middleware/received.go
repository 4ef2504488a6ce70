package middleware

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// received is a message as it came to a handler, and what is known about it. It only says;
// what is done with the message is a run's.
type received struct {
	msg *message.Message
	key dedupe.Key // of the record
	// eventKey is the event's idempotency key; mostly it is that of the record, too.
	eventKey string
	// own is the message's context as it came, and as it leaves.
	own      context.Context //nolint:containedctx // of the message
	delivery delivery.Delivery
	info     delivery.Info // of the delivery; zero without one
	scope    scope         // once it has entered the handler
	// asError: nobody looks whether the message was nacked, so what is not an error
	// elsewhere is one here.
	asError bool
	// instantAck: acknowledged before it came here, so the acknowledgement says nothing.
	instantAck bool
}

func (in *received) receive(ctx context.Context, msg *message.Message, namespace, handler string) {
	in.msg, in.instantAck = msg, isAcked(msg)
	if in.instantAck {
		// With the acknowledgement its subscriber has ended the context, and nothing else
		// will bring the message again.
		ctx = context.WithoutCancel(ctx)
	}
	in.own, in.delivery = ctx, delivery.From(ctx)
	if in.delivery != nil {
		in.info = in.delivery.Info()
	}
	in.key = dedupe.Key{Namespace: namespace, Topic: topicOf(ctx, in.info), Handler: handler}
	if in.key.Namespace == "" {
		in.key.Namespace = in.info.Group
	}
}

// topicOf is the topic that a message was read from, as far as anybody knows.
func topicOf(ctx context.Context, info delivery.Info) string {
	if topic := message.SubscribeTopicFromCtx(ctx); topic != "" {
		return topic
	}
	return info.Stream
}

func (in *received) event() Event {
	return Event{
		Namespace: in.key.Namespace, Group: in.info.Group, Topic: in.key.Topic, Handler: in.key.Handler,
		Key: in.key.Event, MessageUUID: in.msg.UUID, context: &in.own,
	}
}

func (in *received) fields() watermill.LogFields {
	return watermill.LogFields{
		"namespace": in.key.Namespace, "topic": in.key.Topic, "handler": in.key.Handler,
		"key": in.key.Event, "message_uuid": in.msg.UUID,
	}
}

// isForeign reports that a record was made by another consumer group than the one that
// this message was read by.
func (in *received) isForeign(by string) bool {
	return by != "" && in.info.Group != "" && by != in.info.Group
}

// scope is what a message is inside of, on its context.
type scope struct {
	key   dedupe.Key
	outer *scope
}

type scopeKey struct{}

// enter makes the scope of the handler for this message. The error says that the message
// is inside of the handler already.
func (in *received) enter() error {
	outer, _ := in.own.Value(scopeKey{}).(*scope)
	for s := outer; s != nil; s = s.outer {
		if s.key == in.key {
			return fmt.Errorf("middleware: %s: %w: wrap the handler once, by Consumer or Handler, or use Middleware alone", in.key, ErrNested)
		}
	}
	in.scope = scope{in.key, outer}
	return nil
}

// returned is the context of returned messages. It does not end: a Timeout around us
// ends its own before the Router publishes, and what is recorded is to be published.
// It has the values of the handled message, except what belongs to that one alone: where
// values travel with messages, as in a GoChannel, the next handler would take the
// delivery for its own.
func (in *received) returned() context.Context {
	ctx := context.WithValue(context.WithoutCancel(in.own), scopeKey{}, nil)
	return delivery.With(ctx, nil)
}

// failure is the mark, on a message's context, of a run that failed in this delivery. It
// is there for this:
//
//	Retry calls Timeout, which puts a context with a deadline onto the message, and never
//	takes it off; the handler fails, or is slower than the deadline; Timeout ends the
//	context; Retry tries again, under a context that has ended, so that nothing can be
//	claimed.
//
// That is no reason to deliver the message again uncounted: for a handler that is always
// too slow it would never end.
type failure struct {
	msg *message.Message // contexts travel with copies, and then this is another's failure
	err error
}

type failureKey struct{}

// markFailed leaves the mark for a later try of the same delivery.
func (in *received) markFailed(err error) {
	if _, bounded := in.own.Deadline(); bounded {
		in.msg.SetContext(context.WithValue(in.own, failureKey{}, &failure{in.msg, err}))
	}
}

// failedBefore returns the failure of an earlier run in this delivery where its context
// has ended since, though the subscription goes on: nothing can run under it any more.
func (in *received) failedBefore() error {
	f, ok := in.own.Value(failureKey{}).(*failure)
	if !ok || f.msg != in.msg || in.own.Err() == nil {
		return nil
	}
	// Our subscriber has causes of its own for the end of a message's context.
	if cause := context.Cause(in.own); cause != context.Canceled && cause != context.DeadlineExceeded { //nolint:errorlint // not one that is wrapped
		return nil
	}
	return f.err
}
