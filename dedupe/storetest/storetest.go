// Package storetest is the conformance suite of dedupe.Store. A store of your own is
// right when it passes:
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, storetest.Config{
//			Open: func(t testing.TB) dedupe.Store { return mystore.Open(t) },
//		})
//	}
//
// The suite goes through every transition, sent once and twice, through interleavings of
// up to three owners, and lets 64 goroutines fight for one key. It needs no other
// package than testing. Leases are short in it, so the machine should not be so busy
// that a store can't answer within half of Config.Lease.
package storetest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Config describes a store to the suite.
type Config struct {
	// Open gives one more store on the same storage, as another process would open
	// it. It may be called several times in one test, also by tests that run at once,
	// and the store must be closed with the test. Required. Keys of the suite are unique
	// to a run.
	Open func(t testing.TB) dedupe.Store
	// Cut gives one more store, and a function that cuts it off from the storage: after
	// that it gets no answer. It shows that a lease ends by the local clock. Nil skips
	// that test; a store in the same process as its storage can't be cut off.
	Cut func(t testing.TB) (s dedupe.Store, cut func())
	// Lease is the lease in the checks that wait for one to end; 0 means 3 s. Longer makes
	// them slower, and steadier on a busy machine. In the others it is at least a minute.
	Lease time.Duration
	// Features say what kind of store it is.
	Features Features
}

// Features of a store.
type Features struct {
	// Transactional: the claim is part of a transaction of the storage. There is no
	// lease; a claim lives as long as its session.
	Transactional bool
	// SingleWriter: a transaction holds the whole storage, so that the claim of one
	// key keeps others out (SQLite).
	SingleWriter bool
	// Forgetful: the storage lives and dies with the store.
	Forgetful bool
}

// Run runs the suite, each check as a test of its own.
func Run(t *testing.T, cfg Config) {
	t.Helper()
	if cfg.Open == nil {
		t.Fatal("storetest: Config.Open is nil")
	}
	if cfg.Lease < 0 {
		t.Fatalf("storetest: Config.Lease %v is negative", cfg.Lease)
	}
	all := checks(cfg)
	for _, c := range all {
		if !c.waits {
			t.Run(c.name, func(t *testing.T) { c.on(t, cfg) })
		}
	}
	// A test around them, so that they have ended when Run returns.
	t.Run("leases", func(t *testing.T) {
		for _, c := range all {
			if c.waits {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.on(t, cfg)
				})
			}
		}
	})
}

type check struct {
	name  string
	run   func(*suite)
	waits bool // most of the time, for leases to end
}

// longLease is for checks in which no lease ends: a machine that stalls for longer than
// the lease of the others does not make them fail.
const longLease = time.Minute

// on runs the check.
func (c check) on(t testing.TB, cfg Config) {
	s := newSuite(t, cfg)
	if !c.waits {
		s.lease = max(s.lease, longLease)
	}
	c.run(s)
}

func checks(cfg Config) []check {
	all := []check{
		{name: "commit", run: commits},
		{name: "rollback", run: rollsBack},
		{name: "in progress", run: inProgress},
		{name: "wait is bounded", run: waitIsBounded},
		{name: "wait ends with the claim", run: waitEnds},
		{name: "conflict", run: conflicts},
		{name: "outputs", run: outputs},
		{name: "settle", run: settles},
		{name: "group", run: groups},
		{name: "retention", run: retention, waits: true},
		{name: "keys differ", run: keysDiffer},
		{name: "bad options", run: badOptions},
		{name: "context", run: contexts},
		{name: "one owner at a time", run: oneOwner},
		{name: "admin", run: admin},
	}
	if !cfg.Features.Forgetful {
		all = append(all, check{name: "restart", run: restarts})
	}
	if !cfg.Features.Transactional {
		all = append(all,
			check{name: "sent twice", run: sentTwice},
			check{name: "asked for again", run: askedAgain, waits: true},
			check{name: "fencing", run: fencing, waits: true},
			check{name: "fenced behind its back", run: fencedBehindItsBack, waits: true},
			check{name: "expiry", run: expiry, waits: true},
			check{name: "renewal", run: renewal, waits: true},
			check{name: "interleavings", run: interleavings},
		)
		if cfg.Cut != nil {
			all = append(all, check{name: "local clock", run: localClock, waits: true})
		}
	} else {
		all = append(all, check{name: "closed in mid-work", run: closedInMidWork})
	}
	return all
}

// suite is one check's view.
type suite struct {
	testing.TB
	cfg       Config
	lease     time.Duration // of this check
	namespace string
	keys      int
}

var runs atomic.Int64

func newSuite(t testing.TB, cfg Config) *suite {
	if cfg.Lease == 0 {
		cfg.Lease = 3 * time.Second
	}
	return &suite{TB: t, cfg: cfg, lease: cfg.Lease, namespace: fmt.Sprintf("storetest %d.%d", time.Now().UnixNano(), runs.Add(1))}
}

func (s *suite) open() dedupe.Store {
	s.Helper()
	store := s.cfg.Open(s.TB)
	if store == nil {
		s.Fatal("Config.Open gave no store")
	}
	return store
}

// key is one that nobody used.
func (s *suite) key() dedupe.Key {
	s.keys++
	return dedupe.Key{Namespace: s.namespace, Topic: "orders", Handler: "charge", Event: fmt.Sprintf("pay:%d", s.keys)}
}

func (s *suite) options() dedupe.ClaimOptions {
	return dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: s.lease, Retention: time.Hour, Fingerprint: []byte("one")}
}

// ctx bounds what a check asks of a store.
func (s *suite) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	s.Cleanup(cancel)
	return ctx
}

// claim asks once more, and fails the check on an error.
func (s *suite) claim(store dedupe.Store, k dedupe.Key, o dedupe.ClaimOptions) dedupe.Claim {
	s.Helper()
	c, err := store.Claim(s.ctx(), k, o)
	if err != nil {
		s.Fatalf("claim: %v", err)
	}
	if c == nil {
		s.Fatal("claim: neither a claim nor an error")
	}
	if c.Context() == nil {
		s.Fatalf("claim in state %v has no context", c.State())
	}
	return c
}

func (s *suite) wantState(c dedupe.Claim, want dedupe.State) {
	s.Helper()
	if c.State() != want {
		s.Fatalf("state %v, want %v", c.State(), want)
	}
}

// mustClaim claims a key that is free.
func (s *suite) mustClaim(store dedupe.Store, k dedupe.Key, o dedupe.ClaimOptions) dedupe.Claim {
	s.Helper()
	c := s.claim(store, k, o)
	s.wantState(c, dedupe.StateClaimed)
	s.Cleanup(func() { _ = c.Rollback(context.Background()) }) // whatever the check did with it
	return c
}

func (s *suite) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// eventuallyMine asks until it gets the claim.
func (s *suite) eventuallyMine(store dedupe.Store, k dedupe.Key, o dedupe.ClaimOptions, within time.Duration) dedupe.Claim {
	s.Helper()
	tick := time.NewTicker(max(s.cfg.Lease/20, time.Millisecond))
	defer tick.Stop()
	for deadline := time.Now().Add(within); ; <-tick.C {
		c := s.claim(store, k, o)
		if c.State() == dedupe.StateClaimed {
			s.Cleanup(func() { _ = c.Rollback(context.Background()) })
			return c
		}
		if time.Now().After(deadline) {
			s.Fatalf("state %v after %v, want claimed", c.State(), within)
		}
		o.Token = dedupe.NewToken()
	}
}
