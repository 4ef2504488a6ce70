package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// A handler that gives its message back without an error has not succeeded: it comes
// again, and the handler runs again.
func TestHandlerGivesItsMessageBack(t *testing.T) {
	for name, giveBack := range map[string]func(*message.Message) error{
		"nacks":  func(msg *message.Message) error { msg.Nack(); return nil },
		"delays": func(msg *message.Message) error { delivery.From(msg.Context()).Delay(time.Minute); return nil },
		"delays, and says retry later": func(msg *message.Message) error {
			delivery.From(msg.Context()).Delay(time.Minute)
			return dedupe.ErrRetryLater
		},
		"rejects": func(msg *message.Message) error { delivery.From(msg.Context()).Reject("not ours", nil); return nil },
	} {
		t.Run(name, func(t *testing.T) {
			store, seen, runs, d := rig.NewStore(t), &rig.Log{}, 0, &fakeDelivery{}
			r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(msg *message.Message) ([]*message.Message, error) {
				if runs++; runs > 1 {
					return nil, nil
				}
				return []*message.Message{rig.NewMessage("", "receipt")}, giveBack(msg)
			}))
			r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
			r.WantPublished(0)
			rig.WantNothing(t, store, "pay:1")
			if r.Err != nil || seen.Count("delayed") != 1 || seen.Count("handled") != 0 {
				t.Errorf("error %v, hooks got %v", r.Err, seen.Events)
			}
			switch name {
			case "nacks":
			case "rejects":
				if !slices.Equal(d.rejected, []string{"not ours"}) {
					t.Errorf("rejected %v", d.rejected)
				}
			default:
				if !slices.Equal(d.delays, []time.Duration{time.Minute}) {
					t.Errorf("delays %v, want the handler's alone", d.delays)
				}
			}
			r.WantAcked(rig.NewMessage("pay:1", "{}"))
			if runs != 2 {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

// What one gives back, the other one around it does not record.
func TestTwoAroundEachOther(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	away := &awayStore{Store: rig.NewStore(t), away: true}
	outer := rig.NewOnce(t, store, func(c *middleware.Config) { c.Namespace = "outer" })
	inner := rig.NewOnce(t, away)
	r := rig.New(t, inner.Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }), outer.Middleware)
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	away.set(false, false)
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// timeout and recoverer do what Watermill's middlewares of these names do.
func timeout(after time.Duration) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			ctx, cancel := context.WithTimeout(msg.Context(), after)
			defer cancel()
			msg.SetContext(ctx)
			return h(msg)
		}
	}
}

func recoverer(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("panic: %v", p)
			}
		}()
		return h(msg)
	}
}

// A Timeout around ours ends its context before the Router publishes, both the first time
// and when recorded messages are published again.
func TestTimeoutDoesNotReachReturnedMessages(t *testing.T) {
	store := rig.NewStore(t)
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{rig.NewMessage("", "receipt")}, nil
	}), timeout(time.Minute))
	r.Out.Fail = 1
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	r.WantAcked(rig.NewMessage("pay:2", "{}"))
	r.WantPublished(2)
}

// A store that hangs for longer than a Timeout around us is no failure of the handler.
func TestTimeoutBeforeTheClaim(t *testing.T) {
	store, poison := &awayStore{Store: rig.NewStore(t), hang: true}, &rig.Published{}
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }),
		poisonQueue(poison), timeout(10*time.Millisecond))
	began := time.Now()
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if r.Err != nil || len(poison.Messages()) != 0 {
		t.Errorf("error %v, %d poisoned", r.Err, len(poison.Messages()))
	}
	if took := time.Since(began); took < 20*time.Millisecond { // and three quarters of Delay, 20 ms
		t.Errorf("given back after %v: a hot loop", took)
	}
}

// What belongs to the handled message alone does not travel with the returned ones.
func TestReturnedMessagesHaveNoDelivery(t *testing.T) {
	d := &fakeDelivery{}
	once := rig.NewOnce(t, rig.NewStore(t))
	r := rig.New(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		m := rig.NewMessage("", "receipt")
		m.SetContext(msg.Context())
		return []*message.Message{m}, nil
	}))
	r.WantAcked(d.on(rig.NewMessage("pay:1", "{}")))
	out := r.WantPublished(1)[0]
	if delivery.From(out.Context()) != nil {
		t.Error("the delivery is on a returned message")
	}
	if _, ok := eventkey.HandledFrom(out.Context()); ok {
		t.Error("what is being handled is on a returned message")
	}
	// Where contexts travel with messages: the same key in the same handler is not nested.
	again := rig.NewMessage("pay:2", "{}")
	again.SetContext(out.Context())
	r.WantAcked(again)
	same := rig.NewMessage("pay:1", "{}")
	same.SetContext(out.Context())
	r.WantAcked(same)
}

