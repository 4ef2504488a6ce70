package middleware

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// Once handles each event once. It is safe for concurrent use, and one is enough for
// all handlers of a service.
type Once struct {
	cfg    Config
	logger watermill.LoggerAdapter
	away   atomic.Bool // the store was out of reach the last time
	settle settler

	poisonTopic sync.Once // the log knows of a suspicion
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
	o := &Once{cfg: cfg, logger: logger}
	o.settle.init(o)
	return o, nil
}

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
// The messages get a child key (eventkey.Child) and a UUID made of it, the same in every
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

// Close ends what is left to do after messages were acknowledged, and waits for it. Call
// it after the Router has closed and before the store does. When ctx ends, it gives up;
// all that is lost then is memory of the store, until the retention is over.
func (o *Once) Close(ctx context.Context) error { return o.settle.close(ctx) }

// topicOf is the topic that a message was read from, as far as anybody knows.
func topicOf(ctx context.Context) string {
	if topic := message.SubscribeTopicFromCtx(ctx); topic != "" {
		return topic
	}
	if d := delivery.From(ctx); d != nil {
		return d.Info().Stream
	}
	return ""
}

// settler settles claims whose outputs are published: after the acknowledgement, since
// until then a redelivery would need them. Best effort: what is not settled is only
// memory.
type settler struct {
	once    *Once
	slots   chan struct{} // at most so many at a time
	closing chan struct{}
	stop    context.CancelFunc
	wg      sync.WaitGroup

	mu     sync.Mutex
	closed bool
	ctx    context.Context //nolint:containedctx // of the goroutines that close waits for
}
