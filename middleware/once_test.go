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
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// Watermill's Deduplicator acknowledges the redelivery unseen.
func TestHandlerFailsThenSucceeds(t *testing.T) {
	store, seen, runs := rig.NewStore(t), &rig.Log{}, 0
	r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs < 3 {
			return []*message.Message{rig.NewMessage("", "of a failed run")}, errors.New("no funds")
		}
		return []*message.Message{rig.NewMessage("", "receipt")}, nil
	}))
	for range 2 {
		r.WantNacked(rig.NewMessage("pay:1", "{}"))
		rig.WantNothing(t, store, "pay:1")
		r.WantPublished(0)
	}
	for range 3 {
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
	}
	if runs != 3 {
		t.Errorf("%d runs, want 3", runs)
	}
	if seen.Count("failed") != 2 || seen.Count("handled") != 1 || seen.Count("skipped") != 2 {
		t.Errorf("hooks got %v", seen.Events)
	}
	if ev := seen.Get("skipped"); ev.Key != "pay:1" || ev.Topic != rig.TopicName || ev.Handler != rig.HandlerName || ev.Namespace != "payments" || ev.CommittedAt.IsZero() {
		t.Errorf("hooks got %+v", ev)
	}
}

// The Router publishes after the chain has returned; a key recorded before that would
// lose the messages.
func TestProducedMessagePublishFails(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		runs++
		return []*message.Message{rig.NewMessage("", fmt.Sprint("first of run ", runs)), rig.NewMessage("", "second")}, nil
	}))
	r.Out.Fail = 2
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if rec := rig.WantDone(t, store, "pay:1"); rec.Outputs != 2 {
		t.Errorf("%d messages recorded", rec.Outputs)
	}
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	out := r.WantPublished(2)
	if runs != 1 || string(out[0].Payload) != "first of run 1" || string(out[1].Payload) != "second" {
		t.Errorf("%d runs, published %q and %q", runs, out[0].Payload, out[1].Payload)
	}
	eventually(t, "the outputs are settled", func() bool { return rig.WantDone(t, store, "pay:1").Outputs == 0 })
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	r.WantPublished(2)
}

// The process dies between the record and the acknowledgement. Another one publishes the
// same messages, by UUID and key.
func TestProcessDiesBeforeTheAck(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	fn := func(msg *message.Message) ([]*message.Message, error) {
		runs++
		return []*message.Message{rig.NewMessage("", "a"), rig.NewMessage("", "b")}, nil
	}
	first := rig.New(t, rig.NewOnce(t, store.Open()).Handler(fn))
	first.Out.Fail = 1
	first.WantNacked(rig.NewMessage("pay:1", "{}"))
	second := rig.New(t, rig.NewOnce(t, store.Open()).Handler(fn))
	second.Out.Fail = 0
	second.WantAcked(rig.NewMessage("pay:1", "{}"))
	third := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(fn)) // as though it had never been
	third.WantAcked(rig.NewMessage("pay:1", "{}"))
	a, b := second.WantPublished(2), third.WantPublished(2)
	if runs != 2 {
		t.Errorf("%d runs, want 2: one for each store", runs)
	}
	for i := range a {
		if a[i].UUID != b[i].UUID || a[i].Metadata.Get(eventkey.MetadataChildKey) != b[i].Metadata.Get(eventkey.MetadataChildKey) {
			t.Errorf("message %d: %s %v and %s %v", i, a[i].UUID, a[i].Metadata, b[i].UUID, b[i].Metadata)
		}
		want := identity.Child(eventkey.Handled{Namespace: "payments", Handler: rig.HandlerName, Topic: rig.TopicName, Key: "pay:1"}, rig.OutTopic, "", i)
		if got := a[i].Metadata.Get(eventkey.MetadataChildKey); got != want || a[i].UUID != identity.StableUUID(want) {
			t.Errorf("message %d: child key %q, want %q; UUID %s", i, got, want, a[i].UUID)
		}
	}
}

func TestPanicRollsBack(t *testing.T) {
	store, seen, runs := rig.NewStore(t), &rig.Log{}, 0
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
	r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs == 1 {
			panic("boom")
		}
		return nil, nil
	}), catch)
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if escaped != "boom" {
		t.Errorf("the panic did not go on: %v", escaped)
	}
	rig.WantNothing(t, store, "pay:1")
	if seen.Count("failed") != 1 {
		t.Errorf("hooks got %v", seen.Events)
	}
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	rig.WantDone(t, store, "pay:1")
}

type valueKey string

