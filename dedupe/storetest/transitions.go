package storetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

func commits(s *suite) {
	store, k, o := s.open(), s.key(), s.options()
	before := time.Now()
	c := s.mustClaim(store, k, o)
	if err := c.Context().Err(); err != nil {
		s.Fatalf("the context of a fresh claim has ended: %v", err)
	}
	if len(c.Outputs()) != 0 {
		s.Errorf("a fresh claim has outputs: %q", c.Outputs())
	}
	if !s.cfg.Features.SingleWriter {
		if st := s.claim(store, k, s.options()).State(); st != dedupe.StateInProgress {
			s.Errorf("another's claim is %v, want in progress", st)
		}
	}
	s.must("commit", c.Commit(s.ctx(), [][]byte{[]byte("out")}))
	if c.Context().Err() == nil {
		s.Error("the context goes on after the commit")
	}
	if !s.cfg.Features.Transactional {
		s.must("commit again", c.Commit(s.ctx(), [][]byte{[]byte("out")}))
	}
	s.must("rollback after the commit", c.Rollback(s.ctx()))

	for _, other := range []dedupe.Store{store, s.open()} {
		d := s.claim(other, k, s.options())
		s.wantState(d, dedupe.StateDone)
		if at := d.Info().CommittedAt; at.Before(before.Add(-time.Minute)) || at.After(time.Now().Add(time.Minute)) {
			s.Errorf("committed at %v, not about %v", at, before)
		}
		if got := d.Outputs(); len(got) != 1 || string(got[0]) != "out" {
			s.Errorf("outputs %q", got)
		}
		if err := d.Commit(s.ctx(), nil); err == nil {
			s.Error("a claim that is done was committed")
		}
		s.must("rollback of what is done", d.Rollback(s.ctx()))
	}
	s.wantState(s.claim(store, k, s.options()), dedupe.StateDone)
}

func rollsBack(s *suite) {
	store, k := s.open(), s.key()
	c := s.mustClaim(store, k, s.options())
	s.must("rollback", c.Rollback(s.ctx()))
	s.must("rollback again", c.Rollback(s.ctx()))
	if c.Context().Err() == nil {
		s.Error("the context goes on after the rollback")
	}
	d := s.mustClaim(s.open(), k, s.options())
	s.must("rollback of the former claim", c.Rollback(s.ctx()))
	if err := c.Commit(s.ctx(), nil); err == nil {
		s.Error("a claim was committed after its rollback")
	}
	if !s.cfg.Features.SingleWriter {
		s.wantState(s.claim(store, k, s.options()), dedupe.StateInProgress)
	}
	s.must("commit", d.Commit(s.ctx(), nil))
	s.wantState(s.claim(store, k, s.options()), dedupe.StateDone)
}

func inProgress(s *suite) {
	store, k := s.open(), s.key()
	c := s.mustClaim(store, k, s.options())
	for _, other := range []dedupe.Store{store, s.open()} {
		d := s.claim(other, k, s.options())
		s.wantState(d, dedupe.StateInProgress)
		if after := d.Info().RetryAfter; after < 0 || after > s.lease {
			s.Errorf("retry after %v, with a lease of %v", after, s.lease)
		}
		if err := d.Commit(s.ctx(), nil); err == nil {
			s.Error("a claim that another holds was committed")
		}
		s.must("rollback of another's claim", d.Rollback(s.ctx()))
		s.must("settle of another's claim", d.Settle(s.ctx()))
		s.wantState(s.claim(other, k, s.options()), dedupe.StateInProgress)
	}
	// A difference is only known once the event was handled.
	o := s.options()
	o.Fingerprint = []byte("another")
	s.wantState(s.claim(store, k, o), dedupe.StateInProgress)
	s.must("commit", c.Commit(s.ctx(), nil))
}

func waitIsBounded(s *suite) {
	store, k := s.open(), s.key()
	s.mustClaim(store, k, s.options())
	for _, other := range []dedupe.Store{store, s.open()} {
		o := s.options()
		o.Wait = 150 * time.Millisecond
		begin := time.Now()
		s.wantState(s.claim(other, k, o), dedupe.StateInProgress)
		if took := time.Since(begin); took < o.Wait/2 || took > o.Wait+3*time.Second {
			s.Errorf("waited %v, with a Wait of %v", took, o.Wait)
		}
	}
}

