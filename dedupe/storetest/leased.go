package storetest

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

func sentTwice(s *suite) {
	store, k, o := s.open(), s.key(), s.options()
	c1, c2 := s.mustClaim(store, k, o), s.mustClaim(s.open(), k, o)
	s.wantState(s.claim(store, k, s.options()), dedupe.StateInProgress)
	s.must("commit", c1.Commit(s.ctx(), [][]byte{[]byte("out")}))
	s.must("the same commit, sent again", c2.Commit(s.ctx(), [][]byte{[]byte("out")}))
	s.must("rollback of what was committed", c2.Rollback(s.ctx()))
	d := s.claim(store, k, s.options())
	s.wantState(d, dedupe.StateDone)
	if len(d.Outputs()) != 1 {
		s.Errorf("outputs %q", d.Outputs())
	}
	// Once settled, a commit that comes late must not bring the outputs back.
	s.must("settle", d.Settle(s.ctx()))
	s.must("commit, sent again after the settle", c1.Commit(s.ctx(), [][]byte{[]byte("out")}))
	if n := len(s.claim(store, k, s.options()).Outputs()); n != 0 {
		s.Errorf("a commit sent again brought %d outputs back", n)
	}

	k, o = s.key(), s.options()
	c1, c2 = s.mustClaim(store, k, o), s.mustClaim(store, k, o)
	s.must("rollback", c1.Rollback(s.ctx()))
	s.must("the same rollback, sent again", c2.Rollback(s.ctx()))
	s.mustClaim(store, k, s.options())
}

// askedAgain: the owner's process died late in the lease, and one that has its token asks
// again. What it gets lasts as long as its local clock says: to its renewals, and on.
func askedAgain(s *suite) {
	dead, store, other, k, o := s.open(), s.open(), s.open(), s.key(), s.options()
	begin := time.Now()
	s.mustClaim(dead, k, o)
	s.must("close", dead.Close())
	<-time.After(s.cfg.Lease * 8 / 10)
	c := s.mustClaim(store, k, o)
	tick := time.NewTicker(s.cfg.Lease / 20)
	defer tick.Stop()
	// The first lease would end at 1, and the first renewal comes at 0.8 + 1/3.
	for end := begin.Add(s.cfg.Lease * 11 / 10); time.Now().Before(end); <-tick.C {
		s.wantState(s.claim(other, k, s.options()), dedupe.StateInProgress)
	}
	s.must("commit", c.Commit(s.ctx(), nil))
}

// wantLost waits for the end of a claim that was lost.
func (s *suite) wantLost(c dedupe.Claim, within time.Duration) {
	s.Helper()
	select {
	case <-c.Context().Done():
	case <-time.After(within):
		s.Fatalf("the context of a lost claim goes on after %v", within)
	}
	if err := context.Cause(c.Context()); !errors.Is(err, dedupe.ErrLeaseLost) {
		s.Errorf("cause %v, want ErrLeaseLost", err)
	}
}

// fencing: the owner's process ends without a word, and another takes over.
func fencing(s *suite) {
	dead, store, k := s.open(), s.open(), s.key()
	a := s.mustClaim(dead, k, s.options())
	s.must("close", dead.Close())
	s.wantLost(a, s.cfg.Lease+5*time.Second)
	b := s.eventuallyMine(store, k, s.options(), s.cfg.Lease+10*time.Second)
	if err := a.Commit(s.ctx(), nil); err == nil {
		s.Error("the commit of a lost claim succeeded")
	}
	_ = a.Rollback(s.ctx()) // it may fail, on a closed store
	if err := b.Context().Err(); err != nil {
		s.Errorf("the new owner's context has ended: %v", err)
	}
	s.wantState(s.claim(store, k, s.options()), dedupe.StateInProgress)
	s.must("commit", b.Commit(s.ctx(), [][]byte{[]byte("b")}))
	if d := s.claim(store, k, s.options()); len(d.Outputs()) != 1 || string(d.Outputs()[0]) != "b" {
		s.Errorf("%v with outputs %q, want those of the new owner", d.State(), d.Outputs())
	}
}

