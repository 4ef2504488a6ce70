package metrics_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storetest"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
)

func memory(t testing.TB) *dedupe.Memory {
	t.Helper()
	s, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// A wrapped store passes what the store itself passes.
func TestWrappedStoreConforms(t *testing.T) {
	m, shared := newMetrics(t, metrics.Config{}), memory(t)
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) dedupe.Store {
			s := m.Store("records", shared.Open())
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			return s
		},
		Lease: time.Second,
	})
	all := scrape(t, m)
	for _, series := range []string{
		`store_steps_total{outcome="claimed",step="claim",store="records"}`, `store_steps_total{outcome="ok",step="commit",store="records"}`,
		`store_steps_total{outcome="lease_lost",step="commit",store="records"}`, `store_step_duration_seconds_count{step="settle",store="records"}`,
	} {
		if all[series] == 0 {
			t.Errorf("%s is 0", series)
		}
	}
}

// scripted is a store whose claims end as told.
type scripted struct {
	dedupe.Store
	claim dedupe.Claim
	err   error
}

func (s *scripted) Claim(context.Context, dedupe.Key, dedupe.ClaimOptions) (dedupe.Claim, error) {
	return s.claim, s.err
}

type claim struct {
	state dedupe.State
	ctx   context.Context //nolint:containedctx // as in the interface
	err   error
}

func (c *claim) State() dedupe.State                    { return c.state }
func (c *claim) Info() dedupe.ClaimInfo                 { return dedupe.ClaimInfo{} }
func (c *claim) Context() context.Context               { return c.ctx }
func (c *claim) Outputs() [][]byte                      { return nil }
func (c *claim) Commit(context.Context, [][]byte) error { return c.err }
func (c *claim) Rollback(context.Context) error         { return c.err }
func (c *claim) Settle(context.Context) error           { return c.err }

