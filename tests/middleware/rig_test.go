package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

func newStore(t testing.TB) *dedupe.Memory {
	t.Helper()
	m, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

type change = func(*middleware.Config)

func newOnce(t testing.TB, store dedupe.Store, changes ...change) *middleware.Once {
	t.Helper()
	cfg := middleware.Config{Store: store, Namespace: "payments", Retention: time.Hour, Delay: 20 * time.Millisecond, Wait: -1}
	for _, c := range changes {
		c(&cfg)
	}
	o, err := middleware.New(cfg, nil)
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

// log collects what the hooks are told.
type log struct {
	mu     sync.Mutex
	events []string
}

func (l *log) hooks() middleware.Hooks {
	note := func(name string) func(middleware.Event) {
		return func(middleware.Event) {
			l.mu.Lock()
			defer l.mu.Unlock()
			l.events = append(l.events, name)
		}
	}
	return middleware.Hooks{
		OnHandled: note("handled"), OnSkipped: note("skipped"), OnFailed: note("failed"), OnDelayed: note("delayed"),
		OnConflict: note("conflict"), OnTakeOver: note("take over"), OnLeaseLost: note("lease lost"), OnPassed: note("passed"),
	}
}

func (l *log) into(c *middleware.Config) { c.Hooks = append(c.Hooks, l.hooks()) }

func (l *log) count(name string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.events {
		if e == name {
			n++
		}
	}
	return n
}

// newMessage is a delivery of an event; each delivery is a message of its own.
func newMessage(key, payload string) *message.Message {
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

// published is a publisher that keeps what it is given.
type published struct {
	mu   sync.Mutex
	all  []*message.Message
	fail int // so many publishes fail first
}

func (p *published) Publish(_ string, msgs ...*message.Message) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fail > 0 {
		p.fail--
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
func (p *published) Close() error { return nil }

func (p *published) messages() []*message.Message {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]*message.Message(nil), p.all...)
}

// rig is a Router with one handler, fed by hand.
type rig struct {
	t    testing.TB
	sub  *chanSubscriber
	out  *published
	done chan error
	err  error // what the chain returned for the last message
}

const handlerName, topicName, outTopic = "charge", "orders", "payments"

func newRig(t testing.TB, fn message.HandlerFunc, around ...message.HandlerMiddleware) *rig {
	t.Helper()
	return newNamedRig(t, handlerName, fn, around...)
}

func newNamedRig(t testing.TB, name string, fn message.HandlerFunc, around ...message.HandlerMiddleware) *rig {
	t.Helper()
	r := &rig{t: t, sub: &chanSubscriber{ch: make(chan *message.Message)}, out: &published{}, done: make(chan error, 1)}
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
	router.AddHandler(name, topicName, r.sub, outTopic, r.out, fn)
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

// deliver hands a message to the Router and tells whether it was acknowledged.
func (r *rig) deliver(msg *message.Message) bool {
	r.t.Helper()
	r.sub.ch <- msg
	r.err = <-r.done
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

func (r *rig) wantAcked(msg *message.Message) {
	r.t.Helper()
	if !r.deliver(msg) {
		r.t.Error("not acknowledged")
	}
}

func (r *rig) wantNacked(msg *message.Message) {
	r.t.Helper()
	if r.deliver(msg) {
		r.t.Error("acknowledged")
	}
}

func (r *rig) wantPublished(n int) []*message.Message {
	r.t.Helper()
	all := r.out.messages()
	if len(all) != n {
		r.t.Fatalf("%d messages published, want %d", len(all), n)
	}
	return all
}

func lookup(t testing.TB, store dedupe.Admin, key string) (dedupe.Record, error) {
	t.Helper()
	return store.Lookup(t.Context(), dedupe.Key{Namespace: "payments", Topic: topicName, Handler: handlerName, Event: key})
}

// wantNothing checks that neither a record nor a claim is left.
func wantNothing(t testing.TB, store dedupe.Admin, key string) {
	t.Helper()
	if r, err := lookup(t, store, key); !errors.Is(err, dedupe.ErrNotFound) {
		t.Errorf("left behind: %+v, %v", r, err)
	}
}

func wantDone(t testing.TB, store dedupe.Admin, key string) dedupe.Record {
	t.Helper()
	r, err := lookup(t, store, key)
	if err != nil || r.State != dedupe.Done {
		t.Errorf("record %+v, %v, want one that is done", r, err)
	}
	return r
}
