package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// ErrUnguarded means that a message went through only one half of a [Guard]. Nothing was
// written. Another try does not help.
var ErrUnguarded = errors.New("not guarded")

// Guard makes an application idempotent that keeps its redisstream.Publisher. It
// has two halves, and each refuses to work without the other:
//
//	guard, err := publisher.NewGuard(publisher.Config{Client: client, ProducerID: "payment-service", Key: key}, logger)
//	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: guard.Client()}, logger)
//	pub, err = guard.Decorator()(pub)
//
// The decorator finds the key of each message and hands it down on the message's
// context; the client takes it from there. Trimming is what the decorated publisher
// asks for. It writes one message a round trip, so a [Publisher] is much faster.
type Guard struct{ engine *engine }

// NewGuard makes a Guard. Config is that of a Publisher, except that trimming is
// not its business. Config.Marshaller must be the one of the decorated publisher.
func NewGuard(config Config, logger watermill.LoggerAdapter) (*Guard, error) {
	cfg, err := config.resolve()
	if err != nil {
		return nil, err
	}
	return &Guard{engine: newEngine(cfg, logger, true)}, nil
}

// Client returns the half that writes: it adds an entry only for a message that
// came through the decorator, and hands every other command to Config.Client.
// XADD in pipelines and by Do is refused; scripts and WATCH are not looked into.
// Closing it closes the guard, not Config.Client.
func (g *Guard) Client() redis.UniversalClient {
	return &guardClient{UniversalClient: g.engine.cfg.Client, guard: g}
}

// Decorator returns the half that finds the keys.
func (g *Guard) Decorator() message.PublisherDecorator {
	return func(pub message.Publisher) (message.Publisher, error) {
		if pub == nil {
			return nil, errors.New("guard: the publisher to decorate is nil")
		}
		return &guardPublisher{Publisher: pub, guard: g}, nil
	}
}

// Close refuses further messages and waits as [Publisher.Close] does.
func (g *Guard) Close() error { return g.engine.close() }

// ticket is a message on its way from the decorator to the client.
type ticket struct {
	topic   string
	begun   time.Time
	item    *batch.Item
	ctx     context.Context //nolint:containedctx // the caller's, to be unwrapped from its own Value
	receipt *Receipt        // nil until the client has seen the ticket
}

type ticketKey struct{}

// guardPublisher is the decorator's half.
type guardPublisher struct {
	message.Publisher
	guard *Guard
}

func (p *guardPublisher) Publish(topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	begun := time.Now()
	if err := checkTopic(topic); err != nil {
		receipts := p.guard.engine.refuse(itsOwn, topic, msgs, begun, err)
		keep(msgs, receipts)
		return &PublishError{Topic: topic, Receipts: receipts}
	}
	t := p.guard.engine.acquire(topic, begun)
	defer t.release()
	ctx, stop := joinContexts(msgs)
	defer stop()
	sendings := t.events.onSend(itsOwn, msgs)
	all, receipts := t.encoder.encodeAll(ctx, msgs, sendings, begun)
	if receipts != nil {
		t.events.notSent(receipts, sendings, begun)
		endClaims(all, receipts, false)
		keep(msgs, receipts)
		return &PublishError{Topic: topic, Receipts: receipts}
	}
	tickets := make([]*ticket, len(all.Items))
	copies := make([]*message.Message, len(all.Items))
	for i := range all.Items {
		sent := noteOf(&all.Items[i]).sent
		tickets[i] = &ticket{topic: topic, begun: begun, item: &all.Items[i], ctx: msgs[i].Context()}
		copies[i] = message.NewMessage(sent.UUID, sent.Payload)
		copies[i].Metadata = maps.Clone(sent.Metadata)
		copies[i].SetContext(tickets[i].context())
	}
	receipts, err := p.receiptsOf(t.events, tickets, p.Publisher.Publish(topic, copies...))
	endClaims(all, receipts, true)
	keep(msgs, receipts)
	return err
}

// context is ended for everybody but the guard's client: a publisher that writes
// through another client sends nothing, instead of sending unguarded.
func (k *ticket) context() context.Context {
	ctx, cancel := context.WithCancelCause(context.WithValue(k.ctx, ticketKey{}, k))
	cancel(ErrUnguarded)
	return ctx
}