// Retry and PoisonQueue use the message after us, the Router the returned messages.
func TestContexts(t *testing.T) {
	for _, outcome := range []string{"success", "error", "skipped", "conflict"} {
		t.Run(outcome, func(t *testing.T) {
			store := rig.NewStore(t)
			once := rig.NewOnce(t, store)
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
			r := rig.New(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
				ran = msg.Context()
				h, ok := eventkey.HandledFrom(ran)
				if !ok || h.Key != "pay:1" || h.Handler != rig.HandlerName || h.Topic != rig.TopicName || h.Namespace != "payments" {
					t.Errorf("handled %+v, %v", h, ok)
				}
				if outcome == "error" {
					return nil, errors.New("no")
				}
				on := rig.NewMessage("", "on the handler's context")
				on.SetContext(context.WithValue(ran, valueKey("inside"), "value"))
				return []*message.Message{on, rig.NewMessage("", "on none"), msg.CopyWithContext()}, nil
			}), check)
			r.Deliver(rig.NewMessage("pay:1", "{}"))
			switch outcome {
			case "skipped":
				r.Out.Fail = 0
				r.Deliver(rig.NewMessage("pay:1", "{}"))
			case "conflict":
				r.Deliver(rig.NewMessage("pay:1", `{"other":1}`))
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
	store := rig.NewStore(t)
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(msg *message.Message) ([]*message.Message, error) {
		msg.Context().Value(valueKey("cancel")).(context.CancelFunc)()
		return nil, nil
	}))
	ctx, cancel := context.WithCancel(context.Background())
	msg := rig.NewMessage("pay:1", "{}")
	msg.SetContext(context.WithValue(ctx, valueKey("cancel"), cancel))
	r.Deliver(msg)
	rig.WantDone(t, store, "pay:1")
}

// A shutdown is no failure of the message: PoisonQueue would move it away.
func TestInterruptedHandlerIsNoFailure(t *testing.T) {
	store, seen := rig.NewStore(t), &rig.Log{}
	r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(msg *message.Message) ([]*message.Message, error) {
		msg.Context().Value(valueKey("cancel")).(context.CancelFunc)()
		return nil, fmt.Errorf("query: %w", msg.Context().Err())
	}))
	ctx, cancel := context.WithCancel(context.Background())
	msg := rig.NewMessage("pay:1", "{}")
	msg.SetContext(context.WithValue(ctx, valueKey("cancel"), cancel))
	r.WantNacked(msg)
	if r.Err != nil {
		t.Errorf("it travels as an error: %v", r.Err)
	}
	rig.WantNothing(t, store, "pay:1")
	if seen.Count("failed") != 0 || seen.Count("delayed") != 1 {
		t.Errorf("hooks got %v", seen.Events)
	}
}

func TestNested(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	once := rig.NewOnce(t, store)
	fn := once.Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil })
	r := rig.New(t, fn, once.Middleware)
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if !errors.Is(r.Err, middleware.ErrNested) || !middleware.IsPermanent(r.Err) {
		t.Errorf("error %v, want a permanent ErrNested", r.Err)
	}
	if runs != 0 {
		t.Error("the handler ran")
	}
	rig.WantNothing(t, store, "pay:1")
}

// Handlers within handlers are fine as long as they are different ones.
func TestRunInsideAHandler(t *testing.T) {
	store, inner := rig.NewStore(t), 0
	once := rig.NewOnce(t, store)
	r := rig.New(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		_, err := once.Run(msg.Context(), msg, "inner", func(context.Context) ([]*message.Message, error) { inner++; return nil, nil })
		if err != nil {
			return nil, err
		}
		if inner == 1 && msg.Metadata.Get("fail") != "" {
			return nil, errors.New("after the inner one")
		}
		return nil, nil
	}))
	first := rig.NewMessage("pay:1", "{}")
	first.Metadata.Set("fail", "yes")
	r.WantNacked(first)
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if inner != 1 {
		t.Errorf("the inner handler ran %d times", inner)
	}
}

// Two services, two handlers, two topics, one store.
func TestScopes(t *testing.T) {
	store := rig.NewStore(t)
	var runs atomic.Int64
	fn := func(*message.Message) ([]*message.Message, error) { runs.Add(1); return nil, nil }
	rigs := []*rig.Rig{
		rig.New(t, rig.NewOnce(t, store).Handler(fn)),
		rig.New(t, rig.NewOnce(t, store, func(c *middleware.Config) { c.Namespace = "mail" }).Handler(fn)),
		rig.Named(t, "ship", rig.NewOnce(t, store).Handler(fn)),
	}
	for range 2 {
		for _, r := range rigs {
			r.WantAcked(rig.NewMessage("pay:1", "{}"))
		}
	}
	if runs.Load() != 3 {
		t.Errorf("%d runs, want one for each of 3", runs.Load())
	}
}

