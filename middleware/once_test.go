package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// Watermill's Deduplicator acknowledges the redelivery unseen.
func TestHandlerFailsThenSucceeds(t *testing.T) {
	store, seen, runs := newStore(t), &log{}, 0
	r := newRig(t, newOnce(t, store, seen.into).Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs < 3 {
			return []*message.Message{newMessage("", "of a failed run")}, errors.New("no funds")
		}
		return []*message.Message{newMessage("", "receipt")}, nil
	}))
	for range 2 {
		r.wantNacked(newMessage("pay:1", "{}"))
		wantNothing(t, store, "pay:1")
		r.wantPublished(0)
	}
	for range 3 {
		r.wantAcked(newMessage("pay:1", "{}"))
	}
	if runs != 3 {
		t.Errorf("%d runs, want 3", runs)
	}
	if seen.count("failed") != 2 || seen.count("handled") != 1 || seen.count("skipped") != 2 {
		t.Errorf("told %v", seen.events)
	}
	if ev := seen.get("skipped"); ev.Key != "pay:1" || ev.Topic != topicName || ev.Handler != handlerName || ev.Namespace != "payments" || ev.CommittedAt.IsZero() {
		t.Errorf("told %+v", ev)
	}
}

// The Router publishes after the chain has returned; a key recorded before that would
// lose the messages.
func TestProducedMessagePublishFails(t *testing.T) {
	store, runs := newStore(t), 0
	r := newRig(t, newOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		runs++
		return []*message.Message{newMessage("", fmt.Sprint("first of run ", runs)), newMessage("", "second")}, nil
	}))
	r.out.fail = 2
	r.wantNacked(newMessage("pay:1", "{}"))
	r.wantNacked(newMessage("pay:1", "{}"))
	if rec := wantDone(t, store, "pay:1"); rec.Outputs != 2 {
		t.Errorf("%d messages recorded", rec.Outputs)
	}
	r.wantAcked(newMessage("pay:1", "{}"))
	out := r.wantPublished(2)
	if runs != 1 || string(out[0].Payload) != "first of run 1" || string(out[1].Payload) != "second" {
		t.Errorf("%d runs, published %q and %q", runs, out[0].Payload, out[1].Payload)
	}
	eventually(t, "the outputs are settled", func() bool { return wantDone(t, store, "pay:1").Outputs == 0 })
	r.wantAcked(newMessage("pay:1", "{}"))
	r.wantPublished(2)
}

// The process dies between the record and the acknowledgement. Another one publishes the
// same messages, by UUID and key.
func TestProcessDiesBeforeTheAck(t *testing.T) {
	store, runs := newStore(t), 0
	fn := func(msg *message.Message) ([]*message.Message, error) {
		runs++
		return []*message.Message{newMessage("", "a"), newMessage("", "b")}, nil
	}
	first := newRig(t, newOnce(t, store.Open()).Handler(fn))
	first.out.fail = 1
	first.wantNacked(newMessage("pay:1", "{}"))
	second := newRig(t, newOnce(t, store.Open()).Handler(fn))
	second.out.fail = 0
	second.wantAcked(newMessage("pay:1", "{}"))
	third := newRig(t, newOnce(t, newStore(t)).Handler(fn)) // as though it had never been
	third.wantAcked(newMessage("pay:1", "{}"))
	a, b := second.wantPublished(2), third.wantPublished(2)
	if runs != 2 {
		t.Errorf("%d runs, want 2: one for each store", runs)
	}
	for i := range a {
		if a[i].UUID != b[i].UUID || a[i].Metadata.Get(eventkey.MetadataChildKey) != b[i].Metadata.Get(eventkey.MetadataChildKey) {
			t.Errorf("message %d: %s %v and %s %v", i, a[i].UUID, a[i].Metadata, b[i].UUID, b[i].Metadata)
		}
		want := eventkey.Child(eventkey.Handled{Namespace: "payments", Handler: handlerName, Topic: topicName, Key: "pay:1"}, outTopic, "", i)
		if got := a[i].Metadata.Get(eventkey.MetadataChildKey); got != want || a[i].UUID != eventkey.StableUUID(want) {
			t.Errorf("message %d: child key %q, want %q; UUID %s", i, got, want, a[i].UUID)
		}
	}
}

