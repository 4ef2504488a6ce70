package middleware

import (
	"context"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
)

// Once handles each event once. It is safe for concurrent use, and one is enough for
// all handlers of a service.
type Once struct {
	cfg    Config
	logger watermill.LoggerAdapter
	faults faults
	log    seldom
	settle *settler
}

// New makes one. It asks nothing of the store yet. A nil logger logs nothing.
func New(cfg Config, logger watermill.LoggerAdapter) (*Once, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	o := &Once{cfg: cfg, logger: logger, settle: newSettler(cfg.StoreTimeout, logger)}
	o.faults.logger, o.faults.forgetAfter = logger, forgetAfter(cfg)
	cfg.warn(logger)
	return o, nil
}

// forgetAfter is several times the time after which a message comes again that waits.
func forgetAfter(c Config) time.Duration { return logEvery + 2*(c.Delay+c.Wait+c.StoreTimeout) }

// Consumer wraps a handler that returns no messages:
//
//	router.AddConsumerHandler("charge", "orders", subscriber, once.Consumer(charge))
func (o *Once) Consumer(fn message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		r := o.newRun(msg.Context(), msg, message.HandlerNameFromCtx(msg.Context()))
		r.noOutputs = true
		_, err := r.do(func(context.Context) ([]*message.Message, error) { return nil, fn(msg) })
		return err
	}
}

// Handler wraps a handler that returns messages:
//
//	router.AddHandler("charge", "orders", subscriber, "payments", publisher, once.Handler(charge))
//
// The messages get a child key (eventkey.MetadataChildKey) and a UUID made of it, the same in every
// run. Our publisher appends each once; another one may publish it again when the Router
// failed between the publish and the acknowledgement.
//
// The handler may change the message that it was given and return it. Around it that
// message is as it came, whatever the handler has set on it; but after an error a delay
// in Watermill's metadata stays, for the subscriber.
func (o *Once) Handler(fn message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		r := o.newRun(msg.Context(), msg, message.HandlerNameFromCtx(msg.Context()))
		return r.do(func(context.Context) ([]*message.Message, error) { return fn(msg) })
	}
}

// Middleware is Handler as a message.HandlerMiddleware. Middlewares that are added later
// are inside of it, so that what they do counts as part of the handler; prefer Consumer
// and Handler.
func (o *Once) Middleware(h message.HandlerFunc) message.HandlerFunc { return o.Handler(h) }

// Run is for loops of one's own and for package cqrshooks: it runs fn for the message
// unless handler has handled it, and returns the messages that fn returned, or those
// recorded. ctx is the message's, and its values reach fn. The topic is the one that the
// Router or our subscriber has put onto the context; without one, events of different
// topics need different handler names.
//
// A message that can't be handled now is an error that matches dedupe.ErrRetryLater.
// With our subscriber its delivery is delayed already, however it is settled.
func (o *Once) Run(ctx context.Context, msg *message.Message, handler string, fn func(ctx context.Context) ([]*message.Message, error)) ([]*message.Message, error) {
	r := o.newRun(ctx, msg, handler)
	r.asError = true
	return r.do(fn)
}

// Health is nil while events can be handled. Otherwise it says what keeps them waiting,
// why and since when: the store is unavailable, or refuses (the error matches
// dedupe.ErrRefused; an operator has to act), or the service is not set up right
// (ErrNoNamespace, ErrSharedFanOut). It asks nothing of the store: it knows what the last
// messages met, and forgets that when no message has met it again for a while, a minute
// with the default times.
func (o *Once) Health() error {
	if err := o.faults.health(); err != nil {
		return fmt.Errorf("middleware: %w", err)
	}
	return nil
}

// Close ends what is left to do after messages were acknowledged, and waits for it. Call
// it after the Router has closed and before the store does. When ctx ends, it gives up;
// all that is lost then is memory of the store, until the retention is over. Messages
// that come later are not handled: they are given back, and Run returns ErrClosed.
func (o *Once) Close(ctx context.Context) error { return o.settle.close(ctx) }
