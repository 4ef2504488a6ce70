package ledger

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// TestModel drives a ledger as the workers of a subscription do, against a fake server that
// another consumer and an operator use as well, and compares what it does with a simple
// specification (tracked), step by step. The workers are in actors_test.go and
// handlers_test.go, the specification and what must hold in spec_test.go.
func TestModel(t *testing.T) {
	for range 12 { // what rapid does by default is over in a moment
		rapid.Check(t, func(rt *rapid.T) {
			inBubble(t, func() {
				w := newWorld(rt)
				for range rapid.IntRange(20, 250).Draw(rt, "steps") {
					w.step()
				}
				w.end()
			})
		})
	}
}

// inBubble runs f with a fake clock. rapid sees its panics, and by the line those that fail
// the test apart from its own, which say that it has drawn in vain.
func inBubble(t *testing.T, f func()) {
	var failure any
	synctest.Test(t, func(*testing.T) {
		defer func() { failure = recover() }()
		f()
	})
	if failure != nil {
		panic(failure)
	}
}

const testMinIdle = 60 * time.Second

// world is a ledger with all that is around it.
type world struct {
	t     *rapid.T
	l     *Ledger
	s     *fakeServer
	order string

	actors  [actorCount]func() // what an actor does next, nil if it is idle
	workers []*handout
	late    []func() bool // commands that reach the server later
	todo    Todo          // of the committer
	dead    []DeadLetter

	mustRecover, lateArrival, unconfirmed bool
	takeovers                             int
	knownGen                              int // of the stream, as the fetcher knows
	calm                                  bool
	stopped                               bool
	isRough                               bool // operators destroy groups and streams

	spec
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, order: rapid.SampledFrom(orders).Draw(t, "order"), isRough: rapid.Bool().Draw(t, "rough"), mustRecover: true}
	set := Settings{
		Topic: "orders", Group: "g", Consumer: me, Ordered: w.order != "none",
		MaxInFlight: rapid.IntRange(1, 3).Draw(t, "in flight"), ReadAhead: 4, ReadAheadBytes: 40, MaxHeld: rapid.SampledFrom([]int{6, 12}).Draw(t, "held"),
		MinIdle: testMinIdle, MaxDeliveries: rapid.IntRange(0, 3).Draw(t, "deliveries"),
		RedeliverAfter: 3, RedeliverMax: 3, // so short that none is taken off at random
	}
	w.l = New(set)
	w.s = newFakeServer(w.l.Now, testMinIdle)
	w.knownGen = w.s.gen
	w.workers = make([]*handout, set.MaxInFlight)
	w.spec = newSpec()
	return w
}

func (w *world) draw(label string, n int) int { return rapid.IntRange(0, n-1).Draw(w.t, label) }

func (w *world) key(id uint64) string {
	if w.order == "stream" {
		return ""
	}
	return fmt.Sprint(id % 3)
}

func entryName(id uint64) string { return streamid.ID{MS: id}.String() }

// steps are what may happen.
var steps = map[string]func(*world){
	"fetch": (*world).fetch, "dispatch": (*world).dispatch, "handle": (*world).handle, "commit": (*world).commit,
	"move dead letters": (*world).moveDead, "maintain": (*world).maintain, "expire": (*world).expire, "time": (*world).pass,
	"publish": (*world).publish, "rival": (*world).rival, "operator": (*world).operate, "late command": (*world).lateCommand,
}

// stepNames has them as often as they come.
var stepNames = func() (names []string) {
	for _, s := range []struct {
		name  string
		often int
	}{
		{"fetch", 6}, {"dispatch", 6}, {"handle", 6}, {"commit", 4}, {"move dead letters", 2}, {"maintain", 4}, {"expire", 1},
		{"time", 4}, {"publish", 3}, {"rival", 4}, {"operator", 2}, {"late command", 1},
	} {
		names = append(names, slices.Repeat([]string{s.name}, s.often)...)
	}
	return names
}()

func (w *world) step() {
	steps[rapid.SampledFrom(stepNames).Draw(w.t, "step")](w)
	w.tick(time.Microsecond)
	w.checkState()
}

func (w *world) tick(d time.Duration) {
	w.seq++
	<-time.After(d)
}

// pass lets time pass.
func (w *world) pass() {
	w.tick(rapid.SampledFrom([]time.Duration{time.Second, time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second, 56 * time.Second}).Draw(w.t, "passes"))
}

func (w *world) expire() {
	w.l.Ownership.Expire()
	w.checkExpired()
}

// publish adds entries to the stream.
func (w *world) publish() {
	for range 1 + w.draw("published", 3) {
		if len(w.s.stream) < 40 {
			w.s.last++
			w.s.stream[w.s.last] = true
		}
	}
}