// receiptsOf makes receipts of what the client has seen.
func (p *guardPublisher) receiptsOf(events *events, tickets []*ticket, err error) ([]Receipt, error) {
	receipts := make([]Receipt, len(tickets))
	unseen := err
	switch {
	case slices.ContainsFunc(tickets, func(k *ticket) bool { return k.receipt != nil }):
		unseen = batch.ErrOther
	case err == nil || errors.Is(err, context.Canceled):
		unseen = appender.Final(fmt.Errorf("%w: %T does not write through Guard.Client", ErrUnguarded, p.Publisher))
	}
	failed := false
	for i, k := range tickets {
		if k.receipt != nil {
			receipts[i] = *k.receipt
		} else {
			receipts[i] = events.receipt(k.item, &batch.Result{Outcome: batch.Outcome{Err: batch.NotSent(unseen)}})
			events.notSent(receipts[i:i+1], sendings{noteOf(k.item).sending}, k.begun)
		}
		failed = failed || receipts[i].Err != nil
	}
	if failed {
		return receipts, &PublishError{Topic: events.topic, Receipts: receipts}
	}
	return receipts, err
}

// xadd is the client's half: it sends what the decorated publisher has encoded.
func (g *Guard) xadd(ctx context.Context, a *redis.XAddArgs) (entryID string, err error) {
	k, ok := ctx.Value(ticketKey{}).(*ticket)
	switch {
	case !ok:
		return "", appender.Final(fmt.Errorf("%w: XADD %q for a message that did not come through Guard.Decorator", ErrUnguarded, a.Stream))
	case k.receipt != nil:
		return "", appender.Final(fmt.Errorf("%w: a second XADD for one message", ErrUnguarded))
	case k.topic != a.Stream:
		return "", appender.Final(fmt.Errorf("%w: message for topic %q is added to stream %q", ErrUnguarded, k.topic, a.Stream))
	case a.ID != "" && a.ID != "*":
		return "", appender.Final(fmt.Errorf("%w: XADD %q with the explicit entry ID %q, which IDMP does not take", ErrUnguarded, a.Stream, a.ID))
	case a.ProducerID != "" || a.IdempotentID != "":
		return "", appender.Final(fmt.Errorf("%w: XADD %q with IDs of its own", ErrUnguarded, a.Stream))
	}
	it := k.item
	if it.Fields, err = g.fields(a, k); err != nil {
		return "", permanent(err)
	}
	it.Size, it.Trim = sizeOf(it.Fields), trimOf(a)
	if !g.engine.runner.Begin() {
		return "", ErrClosed
	}
	defer g.engine.runner.End()
	t := g.engine.acquire(k.topic, k.begun)
	defer t.release()
	c := batch.NewCall(1, k.begun)
	c.Items[0] = *it
	receipt := t.send(k.ctx, c)[0]
	k.receipt = &receipt
	return receipt.EntryID, receipt.Err
}

// fields are those of the decorated publisher. Where the server hashes them they
// must be the same bytes each time, so there they are encoded again: the default
// marshaller of watermill-redisstream writes metadata in random order.
func (g *Guard) fields(a *redis.XAddArgs, k *ticket) ([]any, error) {
	values, err := valuesOf(a.Values)
	if err != nil || g.engine.cfg.Mode != ModeIDMPAuto {
		return sortedFields(values), err
	}
	msg, err := wire.Decode(a.Stream, "*", values)
	if err != nil {
		return nil, err
	}
	sent := noteOf(k.item).sent
	if msg.UUID != sent.UUID || !bytes.Equal(msg.Payload, sent.Payload) || !maps.Equal(msg.Metadata, sent.Metadata) {
		return nil, fmt.Errorf("%w: in mode idmpauto the decorated publisher must use the default marshaller", ErrUnguarded)
	}
	return wire.Encode(sent, sent.Metadata)
}

func valuesOf(values any) (map[string]any, error) {
	switch v := values.(type) {
	case map[string]any:
		return v, nil
	case map[string]string:
		all := make(map[string]any, len(v))
		for name, value := range v {
			all[name] = value
		}
		return all, nil
	}
	return nil, fmt.Errorf("%w: XADD with fields of type %T; a map is expected", ErrUnguarded, values)
}

func trimOf(a *redis.XAddArgs) []any {
	var name string
	var threshold any
	switch {
	case a.MaxLen > 0:
		name, threshold = "maxlen", a.MaxLen
	case a.MinID != "":
		name, threshold = "minid", a.MinID
	default:
		return []any{}
	}
	if !a.Approx {
		return []any{name, "=", threshold}
	}
	trim := []any{name, "~", threshold}
	if a.Limit > 0 {
		trim = append(trim, "limit", a.Limit)
	}
	return trim
}
