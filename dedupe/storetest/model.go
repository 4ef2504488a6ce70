package storetest

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// interleavings runs random histories of up to three owners on one key, each step sent
// once or twice, against a model of a few lines. Nothing in it takes as long as a
// lease.
func interleavings(s *suite) {
	const histories, steps = 60, 14
	stores := []dedupe.Store{s.open(), s.open()}
	random := rand.New(rand.NewPCG(1, 2))
	for h := range histories {
		s.history(stores, random, h, steps)
		if s.Failed() {
			return
		}
	}
}

type owner struct {
	o     dedupe.Options
	claim dedupe.Claim
	ended bool // committed or rolled back; a token is not used for another claim
}

func (s *suite) history(stores []dedupe.Store, random *rand.Rand, number, steps int) {
	k := s.key()
	owners := make([]owner, 3)
	holder, committed, settled := -1, -1, false
	var log []string
	fail := func(format string, args ...any) {
		s.Errorf("history %d:\n  %s\n%s", number, strings.Join(log, "\n  "), fmt.Sprintf(format, args...))
	}
	for i := range owners {
		owners[i].o = s.options()
	}
	defer func() {
		for i := range owners {
			if owners[i].claim != nil {
				_ = owners[i].claim.Rollback(s.ctx()) // a later history has another key
			}
		}
	}()
	for range steps {
		i, store := random.IntN(len(owners)), stores[random.IntN(len(stores))]
		w := &owners[i]
		twice := 1 + random.IntN(2)
		switch step := random.IntN(4); {
		case step == 0 && !w.ended:
			for range twice {
				want := dedupe.Claimed
				switch {
				case committed >= 0:
					want = dedupe.Done
				case holder >= 0 && holder != i:
					want = dedupe.InProgress
				}
				c := s.claim(store, k, w.o)
				log = append(log, fmt.Sprintf("owner %d claims: %v", i, c.State()))
				if c.State() != want {
					fail("want %v", want)
					return
				}
				switch want {
				case dedupe.Claimed:
					if w.claim == nil || w.claim.State() != dedupe.Claimed {
						w.claim = c
					} else {
						defer func() { _ = c.Rollback(s.ctx()) }() // ends its renewal
					}
					holder = i
				case dedupe.Done:
					wantOut := 1
					if settled {
						wantOut = 0
					}
					if len(c.Outputs()) != wantOut || wantOut == 1 && string(c.Outputs()[0]) != fmt.Sprint(committed) {
						fail("outputs %q, want %d of owner %d", c.Outputs(), wantOut, committed)
						return
					}
				}
			}
		case step == 1 && w.claim != nil && w.claim.State() == dedupe.Claimed:
			for range twice {
				err := w.claim.Commit(s.ctx(), [][]byte{[]byte(fmt.Sprint(i))})
				log = append(log, fmt.Sprintf("owner %d commits: %v", i, err))
				fits := committed == i || committed < 0 && holder == i
				if fits != (err == nil) {
					fail("want success: %v", fits)
					return
				}
				if fits && committed < 0 {
					committed, holder = i, -1
				}
			}
			w.ended = true
		case step == 2 && w.claim != nil:
			for range twice {
				err := w.claim.Rollback(s.ctx())
				log = append(log, fmt.Sprintf("owner %d rolls back: %v", i, err))
				if err != nil {
					fail("want success")
					return
				}
				if w.claim.State() == dedupe.Claimed && holder == i {
					holder = -1
				}
			}
			w.ended = true
		case step == 3 && w.claim != nil && committed >= 0:
			err := w.claim.Settle(s.ctx())
			log = append(log, fmt.Sprintf("owner %d settles: %v", i, err))
			if err != nil {
				fail("want success")
				return
			}
			if committed == i {
				settled = true
			} else {
				// Whether a settle by one that lost takes effect is the store's choice:
				// end the history here.
				return
			}
		}
	}
}