func waitEnds(s *suite) {
	store := s.open()
	for _, how := range []string{"commit", "rollback"} {
		for _, other := range []dedupe.Store{store, s.open()} {
			k := s.key()
			c := s.mustClaim(store, k, s.options())
			got := make(chan dedupe.Claim, 1)
			failed := make(chan error, 1)
			go func() {
				o := s.options()
				o.Wait = 20 * time.Second
				d, err := other.Claim(context.Background(), k, o)
				if err != nil {
					failed <- err
					return
				}
				got <- d
			}()
			select {
			case d := <-got:
				s.Fatalf("%v while another holds the claim", d.State())
			case err := <-failed:
				s.Fatal(err)
			case <-time.After(50 * time.Millisecond):
			}
			want := dedupe.StateDone
			if how == "commit" {
				s.must(how, c.Commit(s.ctx(), nil))
			} else {
				s.must(how, c.Rollback(s.ctx()))
				want = dedupe.StateClaimed
			}
			select {
			case d := <-got:
				if d.State() != want {
					s.Errorf("after the %s: %v, want %v", how, d.State(), want)
				}
				s.must("rollback", d.Rollback(s.ctx()))
			case err := <-failed:
				s.Fatal(err)
			case <-time.After(10 * time.Second):
				s.Fatalf("still waiting 10 s after the %s", how)
			}
		}
	}
}

func conflicts(s *suite) {
	store, k, o := s.open(), s.key(), s.options()
	c := s.mustClaim(store, k, o)
	s.must("commit", c.Commit(s.ctx(), [][]byte{[]byte("out")}))

	o = s.options()
	o.Fingerprint = []byte("another")
	d := s.claim(store, k, o)
	s.wantState(d, dedupe.StateConflict)
	if len(d.Outputs()) != 0 {
		s.Errorf("a conflict has outputs: %q", d.Outputs())
	}
	if d.Info().CommittedAt.IsZero() {
		s.Error("a conflict does not say when the other event was handled")
	}
	if d.Commit(s.ctx(), nil) == nil {
		s.Error("a conflict was committed")
	}
	s.must("rollback of a conflict", d.Rollback(s.ctx()))
	s.must("settle of a conflict", d.Settle(s.ctx()))

	o = s.options()
	d = s.claim(store, k, o)
	s.wantState(d, dedupe.StateDone)
	if len(d.Outputs()) != 1 {
		s.Errorf("the conflict took the outputs along: %q", d.Outputs())
	}
	o.Fingerprint = nil
	s.wantState(s.claim(store, k, o), dedupe.StateDone)

	// A record without one has no difference.
	k = s.key()
	s.must("commit", s.mustClaim(store, k, o).Commit(s.ctx(), nil))
	s.wantState(s.claim(store, k, s.options()), dedupe.StateDone)
}

func outputs(s *suite) {
	store := s.open()
	binary := make([]byte, 256)
	for i := range binary {
		binary[i] = byte(i)
	}
	for name, outs := range map[string][][]byte{
		"none":     nil,
		"an empty": {{}},
		"binary":   {binary, {}, {0}, binary},
		"many":     bytes.Split(bytes.Repeat([]byte("output "), 500), []byte(" ")),
		"large":    {bytes.Repeat([]byte("x"), 1<<20), []byte("small")},
	} {
		k := s.key()
		given := make([][]byte, len(outs))
		for i := range outs {
			given[i] = bytes.Clone(outs[i])
		}
		s.must(name, s.mustClaim(store, k, s.options()).Commit(s.ctx(), given))
		for _, b := range given { // they are the caller's again
			clear(b)
		}
		for range 2 { // and reading does not take them away
			got := s.claim(s.open(), k, s.options()).Outputs()
			if len(got) != len(outs) {
				s.Fatalf("%s: %d outputs, want %d", name, len(got), len(outs))
			}
			for i := range outs {
				if !bytes.Equal(got[i], outs[i]) {
					s.Fatalf("%s: output %d differs", name, i)
				}
			}
		}
	}
}

