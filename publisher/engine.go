package publisher

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/childkey"
)

// engine sends items. It is what a Publisher with its shared handles and a Guard
// have in common.
type engine struct {
	cfg      Config
	client   redis.UniversalClient
	logger   watermill.LoggerAdapter
	keepSent bool // items keep the message that they encode, for a Guard
	bounded  bool // the client bounds how long a command takes

	// ctx belongs to the pipelines: a caller's context ends only the caller's
	// waiting. It ends when Close gives up waiting.
	ctx  context.Context //nolint:containedctx // the lifetime of the engine's goroutines, not of a call
	stop context.CancelFunc

	start time.Time

	away atomic.Bool   // the log knows of an outage
	gone chan struct{} // closed when Close returns without having waited for all

	giveUp sync.Once // of gone: a Guard may be closed twice

	mu      sync.Mutex
	closed  bool
	topics  map[string]*topic
	running sync.WaitGroup // calls and flights
}

func newEngine(cfg Config, logger watermill.LoggerAdapter) *engine {
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	e := &engine{cfg: cfg, client: cfg.Client, logger: logger, topics: make(map[string]*topic), start: time.Now(), gone: make(chan struct{})}
	e.bounded = hasTimeouts(cfg.Client)
	e.ctx, e.stop = context.WithCancel(context.Background())
	return e
}

func hasTimeouts(client redis.UniversalClient) bool {
	switch c := client.(type) {
	case *redis.Client:
		return c.Options().ReadTimeout > 0 && c.Options().WriteTimeout > 0
	case *redis.ClusterClient:
		return c.Options().ReadTimeout > 0 && c.Options().WriteTimeout > 0
	}
	return false
}

// begin registers a call; it is false once the engine is closed.
func (e *engine) begin() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.running.Add(1)
	return true
}

func (e *engine) end() { e.running.Done() }

func (e *engine) topic(name string) *topic {
	e.mu.Lock()
	defer e.mu.Unlock()
	t, ok := e.topics[name]
	if !ok {
		t = newTopic(e, name)
		e.topics[name] = t
	}
	return t
}

// closeGrace is how long Close waits, after it has given up on retries, for
// commands that are waiting for a reply. It is above go-redis' default read
// time-out of three seconds.
const closeGrace = 5 * time.Second

func (e *engine) close() error {
	e.mu.Lock()
	e.closed = true
	e.mu.Unlock()
	done := make(chan struct{})
	go func() {
		e.running.Wait()
		close(done)
	}()
	defer e.stop()
	defer e.lastWords()
	select {
	case <-done:
		return nil
	case <-time.After(e.cfg.RetryFor):
	}
	e.stop()
	select {
	case <-done:
		return nil
	case <-time.After(closeGrace):
		e.giveUp.Do(func() { close(e.gone) })
		return errors.New("publisher closed while commands were waiting for a reply that does not come; does the client have a read time-out?")
	}
}

func (e *engine) lastWords() {
	e.mu.Lock()
	topics := slices.Collect(maps.Values(e.topics))
	e.mu.Unlock()
	for _, t := range topics {
		t.lastWord()
	}
}

// refused is the outcome of messages that are not sent: none of them is tried.
func (e *engine) refused(topic string, msgs []*message.Message, begun time.Time, err error) []Receipt {
	receipts := make([]Receipt, len(msgs))
	for i, msg := range msgs {
		receipts[i] = Receipt{Topic: topic, Err: err}
		if msg != nil {
			receipts[i].MessageUUID = msg.UUID
		}
	}
	e.concluded(receipts, begun)
	return receipts
}

// concluded completes and tells the outcomes of messages that were not sent.
func (e *engine) concluded(receipts []Receipt, begun time.Time) {
	for i := range receipts {
		receipts[i].Duration = time.Since(begun)
		e.onPublish(receipts[i])
	}
}