func TestPanicRollsBack(t *testing.T) {
	store, seen, runs := newStore(t), &log{}, 0
	var escaped any
	var after context.Context
	catch := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			own := msg.Context()
			defer func() {
				if escaped = recover(); escaped != nil {
					err = errors.New("recovered")
				}
				after = msg.Context()
				if after != own {
					t.Error("the message left with another context")
				}
			}()
			return h(msg)
		}
	}
	r := newRig(t, newOnce(t, store, seen.into).Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs == 1 {
			panic("boom")
		}
		return nil, nil
	}), catch)
	r.wantNacked(newMessage("pay:1", "{}"))
	if escaped != "boom" {
		t.Errorf("the panic did not go on: %v", escaped)
	}
	wantNothing(t, store, "pay:1")
	if seen.count("failed") != 1 {
		t.Errorf("told %v", seen.events)
	}
	r.wantAcked(newMessage("pay:1", "{}"))
	wantDone(t, store, "pay:1")
}

type valueKey string

// Retry and PoisonQueue use the message after us, the Router the returned messages.
func TestContexts(t *testing.T) {
	for _, outcome := range []string{"success", "error", "skipped", "conflict"} {
		t.Run(outcome, func(t *testing.T) {
			store := newStore(t)
			once := newOnce(t, store)
			check := func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					own := context.WithValue(msg.Context(), valueKey("outside"), "value")
					msg.SetContext(own)
					out, err := h(msg)
					if msg.Context() != own {
						t.Error("the message left with another context")
					}
					for i, m := range out {
						if err := m.Context().Err(); err != nil {
							t.Errorf("returned message %d: its context has ended: %v", i, err)
						}
						if m.Context().Value(valueKey("outside")) != "value" {
							t.Errorf("returned message %d has lost the values of the message", i)
						}
						if outcome == "success" && i == 0 && m.Context().Value(valueKey("inside")) != "value" {
							t.Error("returned message has lost the values that the handler gave it")
						}
						if _, inside := eventkey.HandledFrom(m.Context()); inside {
							t.Errorf("returned message %d is published as though inside the handler", i)
						}
					}
					return out, err
				}
			}
			var ran context.Context
			r := newRig(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
				ran = msg.Context()
				h, ok := eventkey.HandledFrom(ran)
				if !ok || h.Key != "pay:1" || h.Handler != handlerName || h.Topic != topicName || h.Namespace != "payments" {
					t.Errorf("handled %+v, %v", h, ok)
				}
				if outcome == "error" {
					return nil, errors.New("no")
				}
				on := newMessage("", "on the handler's context")
				on.SetContext(context.WithValue(ran, valueKey("inside"), "value"))
				return []*message.Message{on, newMessage("", "on none"), msg.CopyWithContext()}, nil
			}), check)
			r.deliver(newMessage("pay:1", "{}"))
			switch outcome {
			case "skipped":
				r.out.fail = 0
				r.deliver(newMessage("pay:1", "{}"))
			case "conflict":
				r.deliver(newMessage("pay:1", `{"other":1}`))
			}
			if ran.Err() == nil {
				t.Error("the run's context goes on after the run")
			}
		})
	}
}

// Between the handler's return and the record the message may be cancelled; what was
// done is recorded all the same.
func TestSuccessIsRecordedDuringShutdown(t *testing.T) {
	store := newStore(t)
	r := newRig(t, newOnce(t, store).Handler(func(msg *message.Message) ([]*message.Message, error) {
		msg.Context().Value(valueKey("cancel")).(context.CancelFunc)()
		return nil, nil
	}))
	ctx, cancel := context.WithCancel(context.Background())
	msg := newMessage("pay:1", "{}")
	msg.SetContext(context.WithValue(ctx, valueKey("cancel"), cancel))
	r.deliver(msg)
	wantDone(t, store, "pay:1")
}

