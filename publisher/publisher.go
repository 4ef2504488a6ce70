// Package publisher appends an event to a Redis stream once, however often it is
// published.
//
// A [Publisher] is a Watermill message.Publisher. It finds the key that names the
// event in each message, and has the server compare it: by XADD IDMP where the
// server is Redis 8.6.2 or newer, else by a latch, a key that a script writes
// beside the stream together with the entry. Every message gets a [Receipt] that
// says whether it was added, is a duplicate, or is in conflict with another one
// of the same key. A lost reply, a time-out, a failover or a restart of the
// producer makes no second entry, as long as the [Window] has not passed.
package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/fault"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
)

// Publisher publishes idempotently. It is safe for concurrent use.
type Publisher struct {
	engine *engine
	shared bool
	closed atomic.Bool
}

var _ message.Publisher = (*Publisher)(nil)

// New makes a Publisher. It does not connect: a server that is down, or can't do
// what is asked, shows at the first Publish or at [Publisher.Check]. The error has
// all faults of the configuration. A nil logger logs nothing.
func New(config Config, logger watermill.LoggerAdapter) (*Publisher, error) {
	cfg, err := config.resolve()
	if err != nil {
		return nil, err
	}
	return &Publisher{engine: newEngine(cfg, logger, false)}, nil
}

// Publish publishes messages to a topic, the stream of that name, in order. It
// returns nil when every event has been added once, whether by this call or an
// earlier one; [ReceiptOf] tells which, and whether the entry has been deleted or
// trimmed since ([VerdictOriginalGone]). Else the error is a [*PublishError], and repeating
// the whole call is safe.
//
// Nothing is sent if one of the messages can't be sent (no key, too large). The
// call ends early when the context of one of the messages does; see
// [ErrOutcomeUnknown] and [ErrNotSent]. Order holds within a call and between
// calls one after the other, not between concurrent ones.
//
// The commands carry the values of the messages' context, of the first one's where calls
// share a transaction, for hooks of the client that trace; but not its deadline.
//
// The receipt goes onto the context of the message, so one message must not be
// published by two goroutines at once; publish copies.
func (p *Publisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	ctx, stop := joinContexts(msgs)
	defer stop()
	receipts, err := p.send(ctx, itsOwn, topic, msgs)
	keep(msgs, receipts)
	return err
}

// Send is Publish with a context for the whole call, and with the receipts: always
// one a message, in the order of the messages. The error is that of Publish.
func (p *Publisher) Send(ctx context.Context, topic string, msgs ...*message.Message) ([]Receipt, error) {
	receipts, err := p.send(ctx, func(*message.Message) context.Context { return ctx }, topic, msgs)
	collect(ctx, receipts...)
	return receipts, err
}

func (p *Publisher) send(ctx context.Context, of under, topic string, msgs []*message.Message) ([]Receipt, error) {
	if len(msgs) == 0 {
		return []Receipt{}, nil
	}
	begun := time.Now()
	err := checkTopic(topic)
	if err == nil && (p.closed.Load() || !p.engine.runner.Begin()) {
		err = ErrClosed
	}
	if err != nil {
		receipts := p.engine.refuse(of, topic, msgs, begun, err)
		return receipts, &PublishError{Topic: topic, Receipts: receipts}
	}
	defer p.engine.runner.End()
	t := p.engine.acquire(topic, begun)
	defer t.release()
	sent := t.events.onSend(of, msgs)
	c, receipts := t.encoder.encodeAll(ctx, msgs, sent, begun)
	tried := receipts == nil
	if tried {
		t.events.checkReturned(msgs, c.Items)
		receipts = t.send(ctx, c)
	} else {
		t.events.notSent(receipts, sent, begun)
	}
	endClaims(c, receipts, tried)
	if slices.ContainsFunc(receipts, func(r Receipt) bool { return r.Err != nil }) {
		return receipts, &PublishError{Topic: topic, Receipts: receipts}
	}
	return receipts, nil
}

// Shared returns a Publisher that works through this one and whose Close releases
// nothing else. Watermill's Router closes every publisher that it is given, and so
// would the end of one handler take the publisher away from the others.
func (p *Publisher) Shared() *Publisher {
	return &Publisher{engine: p.engine, shared: true}
}

// Close refuses further messages with [ErrClosed] and waits for those that are
// being sent: at most for RetryFor, after which it gives up on what is to be sent again,
// and five seconds for replies. It does not close the client.
func (p *Publisher) Close() error {
	if p.closed.Swap(true) || p.shared {
		return nil
	}
	return p.engine.close()
}

// joinContexts is done when one of the messages' contexts is.
func joinContexts(msgs []*message.Message) (context.Context, context.CancelFunc) {
	first := context.Background()
	var others []context.Context
	for i, msg := range msgs {
		if msg == nil {
			continue
		}
		ctx := msg.Context()
		if i == 0 {
			first = ctx
		} else if ctx.Done() != first.Done() && ctx.Done() != nil {
			others = append(others, ctx)
		}
	}
	if len(others) == 0 {
		return first, func() {}
	}
	joined, cancel := context.WithCancelCause(first)
	stops := make([]func() bool, 0, len(others))
	for _, ctx := range others {
		stops = append(stops, context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) }))
	}
	return joined, func() {
		for _, stop := range stops {
			stop()
		}
		cancel(nil)
	}
}

func checkTopic(name string) error {
	switch {
	case name == "":
		return fault.As(ErrInvalidMessage, errors.New("the topic is empty"))
	case rediskey.IsReserved(name):
		return fault.As(ErrInvalidMessage, fmt.Errorf("topic %q is a name that this library keeps for itself beside a stream", name))
	}
	return nil
}
