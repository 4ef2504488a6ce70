package dedupe_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

func repository(t *testing.T, s dedupe.Store, handler string, wait time.Duration) *dedupe.KeyRepository {
	t.Helper()
	r, err := dedupe.Repository(s, dedupe.RepositoryConfig{Namespace: "shop", Handler: handler, Retention: time.Hour, Wait: wait})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestRepository(t *testing.T) {
	m := newMemory(t, 0)
	first, second := repository(t, m, "charge", 10*time.Second), repository(t, m.Open(), "charge", 10*time.Second)
	var fresh atomic.Int64
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			duplicate, err := []*dedupe.KeyRepository{first, second}[i%2].IsDuplicate(t.Context(), "k")
			if err != nil {
				t.Error(err)
			}
			if !duplicate {
				fresh.Add(1)
			}
		})
	}
	wg.Wait()
	if fresh.Load() != 1 {
		t.Errorf("%d learned that they are the first", fresh.Load())
	}
	if duplicate, err := repository(t, m, "ship", 0).IsDuplicate(t.Context(), "k"); duplicate || err != nil {
		t.Errorf("another handler: %v, %v", duplicate, err)
	}
}

// Watermill's hashers give the bytes of a digest, which are no text.
func TestRepositoryTakesDigests(t *testing.T) {
	r := repository(t, newMemory(t, 0), "charge", 0)
	for _, key := range []string{"\xff\xfe", "\xff\xff", "hex:fffe", "hex:ffff", "é"} {
		for n, want := range []bool{false, true} {
			if duplicate, err := r.IsDuplicate(t.Context(), key); duplicate != want || err != nil {
				t.Errorf("%q for the %d. time: %v, %v", key, n+1, duplicate, err)
			}
		}
	}
}

// While another records the key it may still fail, so it is no duplicate yet.
func TestRepositoryWhileAnotherRecords(t *testing.T) {
	m := newMemory(t, 0)
	r := repository(t, m, "charge", 50*time.Millisecond)
	held, err := m.Claim(t.Context(), dedupe.Key{Namespace: "shop", Handler: "charge", Event: "k"}, options())
	if err != nil {
		t.Fatal(err)
	}
	if duplicate, err := r.IsDuplicate(t.Context(), "k"); duplicate || !errors.Is(err, dedupe.ErrRetryLater) {
		t.Errorf("%v, %v, want ErrRetryLater", duplicate, err)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if duplicate, err := r.IsDuplicate(t.Context(), "k"); duplicate || err != nil {
		t.Errorf("%v, %v", duplicate, err)
	}
}

func TestRepositoryConfig(t *testing.T) {
	m := newMemory(t, 0)
	good := dedupe.RepositoryConfig{Namespace: "n", Retention: time.Hour}
	for name, bad := range map[string]func() (dedupe.Store, dedupe.RepositoryConfig){
		"no store":     func() (dedupe.Store, dedupe.RepositoryConfig) { return nil, good },
		"no namespace": func() (dedupe.Store, dedupe.RepositoryConfig) { c := good; c.Namespace = ""; return m, c },
		"no retention": func() (dedupe.Store, dedupe.RepositoryConfig) { c := good; c.Retention = 0; return m, c },
		"bad wait":     func() (dedupe.Store, dedupe.RepositoryConfig) { c := good; c.Wait = -1; return m, c },
	} {
		if _, err := dedupe.Repository(bad()); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