func TestKeys(t *testing.T) {
	source := eventkey.Template("pay:{$.id}")
	for name, tt := range map[string]struct {
		cfg     rig.Change
		msg     *message.Message
		acked   bool
		err     string
		wantKey string
	}{
		"its own":              {func(c *middleware.Config) { c.Key = source }, rig.NewMessage("own", `{"id":1}`), true, "", "own"},
		"by the source":        {func(c *middleware.Config) { c.Key = source }, rig.NewMessage("", `{"id":1}`), true, "", "pay:1"},
		"missing field":        {func(c *middleware.Config) { c.Key = source }, rig.NewMessage("", `{}`), false, "$.id", ""},
		"no source":            {func(*middleware.Config) {}, rig.NewMessage("", `{}`), false, "idempotency_key", ""},
		"passes":               {func(c *middleware.Config) { c.PassWithoutKey = true }, rig.NewMessage("", `{}`), true, "", ""},
		"too long":             {func(*middleware.Config) {}, rig.NewMessage(strings.Repeat("k", 2000), `{}`), false, "1024", ""},
		"faulty passes not":    {func(c *middleware.Config) { c.Key, c.PassWithoutKey = source, true }, rig.NewMessage("", `{`), false, "JSON", ""},
		"panics":               {func(c *middleware.Config) { c.Key = panicking }, rig.NewMessage("", `{}`), false, "boom", ""},
		"panic with pass":      {func(c *middleware.Config) { c.Key, c.PassWithoutKey = panicking, true }, rig.NewMessage("", `{}`), false, "boom", ""},
		"fingerprint panics":   {func(c *middleware.Config) { c.Fingerprint = panickingPrint }, rig.NewMessage("k", `{}`), false, "boom", ""},
		"fingerprint complain": {func(c *middleware.Config) { c.Fingerprint = eventkey.JSONOnly("x") }, rig.NewMessage("k", `no json`), false, "fingerprint", ""},
	} {
		t.Run(name, func(t *testing.T) {
			store, runs := rig.NewStore(t), 0
			r := rig.New(t, rig.NewOnce(t, store, tt.cfg).Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }))
			if acked := r.Deliver(tt.msg); acked != tt.acked || (runs == 1) != tt.acked {
				t.Errorf("acked %v after %d runs, want %v", acked, runs, tt.acked)
			}
			if tt.err != "" && (r.Err == nil || !strings.Contains(r.Err.Error(), tt.err)) {
				t.Errorf("error %v does not say %q", r.Err, tt.err)
			}
			if tt.wantKey != "" {
				rig.WantDone(t, store, tt.wantKey)
			}
		})
	}
}

var (
	panicking      = eventkey.Func(func(string, *message.Message) (string, error) { panic("boom") })
	panickingPrint = eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { panic("boom") })
)

func TestOutsideOfARouter(t *testing.T) {
	once := rig.NewOnce(t, rig.NewStore(t))
	if err := once.Consumer(func(*message.Message) error { return nil })(rig.NewMessage("k", "{}")); !errors.Is(err, middleware.ErrNoHandler) {
		t.Errorf("error %v, want ErrNoHandler", err)
	}
	runs := 0
	for range 2 {
		msg := rig.NewMessage("k", "{}")
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
		return middleware.Config{Store: rig.NewStore(t), Namespace: "n", Retention: time.Hour}
	}
	for want, bad := range map[string]rig.Change{
		"Store":                 func(c *middleware.Config) { c.Store = nil },
		"nil *dedupe.Memory":    func(c *middleware.Config) { c.Store = (*dedupe.Memory)(nil) },
		"events a second":       func(c *middleware.Config) { c.Retention = 0 },
		"Retention -1":          func(c *middleware.Config) { c.Retention = -1 },
		"longer than Retention": func(c *middleware.Config) { c.Lease = 2 * time.Hour },
		"shorter than":          func(c *middleware.Config) { c.Lease = time.Millisecond },
		"Lease -1":              func(c *middleware.Config) { c.Lease = -1 },
		"Wait -1":               func(c *middleware.Config) { c.Wait = -1 },
		"Delay":                 func(c *middleware.Config) { c.Delay = -1 },
		"StoreTimeout":          func(c *middleware.Config) { c.StoreTimeout = -1 },
		"MaxOutputBytes":        func(c *middleware.Config) { c.MaxOutputBytes = -1 },
		"Key":                   func(c *middleware.Config) { c.Key = eventkey.Template("{") },
		"Fingerprint":           func(c *middleware.Config) { c.Fingerprint = eventkey.FingerprintFunc(nil) },
	} {
		cfg := good()
		bad(&cfg)
		if _, err := middleware.New(cfg, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	cfg := good()
	cfg.Retention = time.Second // shorter than the default lease
	if _, err := middleware.New(cfg, nil); err != nil {
		t.Errorf("a short retention without a lease: %v", err)
	}
	_, err := middleware.New(middleware.Config{}, nil)
	for _, field := range []string{"Store", "Retention"} {
		if err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("not all faults at once: %v", err)
		}
	}
}
