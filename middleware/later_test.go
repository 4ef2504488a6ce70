package middleware_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// awayStore is one that can be unavailable, or hang.
type awayStore struct {
	dedupe.Store
	mu     sync.Mutex
	away   bool
	hang   bool
	claims int
	commit error // of the next commits
}

func (s *awayStore) set(away, hang bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.away, s.hang = away, hang
}

func (s *awayStore) looks() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.claims
}

func (s *awayStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	s.mu.Lock()
	s.claims++
	away, hang, commit := s.away, s.hang, s.commit
	s.mu.Unlock()
	if hang {
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if away {
		return nil, errors.New("connection refused")
	}
	c, err := s.Store.Claim(ctx, k, o)
	if err == nil && commit != nil {
		c = failingCommit{c, commit}
	}
	return c, err
}

type failingCommit struct {
	dedupe.Claim
	err error
}

func (c failingCommit) Commit(context.Context, [][]byte) error {
	_ = c.Rollback(context.Background()) // ends its lease
	return c.err
}

// fakeDelivery is what our subscriber puts onto the context.
type fakeDelivery struct {
	info     delivery.Info
	mu       sync.Mutex
	delays   []time.Duration
	rejected []string
	failed   []error
}

func (d *fakeDelivery) Info() delivery.Info {
	d.info.Stream = rig.TopicName
	return d.info
}
func (d *fakeDelivery) Delay(after time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.delays = append(d.delays, after)
}
func (d *fakeDelivery) Reject(reason string, _ error) { d.rejected = append(d.rejected, reason) }
func (d *fakeDelivery) Failed(err error)              { d.failed = append(d.failed, err) }

func (d *fakeDelivery) on(msg *message.Message) *message.Message {
	msg.SetContext(delivery.With(msg.Context(), d))
	return msg
}

// chain is what a careful service has around its handlers.
func chain(poison *rig.Published) []message.HandlerMiddleware {
	return []message.HandlerMiddleware{poisonQueue(poison), retry}
}

// Nothing is acknowledged, nothing poisoned, nothing repeated on the spot.
func TestStoreDown(t *testing.T) {
	for name, setDown := range map[string]func(*awayStore){
		"refuses": func(s *awayStore) { s.set(true, false) },
		"hangs":   func(s *awayStore) { s.set(false, true) },
	} {
		t.Run(name, func(t *testing.T) {
			memory := rig.NewStore(t)
			store, poison, seen, runs := &awayStore{Store: memory}, &rig.Published{}, &rig.Log{}, 0
			once := rig.NewOnce(t, store, seen.Into, func(c *middleware.Config) { c.StoreTimeout = 30 * time.Millisecond })
			r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }), chain(poison)...)
			setDown(store)
			for n := range 5 {
				d := &fakeDelivery{}
				r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
				if r.Err != nil {
					t.Errorf("it travels as an error: %v", r.Err)
				}
				if len(d.delays) != 1 || len(d.failed) != 0 || len(d.rejected) != 0 {
					t.Errorf("delivery %+v, want one delay", d)
				}
				if store.looks() != n+1 {
					t.Errorf("%d looks at the store for %d deliveries", store.looks(), n+1)
				}
			}
			if runs != 0 || len(poison.Messages()) != 0 {
				t.Errorf("%d runs, %d poisoned", runs, len(poison.Messages()))
			}
			if ev := seen.Get("delayed"); !errors.Is(ev.Err, dedupe.ErrRetryLater) || ev.After <= 0 || seen.Count("failed") != 0 {
				t.Errorf("hooks got %v, %+v", seen.Events, ev)
			}
			// It is back, and another process has more patience.
			patient := rig.NewOnce(t, memory)
			r = rig.New(t, patient.Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }), chain(poison)...)
			r.WantAcked(rig.NewMessage("pay:1", "{}"))
			if runs != 1 {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

// Nobody knows whether it is recorded: not an error, and the next delivery decides.
func TestCommitWithoutAnAnswer(t *testing.T) {
	memory := rig.NewStore(t)
	store, poison, runs := &awayStore{Store: memory, commit: errors.New("i/o timeout")}, &rig.Published{}, 0
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		runs++
		return []*message.Message{rig.NewMessage("", "out")}, nil
	}), chain(poison)...)
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if r.Err != nil || runs != 1 || len(poison.Messages()) != 0 {
		t.Errorf("error %v, %d runs, %d poisoned", r.Err, runs, len(poison.Messages()))
	}
	r.WantPublished(0)
	store.mu.Lock()
	store.commit = nil
	store.mu.Unlock()
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	r.WantPublished(1)
}