func settles(s *suite) {
	store := s.open()
	outs := [][]byte{[]byte("one"), []byte("two")}
	for _, how := range []string{"by the owner", "by a duplicate"} {
		k := s.key()
		c := s.mustClaim(store, k, s.options())
		s.must("commit", c.Commit(s.ctx(), outs))
		if how == "by a duplicate" {
			c = s.claim(s.open(), k, s.options())
			s.wantState(c, dedupe.StateDone)
		}
		for range 2 {
			s.must("settle "+how, c.Settle(s.ctx()))
			d := s.claim(store, k, s.options())
			s.wantState(d, dedupe.StateDone)
			if len(d.Outputs()) != 0 {
				s.Errorf("settled %s, and still there: %q", how, d.Outputs())
			}
		}
		o := s.options()
		o.Fingerprint = []byte("another")
		s.wantState(s.claim(store, k, o), dedupe.StateConflict)
	}
	// What is not committed has nothing to settle.
	k := s.key()
	c := s.mustClaim(store, k, s.options())
	s.must("settle before the commit", c.Settle(s.ctx()))
	s.must("commit", c.Commit(s.ctx(), outs))
	if n := len(s.claim(store, k, s.options()).Outputs()); n != 2 {
		s.Errorf("%d outputs after a settle before the commit, want 2", n)
	}
}

func retention(s *suite) {
	store, k, o := s.open(), s.key(), s.options()
	o.Retention = o.Lease
	c := s.mustClaim(store, k, o)
	s.must("commit", c.Commit(s.ctx(), [][]byte{[]byte("out")}))
	s.must("settle", c.Settle(s.ctx())) // which must leave the retention as it is
	s.wantState(s.claim(store, k, s.options()), dedupe.StateDone)
	d := s.eventuallyMine(store, k, s.options(), o.Retention+10*time.Second)
	if d.Info().TookOver {
		s.Error("the retention ran out, and the store calls it a take-over")
	}
	if !s.cfg.Features.SingleWriter { // there it would wait for d
		s.must("settle of what ran out", c.Settle(s.ctx()))
	}
	s.must("commit", d.Commit(s.ctx(), [][]byte{[]byte("new")}))
	s.must("settle of what ran out", c.Settle(s.ctx()))
	if n := len(s.claim(store, k, s.options()).Outputs()); n != 1 {
		s.Errorf("%d outputs, want the new one", n)
	}
}

func keysDiffer(s *suite) {
	store := s.open()
	ns := s.namespace
	long := strings.Repeat("k", dedupe.MaxKeyBytes-len(ns)-1)
	for _, k := range []dedupe.Key{
		{Namespace: ns, Topic: "a:b", Handler: "c", Event: "e"}, {Namespace: ns, Topic: "a", Handler: "b:c", Event: "e"},
		{Namespace: ns, Topic: "a", Event: "b"}, {Namespace: ns, Handler: "a", Event: "b"},
		{Namespace: ns, Event: "pay:A"}, {Namespace: ns, Event: "pay:a"}, {Namespace: ns, Event: "pay:A "}, {Namespace: ns, Event: " pay:A"},
		{Namespace: ns, Event: "%3A"}, {Namespace: ns, Event: ":"}, {Namespace: ns, Event: "a\x00b"}, {Namespace: ns, Event: "a\x00"}, {Namespace: ns, Event: "a"},
		{Namespace: ns, Event: "é"}, {Namespace: ns, Event: "e\u0301"}, {Namespace: ns, Event: "{x}"}, {Namespace: ns, Event: "ß"}, {Namespace: ns, Event: "ss"},
		{Namespace: ns, Event: long + "1"}, {Namespace: ns, Event: long + "2"},
		{Namespace: ns + "'", Event: "b"}, {Namespace: ns + ":", Event: "b"},
	} {
		c := s.claim(store, k, s.options())
		if c.State() != dedupe.StateClaimed {
			s.Errorf("%q: %v: another key was taken for it", k, c.State())
			continue
		}
		s.must("commit", c.Commit(s.ctx(), nil))
		s.wantState(s.claim(store, k, s.options()), dedupe.StateDone)
	}
}