// call is one Publish or Send. Its items go out in order. mu guards what the
// waiting caller and the flight that sends the items both look at.
type call struct {
	begun time.Time
	ctx   context.Context //nolint:containedctx // the caller's: a flight takes the values, see batchContext
	items []item
	one   [1]item // room for the items of most calls

	mu        sync.Mutex
	sent      int // items[:sent] were handed to the server
	left      int // items that are not done
	abandoned bool
	finished  chan struct{}
	added     map[string]struct{} // entries that the call has added, once hasAdded was asked
}

func newCall(n int) *call {
	c := &call{begun: time.Now(), left: n, finished: make(chan struct{})}
	if n == 1 {
		c.items = c.one[:]
	} else {
		c.items = make([]item, n)
	}
	return c
}

// hasAdded tells whether an earlier batch of the call has added the entry: then a
// second message with its UUID is a duplicate, not the first try of itself. It is asked
// for after lost replies only, and looks then.
func (c *call) hasAdded(entryID string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.added == nil {
		c.added = make(map[string]struct{})
		for i := range c.items {
			if it := &c.items[i]; it.done && it.receipt.Verdict == Added {
				c.added[it.receipt.EntryID] = struct{}{}
			}
		}
	}
	_, ok := c.added[entryID]
	return ok
}

// deliver hands the items to the topic, waits for them, or for ctx, and returns
// one receipt an item.
func (e *engine) deliver(ctx context.Context, t *topic, c *call) []Receipt {
	c.ctx = ctx
	for i := range c.items {
		c.items[i].call = c
	}
	if ctx.Err() == nil {
		switch f := t.enqueue(c); {
		case f != nil && ctx.Done() == nil && e.bounded:
			// A caller that can't give up sends by itself: two goroutines would only
			// wake each other up.
			t.flyFor(c, f)
		case f != nil:
			go t.fly(f)
		}
		select {
		case <-c.finished:
		case <-ctx.Done():
			t.dequeue(c)
		case <-e.gone:
			return c.leave(e, ErrClosed)
		}
	}
	return c.leave(e, context.Cause(ctx))
}

// leave ends the caller's waiting. The flight that may be sending the items goes
// on for itself; what it finds out then reaches the hooks only.
func (c *call) leave(e *engine, cause error) []Receipt {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
	receipts := make([]Receipt, len(c.items))
	for i := range c.items {
		it := &c.items[i]
		switch {
		case it.done:
		case i < c.sent:
			// Only a copy: the item is still the flight's.
			receipts[i] = it.receipt
			describe(&receipts[i], it)
			receipts[i].Duration = time.Since(c.begun)
			receipts[i].Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, cause)
			continue
		default:
			c.finish(e, it, func(r *Receipt) { r.Err = notSent(cause) })
		}
		receipts[i] = it.receipt
	}
	return receipts
}

// settle tells the claims what became of the messages. tried is false when nothing was
// sent.
func (c *call) settle(receipts []Receipt, tried bool) {
	for i := range c.items {
		claim := c.items[i].claim
		if claim == nil {
			continue
		}
		switch err := receipts[i].Err; {
		case err == nil:
			claim.Settle(childkey.Sent)
		case !tried || errors.Is(err, ErrNotSent):
			claim.Settle(childkey.NotSent)
		default:
			claim.Settle(childkey.MaybeSent)
		}
	}
}

// finish makes the receipt of an item final. The caller holds c.mu.
func (c *call) finish(e *engine, it *item, set func(*Receipt)) {
	if it.done {
		return
	}
	it.done = true
	defer func() { // also when a logger panics: the caller waits for it
		if c.left--; c.left == 0 {
			close(c.finished)
		}
	}()
	it.receipt.Duration = time.Since(c.begun)
	set(&it.receipt)
	if c.added != nil && it.receipt.Verdict == Added {
		c.added[it.receipt.EntryID] = struct{}{}
	}
	e.onPublish(it.receipt)
}