// rival is another consumer of the group.
func (w *world) rival() {
	s := w.s
	mine, its := s.rows(me), s.rows(rival)
	switch w.draw("rival", 7) {
	case 0: // takes what is idle, as it may
		if !w.l.core.set.Ordered || s.now()-s.seen[me] >= Instant(testMinIdle) {
			back, dead := s.take(rival, 3, true)
			for _, f := range slices.Concat(back, dead) {
				w.overtaken[f.id] = true
			}
		}
	case 1, 2: // takes what it may not
		if len(mine) > 0 {
			id := mine[w.draw("stolen", len(mine))]
			if s.claim(id, rival, 0) {
				s.stolen[id] = true
				s.seen[rival] = s.now()
			}
		}
	case 3: // acknowledges
		if len(its) > 0 {
			s.settle(its[w.draw("acknowledged", len(its))], rival)
		}
	case 4, 5: // hands back, and ends
		for _, id := range its {
			if s.claim(id, handback, 0) {
				s.pending[id].since = -Instant(HandbackIdle)
			}
		}
		delete(s.seen, rival)
	case 6: // ends without a word
		for _, id := range its {
			s.pending[id].since -= Instant(testMinIdle)
			if w.draw("had handed it out", 2) == 0 {
				s.pending[id].count++
				w.overtaken[id] = true // we may hold it, and not know of that
			}
		}
		delete(s.seen, rival)
	}
}

// operate is what operators do.
func (w *world) operate() {
	s := w.s
	ids := s.ids()
	what := w.draw("operator", 8)
	if !w.isRough {
		what %= 3
	}
	switch what {
	case 0, 1, 2: // deletes an entry
		if len(ids) > 0 {
			delete(s.stream, ids[w.draw("deleted", len(ids))])
		}
	case 3, 4: // destroys the group
		w.groupGone()
		s.destroy()
	case 5: // the same, and another consumer makes it again
		if w.knownGen != s.gen {
			return // of a new stream we have to hear first
		}
		w.groupGone()
		s.destroy()
		start := uint64(w.draw("start", int(s.last)+1))
		s.create(start)
		w.isMisplaced = true
		w.excuseSkipped(start)
	case 6, 7: // deletes the stream
		w.groupGone()
		s.renew()
		clear(w.excused)
	}
}

func (w *world) lateCommand() {
	if len(w.late) > 0 {
		run := w.late[0]
		w.late = w.late[1:]
		run()
	}
}

// end drains all that is there, or stops the subscription, and compares what is left.
func (w *world) end() {
	w.calm = true
	if w.draw("ending", 2) == 0 {
		w.drain()
		w.checkAllSettled()
		w.checkEmpty()
	} else {
		w.stop()
	}
}

// drain goes on without disturbance until everything is settled.
func (w *world) drain() {
	for len(w.late) > 0 {
		w.lateCommand()
	}
	for a := range actorCount {
		w.finish(a)
	}
	delete(w.s.seen, rival)
	for range 400 {
		if w.isDone() {
			return
		}
		for _, id := range w.s.rows(rival) {
			if w.s.claim(id, handback, 0) {
				w.s.pending[id].since = -Instant(HandbackIdle)
			}
		}
		w.heartbeat()
		w.look()
		w.commit()
		w.moveDead()
		w.fetch()
		w.takeOver(maintainer, true)
		for range w.workers {
			w.dispatch()
			w.handle()
		}
		w.expire()
		w.tick(1100 * time.Millisecond)
		w.checkState()
	}
	w.t.Fatalf("not settled in the end: %s", w.describe())
}

func (w *world) isDone() bool {
	for _, id := range w.s.ids() {
		if !w.isSettled(id) {
			return false
		}
	}
	c := w.l.core
	return w.s.exists && w.knownGen == w.s.gen && len(w.held) == 0 && len(c.entries) == 0 && c.out.count == 0 && len(w.s.pending) == 0 && w.todo.IsEmpty() && len(w.dead) == 0 && !slices.ContainsFunc(w.actors[:], func(f func()) bool { return f != nil })
}

// stop ends the subscription as drain of package subscriber does.
func (w *world) stop() {
	w.l.Dispatch.Stop()
	w.stopped = true
	w.finish(dispatcher)
	if p, _ := w.l.Dispatch.Next(0); p.Entry != nil {
		w.t.Fatalf("%s goes out after the end", p.Entry.name)
	}
	stubborn := w.draw("stubborn", 3) == 0
	w.l.Dispatch.EndAll()
	for n, h := range w.workers {
		if h == nil {
			continue
		}
		if h.cause == nil {
			w.t.Fatalf("the context of %s has not ended with the subscription", h.e.name)
		}
		if !stubborn {
			w.settle(n)
		}
	}
	w.finish(fetcher)
	w.finish(maintainer)
	for range 20 {
		w.commit()
		w.moveDead()
	}
	w.handBackAll()
}

// finish completes what an actor is at.
func (w *world) finish(a actor) {
	for w.actors[a] != nil {
		w.next(a)
	}
}