func badOptions(s *suite) {
	store := s.open()
	for name, bad := range map[string]func(*dedupe.Key, *dedupe.ClaimOptions){
		"no namespace":              func(k *dedupe.Key, _ *dedupe.ClaimOptions) { k.Namespace = "" },
		"no event":                  func(k *dedupe.Key, _ *dedupe.ClaimOptions) { k.Event = "" },
		"not UTF-8":                 func(k *dedupe.Key, _ *dedupe.ClaimOptions) { k.Handler = "\xff" },
		"too long":                  func(k *dedupe.Key, _ *dedupe.ClaimOptions) { k.Event = strings.Repeat("k", dedupe.MaxKeyBytes) },
		"no token":                  func(_ *dedupe.Key, o *dedupe.ClaimOptions) { o.Token = "" },
		"no lease":                  func(_ *dedupe.Key, o *dedupe.ClaimOptions) { o.Lease = 0 },
		"no retention":              func(_ *dedupe.Key, o *dedupe.ClaimOptions) { o.Retention = 0 },
		"negative retention":        func(_ *dedupe.Key, o *dedupe.ClaimOptions) { o.Retention = -time.Hour },
		"lease above the retention": func(_ *dedupe.Key, o *dedupe.ClaimOptions) { o.Retention = o.Lease - 1 },
		"negative wait":             func(_ *dedupe.Key, o *dedupe.ClaimOptions) { o.Wait = -1 },
	} {
		k, o := s.key(), s.options()
		bad(&k, &o)
		c, err := store.Claim(s.ctx(), k, o)
		if !errors.Is(err, dedupe.ErrInvalid) {
			s.Errorf("%s: error %v, want one that matches ErrInvalid", name, err)
		}
		if err == nil && c != nil {
			s.must("rollback", c.Rollback(s.ctx()))
		}
	}
}

type ctxKey struct{}

func contexts(s *suite) {
	store, k := s.open(), s.key()
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), ctxKey{}, "value"))
	defer cancel()
	c, err := store.Claim(ctx, k, s.options())
	s.must("claim", err)
	s.wantState(c, dedupe.StateClaimed)
	if c.Context().Value(ctxKey{}) != "value" {
		s.Error("the claim's context has lost the values of Claim's")
	}
	cancel()
	select {
	case <-c.Context().Done():
	case <-time.After(5 * time.Second):
		s.Fatal("the claim's context does not end with Claim's")
	}
	if errors.Is(context.Cause(c.Context()), dedupe.ErrLeaseLost) {
		s.Error("the caller's cancellation is reported as a lost lease")
	}
	// Its end does not end the claim: the handler may have finished.
	s.must("commit after Claim's context has ended", c.Commit(s.ctx(), nil))
	s.wantState(s.claim(store, k, s.options()), dedupe.StateDone)

	k = s.key()
	if d, err := store.Claim(ctx, k, s.options()); err == nil {
		s.Errorf("claim with a context that has ended: state %v, no error", d.State())
		s.must("rollback", d.Rollback(s.ctx()))
	}
	s.must("rollback", s.eventuallyMine(store, k, s.options(), 5*time.Second).Rollback(s.ctx()))

	// One that ends while it waits.
	held := s.mustClaim(store, k, s.options())
	waiting, stop := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer stop()
	o := s.options()
	o.Wait = time.Minute
	begin := time.Now()
	if d, err := s.open().Claim(waiting, k, o); err == nil {
		s.Errorf("context ended while waiting: state %v, no error", d.State())
	}
	if took := time.Since(begin); took > 5*time.Second {
		s.Errorf("went on waiting for %v after its context had ended", took)
	}
	s.must("rollback", held.Rollback(s.ctx()))
	s.eventuallyMine(store, k, s.options(), 5*time.Second)
}

func restarts(s *suite) {
	store, k, free := s.open(), s.key(), s.key()
	o := s.options()
	s.must("commit", s.mustClaim(store, k, o).Commit(s.ctx(), [][]byte{[]byte("out")}))
	s.must("rollback", s.mustClaim(store, free, s.options()).Rollback(s.ctx()))
	s.must("close", store.Close())
	s.must("close again", store.Close())
	if _, err := store.Claim(s.ctx(), free, s.options()); !errors.Is(err, dedupe.ErrClosed) {
		s.Errorf("claim of a closed store: %v, want ErrClosed", err)
	}
	store = s.open()
	d := s.claim(store, k, s.options())
	s.wantState(d, dedupe.StateDone)
	if len(d.Outputs()) != 1 {
		s.Errorf("the outputs did not survive: %q", d.Outputs())
	}
	s.mustClaim(store, free, s.options())
}
