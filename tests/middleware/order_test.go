package middleware_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// documented is the chain of docs/handling.md, the outermost first.
func documented(poison message.Publisher) []message.HandlerMiddleware {
	queue, err := wmiddleware.PoisonQueueWithFilter(poison, "poison", middleware.ShouldPoison)
	if err != nil {
		panic(err)
	}
	return []message.HandlerMiddleware{
		wmiddleware.Recoverer,
		wmiddleware.CorrelationID,
		queue,
		wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, ShouldRetry: func(p wmiddleware.RetryParams) bool {
			return middleware.ShouldRetry(p.Err)
		}}.Middleware,
	}
}

func TestDocumentedOrder(t *testing.T) {
	store, poison, runs := rig.NewStore(t), &rig.Published{}, 0
	broken := true
	fn := rig.NewOnce(t, store).Handler(func(msg *message.Message) ([]*message.Message, error) {
		runs++
		if msg.Metadata.Get("fails") != "" && broken {
			if runs%2 == 0 {
				panic("boom") // Recoverer is outermost: a panic goes past Retry and PoisonQueue
			}
			return nil, errors.New("no funds")
		}
		return []*message.Message{rig.NewMessage("", "receipt")}, nil
	})
	// A panic that Retry should see needs a Recoverer inside of it.
	around := append(documented(poison), wmiddleware.Recoverer)
	r := rig.New(t, fn, around...)

	good := rig.NewMessage("pay:1", "{}")
	wmiddleware.SetCorrelationID("c1", good)
	r.WantAcked(good)
	if out := r.WantPublished(1); wmiddleware.MessageCorrelationID(out[0]) != "c1" {
		t.Errorf("no correlation ID on %v", out[0].Metadata)
	}

	// Two retries, then poisoned and acknowledged; nothing is recorded, so what the
	// Requeuer sends back is handled.
	bad := rig.NewMessage("pay:2", "{}")
	bad.Metadata.Set("fails", "yes")
	r.WantAcked(bad)
	if runs != 1+3 || len(poison.Messages()) != 1 {
		t.Fatalf("%d runs, %d poisoned", runs, len(poison.Messages()))
	}
	rig.WantNothing(t, store, "pay:2")
	moved := poison.Messages()[0]
	if moved.Metadata.Get(eventkey.MetadataKey) != "pay:2" || moved.Metadata.Get("reason_poisoned") == "" {
		t.Errorf("poisoned with %v", moved.Metadata)
	}
	broken = false
	again := moved.Copy()
	again.Metadata.Set("_watermill_requeuer_retries", "1")
	r.WantAcked(again)
	rig.WantDone(t, store, "pay:2")
	r.WantPublished(2)
	r.WantAcked(moved.Copy())
	if runs != 5 {
		t.Errorf("%d runs", runs)
	}
}

// The delay asked for by DelayOnError stands on the message after we have passed it on.
func TestDelayOnErrorAround(t *testing.T) {
	r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no") }),
		(&wmiddleware.DelayOnError{InitialInterval: time.Second}).Middleware)
	msg := rig.NewMessage("pay:1", "{}")
	r.WantNacked(msg)
	if msg.Metadata.Get(delay.DelayedForKey) == "" {
		t.Errorf("no delay on %v", msg.Metadata)
	}
	// A delay of ours is none of its business.
	store := rig.NewStore(t)
	_ = store.Close()
	r = rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }),
		(&wmiddleware.DelayOnError{InitialInterval: time.Second}).Middleware)
	msg = rig.NewMessage("pay:1", "{}")
	r.WantNacked(msg)
	if got := msg.Metadata.Get(delay.DelayedForKey); got != "" {
		t.Errorf("DelayOnError took a delay for an error: %v", got)
	}
}