// Retry's second try gets the event, not what the first has made of it.
func TestPayloadIsRestoredAfterAFailure(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(msg *message.Message) ([]*message.Message, error) {
		if string(msg.Payload) != "raw" {
			t.Errorf("payload %q", msg.Payload)
		}
		copy(msg.Payload, "RAW")
		switch runs++; runs {
		case 1:
			return nil, errors.New("once")
		case 2:
			panic("twice")
		}
		return []*message.Message{rig.NewMessage("", "receipt")}, nil
	}), retry, recoverer)
	r.Out.Fail = 1
	r.WantNacked(rig.NewMessage("pay:1", "raw"))
	r.WantAcked(rig.NewMessage("pay:1", "raw")) // else a conflict with what was made of it
	r.WantPublished(1)
}

// Another publisher leaves the child key in its own field.
func TestChildKeyFromAnotherPublisher(t *testing.T) {
	r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(msg *message.Message) ([]*message.Message, error) {
		return []*message.Message{msg.Copy()}, nil
	}))
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	passedOn := r.WantPublished(1)[0].Copy()
	key := ""
	second := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(msg *message.Message) ([]*message.Message, error) {
		h, _ := eventkey.HandledFrom(msg.Context())
		key = h.Key
		return nil, nil
	}))
	second.WantAcked(passedOn)
	if want := passedOn.Metadata.Get(eventkey.MetadataChildKey); key != want || key == "" {
		t.Errorf("key %q, want %q", key, want)
	}
}

// A hook that panics before the run does not keep the handler from it.
func TestOnTakeoverPanics(t *testing.T) {
	store := rig.NewStore(t)
	dead := store.Open()
	if _, err := dead.Claim(t.Context(), dedupe.Key{Namespace: "payments", Topic: rig.TopicName, Handler: rig.HandlerName, Event: "pay:1"},
		dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: dedupe.MinLease, Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	panics := true
	once := rig.NewOnce(t, store, func(c *middleware.Config) {
		c.Wait = 5 * time.Second
		c.Hooks = append(c.Hooks, middleware.Hooks{OnTakeover: func(middleware.Event) {
			if panics {
				panics = false
				panic("metrics")
			}
		}})
	})
	runs := 0
	r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }), recoverer)
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if rig.WantDone(t, store, "pay:1"); runs != 1 || panics {
		t.Errorf("%d runs, panicked %v", runs, !panics)
	}
}

// contextStore notes whether the contexts of its last steps had ended.
type contextStore struct {
	dedupe.Store
	late  bool // claims come when nobody waits for them any more
	ended []error
}

func (s *contextStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if s.late {
		<-ctx.Done()
		ctx = context.WithoutCancel(ctx)
	}
	c, err := s.Store.Claim(ctx, k, o)
	return contextClaim{c, s}, err
}

type contextClaim struct {
	dedupe.Claim
	store *contextStore
}

func (c contextClaim) Commit(ctx context.Context, outputs [][]byte) error {
	c.store.ended = append(c.store.ended, ctx.Err())
	return c.Claim.Commit(ctx, outputs)
}

func (c contextClaim) Rollback(ctx context.Context) error {
	c.store.ended = append(c.store.ended, ctx.Err())
	return c.Claim.Rollback(ctx)
}

// A handler that ends after its message's context has ended is recorded, or given up, all
// the same.
func TestStepsAfterTheContextHasEnded(t *testing.T) {
	for name, result := range map[string]error{"success": nil, "failure": errors.New("no funds")} {
		t.Run(name, func(t *testing.T) {
			memory := rig.NewStore(t)
			store := &contextStore{Store: memory}
			once := rig.NewOnce(t, store)
			msg := rig.NewMessage("pay:1", "{}")
			ctx, cancel := context.WithCancel(t.Context())
			_, _ = once.Run(ctx, msg, rig.HandlerName, func(context.Context) ([]*message.Message, error) {
				cancel()
				return nil, result
			})
			if !slices.Equal(store.ended, []error{nil}) {
				t.Errorf("contexts of the steps: %v, want one that has not ended", store.ended)
			}
		})
	}
}

// A claim that comes when nobody waits for it any more is given up.
func TestClaimThatComesTooLate(t *testing.T) {
	t.Parallel()
	memory := rig.NewStore(t)
	store := &contextStore{Store: memory, late: true}
	r := rig.New(t, rig.NewOnce(t, store, func(c *middleware.Config) { c.StoreTimeout = 2 * time.Second }).Handler(
		func(*message.Message) ([]*message.Message, error) { t.Error("it ran"); return nil, nil }))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	rig.WantNothing(t, memory, "pay:1")
	if !slices.Equal(store.ended, []error{nil}) {
		t.Errorf("contexts of the steps: %v, want that of one rollback", store.ended)
	}
}