// Watermill's subscribers redeliver at once what is nacked. A duplicate of an event whose
// run takes a minute must not look at the store all the time.
func TestDuplicateWhileInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := rig.NewStore(t)
		store, poison, seen, runs := &awayStore{Store: memory}, &rig.Published{}, &rig.Log{}, 0
		once := rig.NewOnce(t, store, seen.Into, func(c *middleware.Config) { c.Delay, c.Lease, c.Wait = 2*time.Second, 10*time.Second, 0 })
		fn := once.Handler(func(*message.Message) ([]*message.Message, error) {
			runs++
			time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock; six leases
			return nil, nil
		})
		slow, other := rig.New(t, fn, chain(poison)...), rig.New(t, fn, chain(poison)...)
		first := rig.NewMessage("pay:1", "{}")
		slow.Hand(first)
		synctest.Wait()
		redeliveries := 0
		for !other.Deliver(rig.NewMessage("pay:1", "{}")) { // as gochannel or redisstream would
			redeliveries++
			if other.Err != nil {
				t.Fatalf("it travels as an error: %v", other.Err)
			}
		}
		if slow.Wait(); slow.Err != nil {
			t.Error(slow.Err)
		}
		if runs != 1 || len(poison.Messages()) != 0 || seen.Count("failed") != 0 || seen.Count("skipped") != 1 {
			t.Errorf("%d runs, %d poisoned, hooks got %v", runs, len(poison.Messages()), seen.Events)
		}
		if redeliveries < 5 || redeliveries > 45 {
			t.Errorf("%d redeliveries in a minute, at a delay of 2 s", redeliveries)
		}
		if store.looks() > redeliveries+2 {
			t.Errorf("%d looks for %d deliveries", store.looks(), redeliveries+2)
		}
	})
}

// With our subscriber the message does not stay in the handler's place meanwhile.
func TestDelayByOurSubscriber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := rig.NewStore(t)
		once := rig.NewOnce(t, store, func(c *middleware.Config) { c.Delay = 2 * time.Second })
		held, err := store.Claim(t.Context(), dedupe.Key{Namespace: "payments", Topic: rig.TopicName, Handler: rig.HandlerName, Event: "pay:1"},
			dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Minute, Retention: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
		began := time.Now()
		d := &fakeDelivery{}
		r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
		if took := time.Since(began); took != 0 {
			t.Errorf("the handler's place was taken for %v", took)
		}
		if len(d.delays) != 1 || d.delays[0] < 1500*time.Millisecond || d.delays[0] > 2500*time.Millisecond {
			t.Errorf("delays %v, want about 2 s", d.delays)
		}
		if err := held.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// InstantAck: the message can't be given back, so the error is all that is left.
func TestInProgressUnderInstantAck(t *testing.T) {
	store := &awayStore{Store: rig.NewStore(t), away: true}
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }), instantAck)
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if !errors.Is(r.Err, dedupe.ErrRetryLater) {
		t.Errorf("error %v, want ErrRetryLater", r.Err)
	}
}

func TestRunSaysRetryLater(t *testing.T) {
	store := &awayStore{Store: rig.NewStore(t), away: true}
	once, d := rig.NewOnce(t, store), &fakeDelivery{}
	msg := d.on(rig.NewMessage("pay:1", "{}"))
	_, err := once.Run(msg.Context(), msg, "h", func(context.Context) ([]*message.Message, error) { return nil, nil })
	if !errors.Is(err, dedupe.ErrRetryLater) || len(d.delays) != 1 {
		t.Errorf("error %v, delivery %+v", err, d)
	}
	select {
	case <-msg.Nacked():
		t.Error("it settled the message, which is the loop's to do")
	default:
	}
}