// Wrong orders, and what each does. None records a poisoned message as done.
func TestWrongOrders(t *testing.T) {
	failing := func(runs *int) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) { *runs++; return nil, errors.New("no funds") }
	}
	queueInside := func(t *testing.T, poison *rig.Published) message.HandlerMiddleware {
		q, err := wmiddleware.PoisonQueue(poison, "poison")
		if err != nil {
			t.Fatal(err)
		}
		return q
	}

	t.Run("outside PoisonQueue", func(t *testing.T) {
		store, poison, runs := rig.NewStore(t), &rig.Published{}, 0
		once := rig.NewOnce(t, store)
		r := rig.New(t, failing(&runs), once.Middleware, queueInside(t, poison))
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		if len(poison.Messages()) != 1 {
			t.Fatalf("%d poisoned", len(poison.Messages()))
		}
		rig.WantNothing(t, store, "pay:1")
		// It comes back with all the marks, and fails again for the same reason.
		again := poison.Messages()[0].Copy()
		again.Metadata.Set("_watermill_requeuer_retries", "1")
		marks := again.Metadata.Get("subscriber_poisoned")
		r.WantAcked(again)
		if runs != 2 || len(poison.Messages()) != 2 {
			t.Errorf("%d runs, %d poisoned", runs, len(poison.Messages()))
		}
		rig.WantNothing(t, store, "pay:1")
		if got := again.Metadata.Get("subscriber_poisoned"); got != marks {
			t.Errorf("marks changed from %q to %q", marks, got)
		}
	})

	t.Run("outside Retry", func(t *testing.T) {
		// One claim is held over all retries: right, but the lease is renewed for as
		// long as they take, and the run is one.
		store, runs := rig.NewStore(t), 0
		r := rig.New(t, func(*message.Message) ([]*message.Message, error) {
			if runs++; runs < 3 {
				return nil, errors.New("no funds")
			}
			return nil, nil
		}, rig.NewOnce(t, store).Middleware, wmiddleware.Retry{MaxRetries: 5, InitialInterval: time.Millisecond}.Middleware)
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		if runs != 3 {
			t.Errorf("%d runs", runs)
		}
	})

	t.Run("outside Retry, publishing by itself", func(t *testing.T) {
		// The tries share one run, and what one of them has published has the child key.
		pub := newPublisher(t, testserver.Shared(t, testserver.Redis86).Client())
		topic, tries := testserver.Topic(t), 0
		r := rig.New(t, func(msg *message.Message) ([]*message.Message, error) {
			out := rig.NewMessage("", "paid")
			out.SetContext(msg.Context())
			if err := pub.Publish(topic, out); err != nil {
				return nil, err
			}
			if tries++; tries < 3 {
				return nil, errors.New("after the publish")
			}
			return nil, nil
		}, rig.NewOnce(t, rig.NewStore(t)).Middleware, wmiddleware.Retry{MaxRetries: 5, InitialInterval: time.Millisecond}.Middleware)
		for n := 1; n <= 3; n++ {
			if n < 3 {
				r.WantNacked(rig.NewMessage("pay:1", "{}"))
			} else {
				r.WantAcked(rig.NewMessage("pay:1", "{}"))
			}
			if tries != n || n < 3 && !errors.Is(r.Err, eventkey.ErrNoKey) {
				t.Errorf("delivery %d: %d tries got past the publish, error %v", n, tries, r.Err)
			}
		}
	})

	t.Run("on a poison topic that is not named", func(t *testing.T) {
		// The second poisoning is taken for the event that was seen before.
		runs := 0
		r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }))
		for round := range 2 {
			msg := rig.NewMessage("pay:1", "{}")
			msg.Metadata.Set("reason_poisoned", "no funds")
			msg.Metadata.Set("topic_poisoned", "elsewhere")
			msg.Metadata.Set("_watermill_requeuer_retries", fmt.Sprint(round))
			r.WantAcked(msg)
		}
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
	})

	t.Run("around an IgnoreErrors", func(t *testing.T) {
		// An error that is swallowed inside is a success.
		store, runs := rig.NewStore(t), 0
		broken := errors.New("no funds")
		r := rig.New(t, func(*message.Message) ([]*message.Message, error) { runs++; return nil, broken },
			rig.NewOnce(t, store).Middleware, wmiddleware.NewIgnoreErrors([]error{broken}).Middleware)
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		rig.WantDone(t, store, "pay:1")
	})

	t.Run("inside InstantAck", func(t *testing.T) {
		// Acknowledged first: a failure, or a message that is in progress, is lost with
		// the error in the log as its only trace.
		store, runs := rig.NewStore(t), 0
		r := rig.New(t, rig.NewOnce(t, store).Handler(failing(&runs)), wmiddleware.InstantAck)
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		if r.Err == nil {
			t.Error("not even an error")
		}
		rig.WantNothing(t, store, "pay:1")
	})

	t.Run("inside Timeout", func(t *testing.T) {
		// It leaves a context on the message that has ended: Retry's second try takes that
		// for a shutdown, and a PoisonQueue's publisher that heeds contexts refuses it.
		for reset, want := range map[bool]int{false: 1, true: 3} {
			store, poison, runs := rig.NewStore(t), &rig.Published{}, 0
			r := rig.New(t, rig.NewOnce(t, store).Handler(failing(&runs)), queueInside(t, poison),
				wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond, ResetContextOnRetry: reset}.Middleware,
				wmiddleware.Timeout(time.Minute))
			r.WantNacked(rig.NewMessage("pay:1", "{}"))
			if runs != want || len(poison.Messages()) != 0 {
				t.Errorf("reset %v: %d runs, %d poisoned", reset, runs, len(poison.Messages()))
			}
			rig.WantNothing(t, store, "pay:1")
		}
	})

	t.Run("inside Deduplicator", func(t *testing.T) {
		// Watermill's records the key before the handler: the redelivery is acked unseen.
		store, runs := rig.NewStore(t), 0
		repository, err := dedupe.Repository(store, dedupe.RepositoryConfig{Namespace: "deduplicator", Retention: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		deduplicator := &wmiddleware.Deduplicator{KeyFactory: wmiddleware.NewMessageHasherSHA256(1 << 20), Repository: repository, Timeout: time.Second}
		r := rig.New(t, rig.NewOnce(t, store).Handler(failing(&runs)), deduplicator.Middleware)
		r.WantNacked(rig.NewMessage("pay:1", "{}"))
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		rig.WantNothing(t, store, "pay:1")
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
	})

	t.Run("wrapped and as a middleware", func(t *testing.T) {
		store, runs := rig.NewStore(t), 0
		once := rig.NewOnce(t, store)
		r := rig.New(t, once.Handler(failing(&runs)), once.Middleware)
		r.WantNacked(rig.NewMessage("pay:1", "{}"))
		if !errors.Is(r.Err, middleware.ErrNested) || runs != 0 {
			t.Errorf("error %v after %d runs", r.Err, runs)
		}
	})
}

// Duplicates and failures in front of the handler, and behind: the counts are exact.
func TestDuplicatorAndRandomFail(t *testing.T) {
	for name, around := range map[string][]message.HandlerMiddleware{
		"around": {wmiddleware.Duplicator, wmiddleware.RandomFail(0.2), wmiddleware.RandomPanic(0.2)},
	} {
		t.Run(name, func(t *testing.T) {
			const events = 200
			store := rig.NewStore(t)
			var runs [events]atomic.Int64
			inner := wmiddleware.RandomFail(0.2)(func(msg *message.Message) ([]*message.Message, error) {
				runs[msg.Payload[0]].Add(1)
				return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
			})
			r := rig.New(t, rig.NewOnce(t, store).Handler(inner), append([]message.HandlerMiddleware{wmiddleware.Recoverer}, around...)...)
			for n := range events {
				for msg := rig.NewMessage("pay:"+string(rune('a'+n)), string([]byte{byte(n)})); !r.Deliver(msg); {
					msg = rig.NewMessage("pay:"+string(rune('a'+n)), string([]byte{byte(n)}))
				}
			}
			seen := make(map[byte]map[string]bool)
			for _, m := range r.Out.Messages() {
				if seen[m.Payload[0]] == nil {
					seen[m.Payload[0]] = make(map[string]bool)
				}
				seen[m.Payload[0]][m.UUID] = true
			}
			for n := range events {
				if got := runs[n].Load(); got != 1 {
					t.Errorf("event %d: %d successful runs", n, got)
				}
				// Duplicator returns them twice; our publisher appends equal keys once.
				if len(seen[byte(n)]) != 1 {
					t.Errorf("event %d: %d different messages published", n, len(seen[byte(n)]))
				}
			}
		})
	}
}
