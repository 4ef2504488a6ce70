package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newMemory(t testing.TB, limit int) *dedupe.Memory {
	t.Helper()
	m, err := dedupe.NewMemory(dedupe.MemoryConfig{MaxRecords: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestMemory(t *testing.T) {
	t.Parallel()
	first := newMemory(t, 0)
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) dedupe.Store {
			m := first.Open()
			t.Cleanup(func() { _ = m.Close() })
			return m
		},
	})
}

func options() dedupe.ClaimOptions {
	return dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Minute, Retention: time.Hour}
}

func event(n int) dedupe.Key { return dedupe.Key{Namespace: "n", Event: fmt.Sprint(n)} }

func commit(t *testing.T, m dedupe.Store, k dedupe.Key) {
	t.Helper()
	c, err := m.Claim(t.Context(), k, options())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

func state(t *testing.T, m dedupe.Store, k dedupe.Key) dedupe.State {
	t.Helper()
	c, err := m.Claim(t.Context(), k, options())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	return c.State()
}

// A claim that went because others came would let two run at a time.
func TestMemoryNeverEvictsAClaim(t *testing.T) {
	m := newMemory(t, 3)
	claim, err := m.Claim(t.Context(), event(0), options())
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 10; n++ {
		commit(t, m, event(n))
	}
	if err := claim.Commit(t.Context(), nil); err != nil {
		t.Errorf("the claim went: %v", err)
	}
	if m.Evicted() != 8 {
		t.Errorf("%d evicted, want the first 8 of 10", m.Evicted())
	}
	for _, n := range []int{0, 9, 10} {
		if got := state(t, m, event(n)); got != dedupe.StateDone {
			t.Errorf("event %d: %v, want done", n, got)
		}
	}
	if got := state(t, m, event(8)); got != dedupe.StateClaimed {
		t.Errorf("event 8, the last that had to go: %v", got)
	}
}

func TestMemoryFullOfClaims(t *testing.T) {
	m := newMemory(t, 2)
	for n := range 2 {
		c, err := m.Claim(t.Context(), event(n), options())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Rollback(context.Background()) }()
	}
	if _, err := m.Claim(t.Context(), event(2), options()); !errors.Is(err, dedupe.ErrFull) {
		t.Errorf("error %v, want ErrFull", err)
	}
	if got := state(t, m, event(0)); got != dedupe.StateInProgress {
		t.Errorf("a claim that is held: %v", got)
	}
}

func TestMemoryConfig(t *testing.T) {
	if _, err := dedupe.NewMemory(dedupe.MemoryConfig{MaxRecords: -1}); err == nil {
		t.Error("a negative limit was taken")
	}
}

func TestTookOver(t *testing.T) {
	m := newMemory(t, 0)
	dead := m.Open()
	o := options()
	o.Lease = dedupe.MinLease
	if _, err := dead.Claim(t.Context(), event(1), o); err != nil {
		t.Fatal(err)
	}
	_ = dead.Close()
	o = options()
	o.Wait = 10 * time.Second
	c, err := m.Claim(t.Context(), event(1), o)
	if err != nil || c.State() != dedupe.StateClaimed || !c.Info().TookOver {
		t.Fatalf("%v, %v, want a claim that took over", c, err)
	}
	_ = c.Rollback(t.Context())
}

func TestKeyString(t *testing.T) {
	for _, k := range []dedupe.Key{
		{Namespace: "pay", Topic: "orders", Handler: "charge", Event: "pay:1001:p9001"},
		{Namespace: "%", Topic: ":", Handler: "", Event: "%3A%"},
		{Namespace: "é", Topic: "{x}", Handler: "a b", Event: "\x00"},
	} {
		got, err := dedupe.ParseKey(k.String())
		if err != nil || got != k {
			t.Errorf("%q is read as %+v, %v", k.String(), got, err)
		}
	}
	for _, bad := range []string{"", "a:b:c", "a:b:c:d:e", "a:b:c:%", "a:b:c:%3", "a:b:c:%zz"} {
		if k, err := dedupe.ParseKey(bad); err == nil {
			t.Errorf("%q is read as %+v", bad, k)
		}
	}
}

// A record that ran out makes room before one that has not, also behind it.
func TestMemoryEvictsWhatRanOutFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := dedupe.NewMemory(dedupe.MemoryConfig{MaxRecords: 3})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		put := func(event string, retention time.Duration) dedupe.State {
			c, err := m.Claim(t.Context(), dedupe.Key{Namespace: "n", Event: event}, dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: dedupe.MinLease, Retention: retention})
			if err != nil {
				t.Fatal(err)
			}
			if c.State() == dedupe.StateClaimed {
				err = c.Commit(t.Context(), nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			return c.State()
		}
		put("long", time.Hour)
		put("short 1", time.Second)
		put("short 2", 2*time.Second)
		<-time.After(3 * time.Second) // of the bubble's clock
		put("new 1", time.Minute)
		put("new 2", 2*time.Minute)
		if state := put("long", time.Hour); state != dedupe.StateDone || m.Evicted() != 0 {
			t.Errorf("%v, %d evicted, while two that ran out were there", state, m.Evicted())
		}
		put("new 3", time.Hour) // the one that would run out first goes
		if state := put("new 2", time.Hour); state != dedupe.StateDone || m.Evicted() != 1 {
			t.Errorf("%v, %d evicted", state, m.Evicted())
		}
	})
}