// A shutdown is no failure of the message: PoisonQueue would move it away.
func TestInterruptedHandlerIsNoFailure(t *testing.T) {
	store, seen := newStore(t), &log{}
	r := newRig(t, newOnce(t, store, seen.into).Handler(func(msg *message.Message) ([]*message.Message, error) {
		msg.Context().Value(valueKey("cancel")).(context.CancelFunc)()
		return nil, fmt.Errorf("query: %w", msg.Context().Err())
	}))
	ctx, cancel := context.WithCancel(context.Background())
	msg := newMessage("pay:1", "{}")
	msg.SetContext(context.WithValue(ctx, valueKey("cancel"), cancel))
	r.wantNacked(msg)
	if r.err != nil {
		t.Errorf("it travels as an error: %v", r.err)
	}
	wantNothing(t, store, "pay:1")
	if seen.count("failed") != 0 || seen.count("delayed") != 1 {
		t.Errorf("told %v", seen.events)
	}
}

func TestNested(t *testing.T) {
	store, runs := newStore(t), 0
	once := newOnce(t, store)
	fn := once.Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })
	r := newRig(t, fn, once.Middleware)
	r.wantNacked(newMessage("pay:1", "{}"))
	if !errors.Is(r.err, middleware.ErrNested) || !middleware.IsPermanent(r.err) {
		t.Errorf("error %v, want a permanent ErrNested", r.err)
	}
	if runs != 0 {
		t.Error("the handler ran")
	}
	wantNothing(t, store, "pay:1")
}

// Handlers within handlers are fine as long as they are different ones.
func TestRunInsideAHandler(t *testing.T) {
	store, inner := newStore(t), 0
	once := newOnce(t, store)
	r := newRig(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		_, err := once.Run(msg.Context(), msg, "inner", func(context.Context) ([]*message.Message, error) { inner++; return nil, nil })
		if err != nil {
			return nil, err
		}
		if inner == 1 && msg.Metadata.Get("fail") != "" {
			return nil, errors.New("after the inner one")
		}
		return nil, nil
	}))
	first := newMessage("pay:1", "{}")
	first.Metadata.Set("fail", "yes")
	r.wantNacked(first)
	r.wantAcked(newMessage("pay:1", "{}"))
	if inner != 1 {
		t.Errorf("the inner handler ran %d times", inner)
	}
}

// Two services, two handlers, two topics, one store.
func TestScopes(t *testing.T) {
	store := newStore(t)
	var runs atomic.Int64
	fn := func(*message.Message) ([]*message.Message, error) { runs.Add(1); return nil, nil }
	rigs := []*rig{
		newRig(t, newOnce(t, store).Handler(fn)),
		newRig(t, newOnce(t, store, func(c *middleware.Config) { c.Namespace = "mail" }).Handler(fn)),
		newNamedRig(t, "ship", newOnce(t, store).Handler(fn)),
	}
	for range 2 {
		for _, r := range rigs {
			r.wantAcked(newMessage("pay:1", "{}"))
		}
	}
	if runs.Load() != 3 {
		t.Errorf("%d runs, want one for each of 3", runs.Load())
	}
}