// Each step is counted by what came of it, and its error goes through as it is.
func TestStepsOfAStore(t *testing.T) {
	type key struct{}
	m, s := newMetrics(t, metrics.Config{}), &scripted{}
	store := m.Store("records", s)
	ask := func(ctx context.Context, c dedupe.Claim, err error) dedupe.Claim {
		t.Helper()
		s.claim, s.err = c, err
		got, gotErr := store.Claim(ctx, dedupe.Key{}, dedupe.ClaimOptions{})
		if !errors.Is(gotErr, err) {
			t.Errorf("error %v, want %v", gotErr, err)
		}
		return got
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for _, err := range []error{
		dedupe.ErrRefused, dedupe.ErrFull, dedupe.ErrClosed, dedupe.ErrCorrupt, dedupe.ErrInvalid, dedupe.ErrTooLarge, errors.New("no route"),
	} {
		if c := ask(t.Context(), nil, err); c != nil {
			t.Errorf("%v: a claim", err)
		}
	}
	ask(ended, nil, context.Canceled)
	for _, state := range []dedupe.State{dedupe.StateDone, dedupe.StateInProgress, dedupe.StateConflict} {
		_ = ask(t.Context(), &claim{state: state}, nil).Rollback(t.Context()) // no step
	}
	mine := &claim{state: dedupe.StateClaimed, ctx: context.WithValue(t.Context(), key{}, "the transaction")}
	c := ask(t.Context(), mine, nil)
	if c.Context().Value(key{}) != "the transaction" {
		t.Error("the context of the claim is another one")
	}
	for _, err := range []error{nil, dedupe.ErrLeaseLost, dedupe.ErrAborted, dedupe.ErrTooLarge, dedupe.ErrRefused, errors.New("no route")} {
		mine.err = err
		for _, got := range []error{c.Commit(t.Context(), nil), c.Rollback(t.Context()), c.Settle(t.Context())} {
			if !errors.Is(got, err) {
				t.Errorf("error %v, want %v", got, err)
			}
		}
	}
	scrape(t, m).want(t, scraped{
		`store_steps_total{outcome="refused",step="claim",store="records"}`:      1,
		`store_steps_total{outcome="full",step="claim",store="records"}`:         1,
		`store_steps_total{outcome="closed",step="claim",store="records"}`:       1,
		`store_steps_total{outcome="corrupt",step="claim",store="records"}`:      1,
		`store_steps_total{outcome="invalid",step="claim",store="records"}`:      1,
		`store_steps_total{outcome="unavailable",step="claim",store="records"}`:  2, // a claim can't be too large
		`store_steps_total{outcome="interrupted",step="claim",store="records"}`:  1,
		`store_steps_total{outcome="claimed",step="claim",store="records"}`:      1,
		`store_steps_total{outcome="done",step="claim",store="records"}`:         1,
		`store_steps_total{outcome="in_progress",step="claim",store="records"}`:  1,
		`store_steps_total{outcome="conflict",step="claim",store="records"}`:     1,
		`store_step_duration_seconds_count{step="claim",store="records"}`:        12,
		`store_steps_total{outcome="ok",step="commit",store="records"}`:          1,
		`store_steps_total{outcome="lease_lost",step="commit",store="records"}`:  1,
		`store_steps_total{outcome="aborted",step="commit",store="records"}`:     1,
		`store_steps_total{outcome="too_large",step="commit",store="records"}`:   1,
		`store_steps_total{outcome="refused",step="commit",store="records"}`:     1,
		`store_step_duration_seconds_count{step="rollback",store="records"}`:     6,
		`store_steps_total{outcome="unavailable",step="settle",store="records"}`: 5,
	})
}

type checked struct{ dedupe.Store }

func (checked) Check(context.Context) ([]string, error) { return []string{"seen"}, nil }

type checkedAdmin struct {
	checked
	dedupe.Admin
}

// What a store can do besides is visible through the wrapper, and nothing that it can't do.
func TestOptionalInterfacesStayVisible(t *testing.T) {
	m, mem := newMetrics(t, metrics.Config{}), memory(t)
	type plain struct{ dedupe.Store }
	type checker interface {
		Check(context.Context) ([]string, error)
	}
	for name, c := range map[string]struct {
		store                dedupe.Store
		hasAdmin, hasChecked bool
	}{
		"plain": {plain{mem}, false, false}, "admin": {mem, true, false}, "check": {checked{mem}, false, true}, "both": {checkedAdmin{checked{mem}, mem}, true, true},
	} {
		wrapped := m.Store(name, c.store)
		_, isAdmin := wrapped.(dedupe.Admin)
		check, hasCheck := wrapped.(checker)
		if isAdmin != c.hasAdmin || hasCheck != c.hasChecked {
			t.Errorf("%s: Admin %v, Check %v", name, isAdmin, hasCheck)
		}
		if hasCheck {
			if warnings, err := check.Check(t.Context()); len(warnings) != 1 || err != nil {
				t.Errorf("%s: Check gives %v, %v", name, warnings, err)
			}
		}
		if dedupe.Unwrap(wrapped) != c.store {
			t.Errorf("%s: unwrapped is %T", name, dedupe.Unwrap(wrapped))
		}
	}
	if s := m.Store("nothing", nil); s != nil {
		t.Errorf("nil became %T", s)
	}
	if s := m.Store("nothing", (*dedupe.Memory)(nil)); s != dedupe.Store((*dedupe.Memory)(nil)) {
		t.Errorf("a nil *Memory became %T", s)
	}
}

// The middleware with a wrapped store: an event that another handles, and a store that is away,
// are told apart.
func TestWhyMessagesWait(t *testing.T) {
	m, s := newMetrics(t, metrics.Config{}), &scripted{}
	once, err := middleware.New(middleware.Config{
		Store: m.Store("records", s), Namespace: "billing", Retention: time.Hour, Wait: middleware.NoWait, Delay: time.Millisecond,
		Hooks: []middleware.Hooks{m.OnceHooks()},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	run := func(c dedupe.Claim, err error) {
		t.Helper()
		s.claim, s.err = c, err
		msg := message.NewMessage("1", nil)
		msg.Metadata.Set(eventkey.MetadataKey, "pay:1")
		_, got := once.Run(t.Context(), msg, "charge", func(context.Context) ([]*message.Message, error) { return nil, nil })
		if !errors.Is(got, dedupe.ErrRetryLater) {
			t.Errorf("error %v", got)
		}
	}
	run(&claim{state: dedupe.StateInProgress}, nil)
	run(nil, errors.New("no route"))
	run(&claim{state: dedupe.StateClaimed, ctx: t.Context(), err: errors.New("no route")}, nil)
	if err := once.Close(t.Context()); err != nil {
		t.Error(err)
	}
	scrape(t, m).want(t, scraped{
		`messages_total{handler="charge",outcome="in_progress",topic=""}`:       1,
		`messages_total{handler="charge",outcome="store_unavailable",topic=""}`: 2,
		`messages_total{handler="charge",outcome="delayed",topic=""}`:           0,
	})
}

// A wrapped Memory is each instance's own, as a bare one is, so that it may serve fan-out.
func TestOpenWithAWrappedMemory(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	m := newMetrics(t, metrics.Config{})
	service, err := idempotent.Open(t.Context(), m.Instrument(idempotent.Config{
		Client: client, Service: "billing", Retention: time.Hour, Store: memory(t), SkipCheck: true,
		Subscriber: subscriber.Config{FanOut: true},
	}))
	if err != nil {
		t.Fatal(err)
	}
	if err := service.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
