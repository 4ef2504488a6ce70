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
	for n := range histories {
		newHistory(s, n).run(stores, random, steps)
		if s.Failed() {
			return
		}
	}
}

// nobody stands for an owner where there is none.
const nobody = -1

// history is one of them: the model, what the owners have, and what happened.
type history struct {
	*suite
	number int
	key    dedupe.Key
	owners [3]owner
	log    []string
	spare  []dedupe.Claim // got again by an owner that has one: their renewals are to end, too

	holder, committed int // owners, or nobody
	settled           bool
}

type owner struct {
	o     dedupe.ClaimOptions
	claim dedupe.Claim
	ended bool // committed or rolled back; a token is not used for another claim
}

func newHistory(s *suite, number int) *history {
	h := &history{suite: s, number: number, key: s.key(), holder: nobody, committed: nobody}
	for i := range h.owners {
		h.owners[i].o = s.options()
	}
	return h
}

func (h *history) run(stores []dedupe.Store, random *rand.Rand, steps int) {
	defer h.end()
	for range steps {
		i, store := random.IntN(len(h.owners)), stores[random.IntN(len(stores))]
		w := &h.owners[i]
		twice := 1 + random.IntN(2)
		goesOn := true
		switch step := random.IntN(4); {
		case step == 0 && !w.ended:
			goesOn = h.times(twice, func() bool { return h.claims(i, store) })
		case step == 1 && w.claim != nil && w.claim.State() == dedupe.StateClaimed:
			goesOn = h.times(twice, func() bool { return h.commits(i) })
			w.ended = true
		case step == 2 && w.claim != nil:
			goesOn = h.times(twice, func() bool { return h.rollsBack(i) })
			w.ended = true
		case step == 3 && w.claim != nil && h.committed != nobody:
			goesOn = h.settles(i)
		}
		if !goesOn {
			return
		}
	}
}

// end gives up what is left; a later history has another key.
func (h *history) end() {
	for _, c := range h.spare {
		_ = c.Rollback(h.ctx())
	}
	for _, w := range h.owners {
		if w.claim != nil {
			_ = w.claim.Rollback(h.ctx())
		}
	}
}

func (h *history) times(n int, step func() bool) bool {
	for range n {
		if !step() {
			return false
		}
	}
	return true
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

func (h *history) fail(format string, args ...any) bool {
	h.Errorf("history %d:\n  %s\n%s", h.number, strings.Join(h.log, "\n  "), fmt.Sprintf(format, args...))
	return false
}

// expected is the state that a claim by owner i must find.
func (h *history) expected(i int) dedupe.State {
	switch {
	case h.committed != nobody:
		return dedupe.StateDone
	case h.holder != nobody && h.holder != i:
		return dedupe.StateInProgress
	}
	return dedupe.StateClaimed
}

// The steps say whether the history goes on.

func (h *history) claims(i int, store dedupe.Store) bool {
	w, want := &h.owners[i], h.expected(i)
	c := h.claim(store, h.key, w.o)
	h.note("owner %d claims: %v", i, c.State())
	switch {
	case c.State() != want:
		return h.fail("want %v", want)
	case want == dedupe.StateDone:
		return h.outputsFit(c.Outputs())
	case want == dedupe.StateClaimed:
		if w.claim == nil || w.claim.State() != dedupe.StateClaimed {
			w.claim = c
		} else {
			h.spare = append(h.spare, c)
		}
		h.holder = i
	}
	return true
}

func (h *history) outputsFit(got [][]byte) bool {
	want := 1
	if h.settled {
		want = 0
	}
	if len(got) != want || want == 1 && string(got[0]) != fmt.Sprint(h.committed) {
		return h.fail("outputs %q, want %d of owner %d", got, want, h.committed)
	}
	return true
}

func (h *history) commits(i int) bool {
	err := h.owners[i].claim.Commit(h.ctx(), [][]byte{[]byte(fmt.Sprint(i))})
	h.note("owner %d commits: %v", i, err)
	fits := h.committed == i || h.committed == nobody && h.holder == i
	if fits != (err == nil) {
		return h.fail("want success: %v", fits)
	}
	if fits && h.committed == nobody {
		h.committed, h.holder = i, nobody
	}
	return true
}

func (h *history) rollsBack(i int) bool {
	err := h.owners[i].claim.Rollback(h.ctx())
	h.note("owner %d rolls back: %v", i, err)
	if err != nil {
		return h.fail("want success")
	}
	if h.owners[i].claim.State() == dedupe.StateClaimed && h.holder == i {
		h.holder = nobody
	}
	return true
}

// settles ends the history where the owner has lost: whether its settle takes effect is the
// store's choice.
func (h *history) settles(i int) bool {
	err := h.owners[i].claim.Settle(h.ctx())
	h.note("owner %d settles: %v", i, err)
	if err != nil {
		return h.fail("want success")
	}
	if h.committed != i {
		return false
	}
	h.settled = true
	return true
}