func TestKeys(t *testing.T) {
	source := eventkey.Template("pay:{$.id}")
	for name, tt := range map[string]struct {
		cfg     change
		msg     *message.Message
		acked   bool
		err     string
		wantKey string
	}{
		"its own":              {func(c *middleware.Config) { c.Key = source }, newMessage("own", `{"id":1}`), true, "", "own"},
		"by the source":        {func(c *middleware.Config) { c.Key = source }, newMessage("", `{"id":1}`), true, "", "pay:1"},
		"missing field":        {func(c *middleware.Config) { c.Key = source }, newMessage("", `{}`), false, "$.id", ""},
		"no source":            {func(*middleware.Config) {}, newMessage("", `{}`), false, "idempotency_key", ""},
		"passes":               {func(c *middleware.Config) { c.PassWithoutKey = true }, newMessage("", `{}`), true, "", ""},
		"too long":             {func(*middleware.Config) {}, newMessage(strings.Repeat("k", 2000), `{}`), false, "1024", ""},
		"faulty passes not":    {func(c *middleware.Config) { c.Key, c.PassWithoutKey = source, true }, newMessage("", `{`), false, "JSON", ""},
		"panics":               {func(c *middleware.Config) { c.Key = panicking }, newMessage("", `{}`), false, "boom", ""},
		"panic with pass":      {func(c *middleware.Config) { c.Key, c.PassWithoutKey = panicking, true }, newMessage("", `{}`), false, "boom", ""},
		"fingerprint panics":   {func(c *middleware.Config) { c.Fingerprint = panickingPrint }, newMessage("k", `{}`), false, "boom", ""},
		"fingerprint complain": {func(c *middleware.Config) { c.Fingerprint = eventkey.JSONOnly("x") }, newMessage("k", `no json`), false, "fingerprint", ""},
	} {
		t.Run(name, func(t *testing.T) {
			store, runs := newStore(t), 0
			r := newRig(t, newOnce(t, store, tt.cfg).Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }))
			if acked := r.deliver(tt.msg); acked != tt.acked || (runs == 1) != tt.acked {
				t.Errorf("acked %v after %d runs, want %v", acked, runs, tt.acked)
			}
			if tt.err != "" && (r.err == nil || !strings.Contains(r.err.Error(), tt.err)) {
				t.Errorf("error %v does not tell %q", r.err, tt.err)
			}
			if tt.wantKey != "" {
				wantDone(t, store, tt.wantKey)
			}
		})
	}
}

var (
	panicking      = eventkey.Func(func(string, *message.Message) (string, error) { panic("boom") })
	panickingPrint = eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { panic("boom") })
)

func TestOutsideOfARouter(t *testing.T) {
	once := newOnce(t, newStore(t))
	if err := once.Consumer(func(*message.Message) error { return nil })(newMessage("k", "{}")); !errors.Is(err, middleware.ErrNoHandler) {
		t.Errorf("error %v, want ErrNoHandler", err)
	}
	runs := 0
	for range 2 {
		msg := newMessage("k", "{}")
		_, err := once.Run(msg.Context(), msg, "loop", func(ctx context.Context) ([]*message.Message, error) {
			if msg.Context() != ctx {
				t.Error("message and function have different contexts")
			}
			runs++
			return nil, nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

func TestConfigFaults(t *testing.T) {
	good := func() middleware.Config {
		return middleware.Config{Store: newStore(t), Namespace: "n", Retention: time.Hour}
	}
	for want, bad := range map[string]change{
		"Store":                 func(c *middleware.Config) { c.Store = nil },
		"nil *dedupe.Memory":    func(c *middleware.Config) { c.Store = (*dedupe.Memory)(nil) },
		"Namespace":             func(c *middleware.Config) { c.Namespace = "" },
		"events a second":       func(c *middleware.Config) { c.Retention = 0 },
		"Retention -1":          func(c *middleware.Config) { c.Retention = -1 },
		"longer than Retention": func(c *middleware.Config) { c.Lease = 2 * time.Hour },
		"shorter than":          func(c *middleware.Config) { c.Lease = time.Millisecond },
		"Lease -1":              func(c *middleware.Config) { c.Lease = -1 },
		"Delay":                 func(c *middleware.Config) { c.Delay = -1 },
		"StoreTimeout":          func(c *middleware.Config) { c.StoreTimeout = -1 },
		"MaxOutputBytes":        func(c *middleware.Config) { c.MaxOutputBytes = -1 },
		"Key":                   func(c *middleware.Config) { c.Key = eventkey.Template("{") },
		"Fingerprint":           func(c *middleware.Config) { c.Fingerprint = eventkey.FingerprintFunc(nil) },
	} {
		cfg := good()
		bad(&cfg)
		if _, err := middleware.New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not tell %q", err, want)
		}
	}
	cfg := good()
	cfg.Retention = time.Second // shorter than the default lease
	if _, err := middleware.New(cfg, nil); err != nil {
		t.Errorf("a short retention without a lease: %v", err)
	}
	_, err := middleware.New(middleware.Config{}, nil)
	for _, field := range []string{"Store", "Namespace", "Retention"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("not all faults at once: %v", err)
		}
	}
}