// A handler may say so itself.
func TestHandlerSaysRetryLater(t *testing.T) {
	store, poison, d := rig.NewStore(t), &rig.Published{}, &fakeDelivery{}
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) { return nil, dedupe.ErrRetryLater }), chain(poison)...)
	r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
	if r.Err != nil || len(d.delays) != 1 || len(poison.Messages()) != 0 {
		t.Errorf("error %v, delivery %+v, %d poisoned", r.Err, d, len(poison.Messages()))
	}
	rig.WantNothing(t, store, "pay:1")
}

func TestConflict(t *testing.T) {
	for _, ours := range []bool{true, false} {
		store, poison, seen, runs := rig.NewStore(t), &rig.Published{}, &rig.Log{}, 0
		r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }))
		r.WantAcked(rig.NewMessage("pay:1", `{"amount":1}`))
		msg, d := rig.NewMessage("pay:1", `{"amount":2}`), &fakeDelivery{}
		if ours {
			d.on(msg)
		}
		r.WantNacked(msg)
		if ours && (r.Err != nil || len(d.rejected) != 1 || d.rejected[0] != "conflict") {
			t.Errorf("error %v, delivery %+v, want a dead letter and no error", r.Err, d)
		}
		if !ours && (!errors.Is(r.Err, dedupe.ErrConflict) || !middleware.IsPermanent(r.Err)) {
			t.Errorf("error %v, want a permanent ErrConflict", r.Err)
		}
		if runs != 1 || seen.Count("conflict") != 1 || seen.Get("conflict").CommittedAt.IsZero() || len(poison.Messages()) != 0 {
			t.Errorf("%d runs, hooks got %v", runs, seen.Events)
		}
	}
}

func TestOutputsTooLarge(t *testing.T) {
	for _, ours := range []bool{true, false} {
		store, runs := rig.NewStore(t), 0
		once := rig.NewOnce(t, store, func(c *middleware.Config) { c.MaxOutputBytes = 100 })
		r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) {
			runs++
			return []*message.Message{rig.NewMessage("", string(make([]byte, 101)))}, nil
		}))
		msg, d := rig.NewMessage("pay:1", "{}"), &fakeDelivery{}
		if ours {
			d.on(msg)
		}
		r.WantNacked(msg)
		r.WantPublished(0)
		rig.WantNothing(t, store, "pay:1")
		if ours && (r.Err != nil || len(d.rejected) != 1) {
			t.Errorf("error %v, delivery %+v, want a dead letter and no error", r.Err, d)
		}
		if !ours && (!errors.Is(r.Err, middleware.ErrOutputsTooLarge) || !middleware.IsPermanent(r.Err)) {
			t.Errorf("error %v, want a permanent ErrOutputsTooLarge", r.Err)
		}
	}
}

func TestFailureIsNotedOnTheDelivery(t *testing.T) {
	d, broken := &fakeDelivery{}, errors.New("no funds")
	r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(*message.Message) ([]*message.Message, error) { return nil, broken }))
	r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
	if len(d.failed) != 1 || !errors.Is(d.failed[0], broken) || len(d.delays) != 0 || !errors.Is(r.Err, broken) {
		t.Errorf("error %v, delivery %+v", r.Err, d)
	}
}