// fencedBehindItsBack: the owner can't know yet that it lost its claim, so only the
// storage can refuse it.
func fencedBehindItsBack(s *suite) {
	store, k, o := s.open(), s.key(), s.options()
	a, again := s.mustClaim(store, k, o), s.mustClaim(s.open(), k, o)
	s.must("rollback", again.Rollback(s.ctx()))
	if err := a.Commit(s.ctx(), nil); !errors.Is(err, dedupe.ErrLeaseLost) {
		s.Errorf("commit of a claim that is gone: %v, want ErrLeaseLost", err)
	}
	s.mustClaim(store, k, s.options()) // nothing was recorded

	k, o = s.key(), s.options()
	a, again = s.mustClaim(store, k, o), s.mustClaim(s.open(), k, o)
	s.must("rollback", again.Rollback(s.ctx()))
	b := s.mustClaim(store, k, s.options())
	if err := a.Commit(s.ctx(), [][]byte{[]byte("a")}); !errors.Is(err, dedupe.ErrLeaseLost) {
		s.Errorf("commit while another holds the claim: %v, want ErrLeaseLost", err)
	}
	s.must("rollback", a.Rollback(s.ctx()))
	s.wantState(s.claim(store, k, s.options()), dedupe.StateInProgress)
	s.must("commit", b.Commit(s.ctx(), [][]byte{[]byte("b")}))
	if err := a.Commit(s.ctx(), [][]byte{[]byte("a")}); !errors.Is(err, dedupe.ErrLeaseLost) {
		s.Errorf("commit after another's: %v, want ErrLeaseLost", err)
	}
	if d := s.claim(store, k, s.options()); len(d.Outputs()) != 1 || string(d.Outputs()[0]) != "b" {
		s.Errorf("%v with outputs %q, want those of the second owner", d.State(), d.Outputs())
	}

	// One that only goes on learns it by its renewal, and does not lengthen another's.
	k, o = s.key(), s.options()
	a, again = s.mustClaim(store, k, o), s.mustClaim(s.open(), k, o)
	s.must("rollback", again.Rollback(s.ctx()))
	s.mustClaim(store, k, s.options())
	s.wantLost(a, s.cfg.Lease+5*time.Second)
}

// expiry: nobody else may have the claim before the lease ran out, and somebody must
// get it afterwards.
func expiry(s *suite) {
	dead, store, k := s.open(), s.open(), s.key()
	begin := time.Now()
	s.mustClaim(dead, k, s.options())
	s.must("close", dead.Close())
	s.eventuallyMine(store, k, s.options(), s.cfg.Lease+10*time.Second)
	if took := time.Since(begin); took < s.cfg.Lease*9/10 {
		s.Errorf("taken over after %v, with a lease of %v", took, s.cfg.Lease)
	}
}

// renewal: a handler slower than its lease keeps its claim.
func renewal(s *suite) {
	store, other, k := s.open(), s.open(), s.key()
	c := s.mustClaim(store, k, s.options())
	tick := time.NewTicker(s.cfg.Lease / 10)
	defer tick.Stop()
	for end := time.Now().Add(2 * s.cfg.Lease); time.Now().Before(end); <-tick.C {
		s.wantState(s.claim(other, k, s.options()), dedupe.StateInProgress)
	}
	if err := c.Context().Err(); err != nil {
		s.Fatalf("the claim ended: %v", context.Cause(c.Context()))
	}
	s.must("commit", c.Commit(s.ctx(), nil))
	s.wantState(s.claim(other, k, s.options()), dedupe.StateDone)
}

// localClock: a process that is cut off ends its claim before another may have it. This
// process holds both, and one that stalls hears of the end late: that happens once.
func localClock(s *suite) {
	var late time.Duration
	for range 3 {
		if late = s.cutOff(); late < 0 {
			return
		}
	}
	s.Errorf("the context ended %v after another had got the claim, with a lease of %v", late, s.cfg.Lease)
}

// cutOff returns how long after another got its claim the context of one ended that was
// cut off: less than 0 when it came before.
func (s *suite) cutOff() (late time.Duration) {
	store, cut := s.cfg.Cut(s.TB)
	other, k := s.open(), s.key()
	c := s.mustClaim(store, k, s.options())
	ended := make(chan time.Time, 1)
	stop := context.AfterFunc(c.Context(), func() { ended <- time.Now() })
	defer stop()
	cut()
	s.eventuallyMine(other, k, s.options(), s.cfg.Lease+10*time.Second)
	got := time.Now()
	s.wantLost(c, 5*time.Second)
	late = (<-ended).Sub(got)
	bounded, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := c.Commit(bounded, nil); !errors.Is(err, dedupe.ErrLeaseLost) {
		s.Errorf("commit: %v, want ErrLeaseLost", err)
	}
	return late
}
