package storetest

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// oneOwner lets 64 goroutines fight for one key: one owner at a time, one commit.
func oneOwner(s *suite) {
	const fighters = 64
	stores := []dedupe.Store{s.open(), s.open(), s.open()}
	k := s.key()
	var inside, most, runs, commits atomic.Int64
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for i := range fighters {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for {
				o := s.options()
				o.Wait = 200 * time.Millisecond
				c, err := stores[i%len(stores)].Claim(ctx, k, o)
				if err != nil {
					s.Errorf("claim: %v", err)
					return
				}
				switch c.State() {
				case dedupe.StateDone:
					return
				case dedupe.StateConflict:
					s.Error("a conflict, among equal fingerprints")
					return
				case dedupe.StateInProgress:
					continue
				}
				n := inside.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				// Ten runs at least, so that the claim goes from hand to hand.
				last := runs.Add(1) >= 10 && random.IntN(3) == 0
				inside.Add(-1)
				if !last {
					err = c.Rollback(ctx)
				} else if err = c.Commit(ctx, nil); err == nil {
					commits.Add(1)
				}
				if err != nil {
					s.Errorf("end of a claim: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if most.Load() != 1 {
		s.Errorf("%d owners at a time", most.Load())
	}
	if commits.Load() != 1 {
		s.Errorf("%d commits", commits.Load())
	}
}

// closedInMidWork is for transactional stores: what a dying process has not committed is
// rolled back with its session, and the next one may go.
func closedInMidWork(s *suite) {
	dead, store, k := s.open(), s.open(), s.key()
	c := s.mustClaim(dead, k, s.options())
	s.must("close", dead.Close())
	select {
	case <-c.Context().Done():
	case <-time.After(5 * time.Second):
		s.Fatal("the context of a claim goes on after its store was closed")
	}
	if err := c.Commit(s.ctx(), nil); err == nil {
		s.Error("the commit succeeded on a closed store")
	}
	s.eventuallyMine(store, k, s.options(), 10*time.Second)
}
