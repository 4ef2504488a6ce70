// Package rig is for tests of package middleware: a Router with one handler that is fed by
// hand, and what goes with it.
package rig

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// NewStore makes a memory store that is closed with the test.
func NewStore(t testing.TB) *dedupe.Memory {
	t.Helper()
	m, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Change changes a configuration.
type Change = func(*middleware.Config)

// NewOnce makes a middleware for the store, with short times, closed with the test.
func NewOnce(t testing.TB, store dedupe.Store, changes ...Change) *middleware.Once {
	t.Helper()
	return NewLogging(t, nil, store, changes...)
}

// NewLogging makes one with a log.
func NewLogging(t testing.TB, logger watermill.LoggerAdapter, store dedupe.Store, changes ...Change) *middleware.Once {
	t.Helper()
	cfg := middleware.Config{Store: store, Namespace: "payments", Retention: time.Hour, Delay: 20 * time.Millisecond, Wait: middleware.NoWait}
	for _, c := range changes {
		c(&cfg)
	}
	o, err := middleware.New(cfg, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := o.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return o
}

// Log collects what the hooks receive.
type Log struct {
	mu     sync.Mutex
	Events []string
	last   map[string]middleware.Event
}

func (l *Log) hooks() middleware.Hooks {
	note := func(name string) func(middleware.Event) {
		return func(ev middleware.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.Events = append(l.Events, name)
			if l.last == nil {
				l.last = make(map[string]middleware.Event)
			}
			l.last[name] = ev
		}
	}
	return middleware.Hooks{
		OnHandled: note("handled"), OnSkipped: note("skipped"), OnFailed: note("failed"), OnDelayed: note("delayed"),
		OnForeignSkip: note("foreign skip"), OnRefused: note("refused"), OnConflict: note("conflict"), OnTakeover: note("take over"), OnLeaseLost: note("lease lost"), OnPassed: note("passed"),
	}
}

// Into is a Change.
func (l *Log) Into(c *middleware.Config) { c.Hooks = append(c.Hooks, l.hooks()) }

// Count is how often a hook was called.
func (l *Log) Count(name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.Events {
		if e == name {
			n++
		}
	}
	return n
}

// Outcomes are the hooks that were called, but for that of a takeover, which comes
// besides.
func (l *Log) Outcomes() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(l.Events), func(name string) bool { return name == "take over" })
}

// Get is what a hook received last.
func (l *Log) Get(name string) middleware.Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.last[name]
}

// NewMessage is a delivery of an event; each delivery is a message of its own.
func NewMessage(key, payload string) *message.Message {
	msg := message.NewMessage(watermill.NewUUID(), message.Payload(payload))
	if key != "" {
		msg.Metadata.Set(eventkey.MetadataKey, key)
	}
	return msg
}

// chanSubscriber hands out what a test gives it.
type chanSubscriber struct {
	ch   chan *message.Message
	once sync.Once
}

func (s *chanSubscriber) Subscribe(ctx context.Context, _ string) (<-chan *message.Message, error) {
	// The Router cancels, and calls Close or not.
	context.AfterFunc(ctx, func() { _ = s.Close() })
	return s.ch, nil
}
func (s *chanSubscriber) Close() error { s.once.Do(func() { close(s.ch) }); return nil }

// Published is a publisher that keeps what it is given.
type Published struct {
	mu   sync.Mutex
	all  []*message.Message
	Fail int // so many publishes fail first
}

// Publish refuses messages whose context has ended, as our publisher does.
func (p *Published) Publish(_ string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.Fail > 0 {
		p.Fail--
		return errors.New("broker is down")
	}
	for _, m := range msgs {
		if err := m.Context().Err(); err != nil {
			return fmt.Errorf("published with a context that has ended: %w", err)
		}
		p.all = append(p.all, m)
	}
	return nil
}

// Close does nothing.
func (p *Published) Close() error { return nil }

// Messages returns them all.
func (p *Published) Messages() []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*message.Message(nil), p.all...)
}

// Rig is a Router with one handler, fed by hand.
type Rig struct {
	t    testing.TB
	sub  *chanSubscriber
	Out  *Published
	done chan error
	Err  error // what the chain returned for the last message
}

// What a Rig is made of.
const (
	HandlerName = "charge"
	TopicName   = "orders"
	OutTopic    = "payments"
)

// New makes a Rig.
func New(t testing.TB, fn message.HandlerFunc, around ...message.HandlerMiddleware) *Rig {
	t.Helper()
	return Named(t, HandlerName, fn, around...)
}

// Named makes one whose handler has another name.
func Named(t testing.TB, name string, fn message.HandlerFunc, around ...message.HandlerMiddleware) *Rig {
	t.Helper()
	r := &Rig{t: t, sub: &chanSubscriber{ch: make(chan *message.Message)}, Out: &Published{}, done: make(chan error, 1)}
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			defer func() { r.done <- err }()
			return h(msg)
		}
	})
	router.AddMiddleware(around...)
	router.AddHandler(name, TopicName, r.sub, OutTopic, r.Out, fn)
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()
	t.Cleanup(func() {
		if err := router.Close(); err != nil {
			t.Errorf("router: %v", err)
		}
		if err := <-stopped; err != nil {
			t.Errorf("router: %v", err)
		}
	})
	return r
}

// Hand hands a message to the Router and does not wait for the handler.
func (r *Rig) Hand(msg *message.Message) { r.sub.ch <- msg }

// Wait waits until the chain has returned, and notes its error.
func (r *Rig) Wait() { r.Err = <-r.done }

// Deliver hands a message to the Router and reports whether it was acknowledged.
func (r *Rig) Deliver(msg *message.Message) bool {
	r.t.Helper()
	r.Hand(msg)
	r.Wait()
	select {
	case <-msg.Acked():
		return true
	case <-msg.Nacked():
		return false
	case <-time.After(20 * time.Second):
		r.t.Fatal("the message was not settled")
		return false
	}
}

// WantAcked delivers a message that is to be acknowledged.
func (r *Rig) WantAcked(msg *message.Message) {
	r.t.Helper()
	if !r.Deliver(msg) {
		r.t.Error("not acknowledged")
	}
}

// WantNacked delivers one that is not.
func (r *Rig) WantNacked(msg *message.Message) {
	r.t.Helper()
	if r.Deliver(msg) {
		r.t.Error("acknowledged")
	}
}

// WantPublished returns what was published: n messages.
func (r *Rig) WantPublished(n int) []*message.Message {
	r.t.Helper()
	all := r.Out.Messages()
	if len(all) != n {
		r.t.Fatalf("%d messages published, want %d", len(all), n)
	}
	return all
}

// Lookup returns the record of an event.
func Lookup(t testing.TB, store dedupe.Admin, key string) (dedupe.Record, error) {
	t.Helper()
	return store.Lookup(t.Context(), dedupe.Key{Namespace: "payments", Topic: TopicName, Handler: HandlerName, Event: key})
}

// WantNothing checks that neither a record nor a claim is left.
func WantNothing(t testing.TB, store dedupe.Admin, key string) {
	t.Helper()
	if r, err := Lookup(t, store, key); !errors.Is(err, dedupe.ErrNotFound) {
		t.Errorf("left behind: %+v, %v", r, err)
	}
}

// WantDone checks that the event is recorded.
func WantDone(t testing.TB, store dedupe.Admin, key string) dedupe.Record {
	t.Helper()
	r, err := Lookup(t, store, key)
	if err != nil || r.State != dedupe.StateDone {
		t.Errorf("record %+v, %v, want one that is done", r, err)
	}
	return r
}