// The process is cut off, or frozen beyond its lease: the handler's context ends with
// the cause, and its result is refused.
func TestLeaseLost(t *testing.T) {
	for _, result := range []error{nil, errors.New("query: interrupted")} {
		store, poison, seen := rig.NewStore(t), &rig.Published{}, &rig.Log{}
		handle := store.Open()
		var cause error
		r := rig.New(t, rig.NewOnce(t, handle, seen.Into).Handler(func(msg *message.Message) ([]*message.Message, error) {
			_ = handle.Close()
			<-msg.Context().Done()
			cause = context.Cause(msg.Context())
			return []*message.Message{rig.NewMessage("", "refused")}, result
		}), chain(poison)...)
		r.WantNacked(rig.NewMessage("pay:1", "{}"))
		if !errors.Is(cause, dedupe.ErrLeaseLost) {
			t.Errorf("cause %v, want ErrLeaseLost", cause)
		}
		if r.Err != nil || len(poison.Messages()) != 0 || seen.Count("lease lost") != 1 || seen.Count("failed") != 0 {
			t.Errorf("error %v, %d poisoned, hooks got %v", r.Err, len(poison.Messages()), seen.Events)
		}
		r.WantPublished(0)
		if _, err := rig.Lookup(t, store, "pay:1"); err == nil {
			rec, _ := rig.Lookup(t, store, "pay:1")
			if rec.State == dedupe.StateDone {
				t.Error("the result of a lost claim is recorded")
			}
		}
	}
}

// The store refuses the record though the handler did not learn it in time.
func TestCommitRefused(t *testing.T) {
	memory := rig.NewStore(t)
	store, seen := &awayStore{Store: memory, commit: dedupe.ErrLeaseLost}, &rig.Log{}
	r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{rig.NewMessage("", "refused")}, nil
	}))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if r.Err != nil || seen.Count("lease lost") != 1 || seen.Count("handled") != 0 {
		t.Errorf("error %v, hooks got %v", r.Err, seen.Events)
	}
	r.WantPublished(0)
	rig.WantNothing(t, memory, "pay:1")
}

// The run's own transaction has failed: that is the handler's failure, not an outage.
func TestCommitAborted(t *testing.T) {
	memory := rig.NewStore(t)
	store, seen, d := &awayStore{Store: memory, commit: dedupe.ErrAborted}, &rig.Log{}, &fakeDelivery{}
	r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
	r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
	if !errors.Is(r.Err, dedupe.ErrAborted) || seen.Count("failed") != 1 || len(d.delays) != 0 || len(d.failed) != 1 {
		t.Errorf("error %v, hooks got %v, delivery %+v", r.Err, seen.Events, d)
	}
}

// The store can't take the record, or this user may not make it: no outage to wait for,
// or the handler would run again and again.
func TestCommitRefusedForGood(t *testing.T) {
	for _, fault := range []error{dedupe.ErrTooLarge, dedupe.ErrRefused} {
		for _, ours := range []bool{true, false} {
			memory := rig.NewStore(t)
			store, seen, d := &awayStore{Store: memory, commit: fault}, &rig.Log{}, &fakeDelivery{}
			r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
			msg := rig.NewMessage("pay:1", "{}")
			if ours {
				d.on(msg)
			}
			r.WantNacked(msg)
			if seen.Count("failed") != 1 || seen.Count("delayed") != 0 || len(d.delays) != 0 {
				t.Errorf("%v: hooks got %v, delivery %+v", fault, seen.Events, d)
			}
			if rejected := ours && errors.Is(fault, dedupe.ErrTooLarge); rejected != (len(d.rejected) == 1) || rejected != (r.Err == nil) {
				t.Errorf("%v: rejected %v, error %v", fault, d.rejected, r.Err)
			}
			if permanent := errors.Is(fault, dedupe.ErrTooLarge); r.Err != nil && middleware.IsPermanent(r.Err) != permanent {
				t.Errorf("%v is permanent: %v", r.Err, !permanent)
			}
			rig.WantNothing(t, memory, "pay:1")
		}
	}
}

func TestTakeoverIsReported(t *testing.T) {
	store, seen := rig.NewStore(t), &rig.Log{}
	dead := store.Open()
	if _, err := dead.Claim(t.Context(), dedupe.Key{Namespace: "payments", Topic: rig.TopicName, Handler: rig.HandlerName, Event: "pay:1"},
		dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: dedupe.MinLease, Retention: time.Hour}); err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	r := rig.New(t, rig.NewOnce(t, store, seen.Into, func(c *middleware.Config) { c.Wait = 5 * time.Second }).Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if seen.Count("take over") != 1 {
		t.Errorf("hooks got %v", seen.Events)
	}
}
