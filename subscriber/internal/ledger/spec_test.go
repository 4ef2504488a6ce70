package ledger

import (
	"fmt"
	"slices"
	"strings"
)

// spec is what the ledger must know and do, in other words than its own.
type spec struct {
	seq         int                 // of steps
	held        map[*Entry]*tracked // what it holds
	isMisplaced bool                // the group was made again anywhere: what is behind it may have nobody
	isQuiet     bool                // the group was never destroyed

	cautious bool     // a dead consumer has left something, and nothing of it was settled yet
	ackQueue []*Entry // acknowledged, and not yet with the committer

	active bool // under an order
	until  Instant
	others uint64 // the lowest entry of others, as the server last said
	losses int    // how often the ledger learned of others

	// excused are entries that need not be handled any more: by the server's account, which
	// an operator has spoilt, or since a handler has acknowledged them.
	excused map[uint64]bool
	// overtaken are entries of which the server may have another delivery count than the
	// ledger thinks: it was another's meanwhile, or a count was written again, and late.
	overtaken map[uint64]bool

	asleep map[actor]Instant // who was told that there is nothing to do, until when
}

// tracked is one entry that the ledger holds.
type tracked struct {
	e       *Entry
	id      uint64
	gen     int  // of its stream
	inOrder bool // it waits for others of its key
	addedAt int
	firstAt int // when it was first picked, 0 if never

	counted   int // deliveries
	recovered bool
	suspect   bool
	alone     bool // with other suspects waiting, until the server knows what became of it
	dropped   bool // the server may have another count: the group was gone
	acked     bool

	lease    Instant
	verified bool
	given    bool // maybe
	others   bool // the server last said so
	deleted  bool
	seen     Instant

	came Delay // what its message comes with
}

func newSpec() spec {
	return spec{held: make(map[*Entry]*tracked), isQuiet: true, asleep: make(map[actor]Instant), excused: make(map[uint64]bool), overtaken: make(map[uint64]bool)}
}

// sleeps notes that an actor found nothing to do: without a signal it comes back only at
// the time given.
func (w *world) sleeps(a actor, until Instant) { w.asleep[a] = until }

// isAsleep tells whether an actor would not be here but for the model.
func (w *world) isAsleep(a actor, signal chan struct{}) bool {
	until, ok := w.asleep[a]
	delete(w.asleep, a)
	select {
	case <-signal:
		return false
	default:
		return ok && w.l.Now() < until
	}
}

// ours notes that the server has said that an entry is ours, by a command sent then.
func (w *world) ours(tr *tracked, sent Instant) {
	if !tr.deleted {
		tr.verified, tr.given, tr.seen, tr.lease = true, false, w.l.Now(), w.l.core.leaseFrom(sent)
	}
}

// learnsOfOthers notes that another consumer has or had something.
func (w *world) learnsOfOthers() {
	w.active = false
	w.losses++
}

// isAnothers notes that the server has said so. It is called with the stage in which the
// ledger has learned of it.
func (w *world) isAnothers(tr *tracked, was stage) {
	w.learnsOfOthers()
	if w.s.pending[tr.id] == nil {
		w.excuse(tr) // it was not renewed in time, or may have been given away
	}
	switch was {
	case committing:
	case picked:
		tr.others, tr.deleted = true, false
		for _, h := range w.workers {
			if h != nil && h.e == tr.e && h.offered && h.cause == nil {
				w.t.Fatalf("%s is another's, and its context has not ended", tr.e.name)
			}
		}
	default:
		delete(w.held, tr.e)
	}
}

// isDeleted notes that an entry is gone from the stream; hadMessage is of before.
func (w *world) isDeleted(tr *tracked, was stage, hadMessage bool) {
	if !tr.others {
		tr.deleted = true
	}
	tr.lease = Forever
	if !hadMessage && was != picked && was != committing {
		delete(w.held, tr.e)
	}
}

func (w *world) excuse(tr *tracked) {
	if tr.gen == w.s.gen {
		w.excused[tr.id] = true
	}
}

// excuseSkipped notes that a group was made again behind entries that the ledger did not
// know of.
func (w *world) excuseSkipped(start uint64) {
	known := make(map[uint64]bool)
	for _, tr := range w.held {
		known[tr.id] = tr.gen == w.s.gen && !tr.others
	}
	for id := range w.s.stream {
		if id <= start && !known[id] {
			w.excused[id] = true
		}
	}
}

func (w *world) isSettled(id uint64) bool {
	if w.isMisplaced && id <= w.s.delivered && w.s.pending[id] == nil {
		return true
	}
	return w.s.handled[id] != "" || w.s.dead[id] || !w.isQuiet && w.excused[id]
}

func isWithNobody(s stage) bool { return s == ready || s == parked || s == waiting }

// toBeReadAgain notes that entries are dropped that nobody works on.
func (w *world) toBeReadAgain(list ...*Entry) {
	for _, e := range list {
		if w.l.core.entries[e.id] == e && isWithNobody(e.stage) { // else of a stream that is gone
			delete(w.held, e)
		}
	}
}

// mayGo tells whether the ledger may hand out something with such an ID.
func (w *world) mayGo(id uint64) bool {
	if !w.l.core.set.Ordered {
		return true
	}
	return w.active && w.l.Now() < w.until && (w.others == 0 || id < w.others)
}

// checkPicked checks an entry that was picked, before it counts.
func (w *world) checkPicked(e *Entry) *tracked {
	tr := w.held[e]
	switch maxD := w.l.core.set.MaxDeliveries; {
	case tr == nil:
		w.t.Fatalf("%s is picked, and not held", e.name)
	case tr.acked:
		w.t.Fatalf("%s is picked after its acknowledgement", e.name)
	case maxD > 0 && tr.counted >= maxD:
		w.t.Fatalf("%s is picked after %d deliveries", e.name, tr.counted)
	case w.stopped:
		w.t.Fatalf("%s is picked after the end", e.name)
	case !w.mayGo(tr.id):
		w.t.Fatalf("%s is picked; active %v until %v, others have %d", e.name, w.active, w.until, w.others)
	}
	for _, h := range w.workers {
		if h != nil {
			w.checkBeside(tr, h.tr)
		}
	}
	w.checkFirstOfKey(tr)
	w.checkSuspect(tr)
	return tr
}

// checkBeside checks an entry that is picked while another one is out.
func (w *world) checkBeside(tr, out *tracked) {
	switch {
	case out.e == tr.e || out.id == tr.id && out.gen == tr.gen:
		w.t.Fatalf("%s is out twice", tr.e.name)
	case tr.inOrder && out.inOrder && w.key(out.id) == w.key(tr.id):
		w.t.Fatalf("%s is out with %s of the same key", tr.e.name, out.e.name)
	}
}

// checkFirstOfKey checks that nothing of the key comes before it, but what came when it had
// been picked already.
func (w *world) checkFirstOfKey(tr *tracked) {
	if !tr.inOrder {
		return
	}
	if tr.firstAt == 0 {
		tr.firstAt = w.seq
	}
	for _, o := range w.held {
		isBefore := o.gen == tr.gen && o.id < tr.id || o.gen < tr.gen
		if o.inOrder && isBefore && w.key(o.id) == w.key(tr.id) && !o.acked && o.addedAt <= tr.firstAt && o.e.stage != committing {
			w.t.Fatalf("%s goes out before %s of its key", tr.e.name, o.e.name)
		}
	}
}

func (w *world) mustBeAlone(tr *tracked) bool {
	return tr.counted > 0 || w.cautious || w.l.core.set.MaxDeliveries == 1
}

// checkSuspect checks that an entry which may kill the process takes no other along.
func (w *world) checkSuspect(tr *tracked) {
	if !tr.suspect {
		return
	}
	for _, o := range w.held {
		isOut := slices.ContainsFunc(w.workers, func(h *handout) bool { return h != nil && h.tr == o })
		switch {
		case o.alone && isOut:
			w.t.Fatalf("suspect %s is out with %s, which must be alone", tr.e.name, o.e.name)
		case o.alone:
			w.t.Fatalf("suspect %s is out before the server knows what became of %s", tr.e.name, o.e.name)
		case isOut && o.suspect && w.mustBeAlone(tr):
			w.t.Fatalf("suspect %s is out with %s, and must be alone", tr.e.name, o.e.name)
		}
	}
	tr.alone = w.mustBeAlone(tr)
}

// checkOffered checks that an entry may be with a handler.
func (w *world) checkOffered(tr *tracked, isNew bool) {
	switch {
	case w.stopped:
		w.t.Fatalf("%s is offered after the end", tr.e.name)
	case tr.others:
		w.t.Fatalf("%s is offered, which the server has said is another's", tr.e.name)
	case !tr.deleted && !tr.verified:
		w.t.Fatalf("%s is offered before the server has said again whose it is", tr.e.name)
	case isNew && w.l.Now() >= tr.lease:
		w.t.Fatalf("%s is offered after its lease", tr.e.name)
	case isNew && !w.mayGo(tr.id):
		w.t.Fatalf("%s is offered; active %v until %v, others have %d", tr.e.name, w.active, w.until, w.others)
	case w.l.core.set.Ordered && (!w.active || w.others != 0 && w.others < tr.id):
		w.t.Fatalf("%s is offered, and others have %d", tr.e.name, w.others)
	}
	// What the server has, as far as all keep to the rules.
	if p := w.s.pending[tr.id]; isNew && w.isQuiet && !tr.deleted && w.s.stream[tr.id] && !w.s.stolen[tr.id] && (p == nil || p.owner != me) {
		w.t.Fatalf("%s is offered, which another has taken over: %+v", tr.e.name, p)
	}
}

// checkExpired checks that contexts end when the lease is over.
func (w *world) checkExpired() {
	for _, h := range w.workers {
		if h != nil && h.offered && h.cause == nil && w.l.Now() >= h.tr.lease {
			w.t.Fatalf("the lease of %s is over, and its context has not ended", h.e.name)
		}
	}
}

// checkState checks what must hold at any time.
func (w *world) checkState() {
	w.checkHeld()
	w.checkAccounts()
	w.checkCounts()
	w.checkNothingForgotten()
}

func (w *world) checkHeld() {
	for e, tr := range w.held {
		if e.stage == done {
			w.t.Fatalf("%s is forgotten: %+v", e.name, *tr)
		}
	}
	for _, e := range w.l.core.entries {
		if w.held[e] == nil {
			w.t.Fatalf("%s is held, which it should not be", e.name)
		}
	}
}

// checkAccounts checks the sums that the ledger keeps.
func (w *world) checkAccounts() {
	c := w.l.core
	var bytes, inQueues, out, suspectsOut, alone int
	for e := range w.held {
		bytes += e.size
		if e.stage == ready {
			inQueues++
			if !e.queued {
				w.t.Fatalf("%s is ready and in no queue", e.name)
			}
		}
		if e.suspicion.keepsOthers() {
			alone++
		}
	}
	for _, e := range c.out.byWorker {
		if e != nil {
			out++
			if e.suspicion.isSuspect() {
				suspectsOut++
			}
		}
	}
	got := []int{c.bytes, c.queues.ready, c.out.count, c.suspects.out, c.suspects.alone}
	if want := []int{bytes, inQueues, out, suspectsOut, alone}; !slices.Equal(got, want) {
		w.t.Fatalf("bytes, ready, out, suspects out, alone are %v, want %v", got, want)
	}
	for _, l := range c.lanes {
		if l.current.stage == done || l.current.stage == parked {
			w.t.Fatalf("%s is the current one of its key in stage %d", l.current.name, l.current.stage)
		}
	}
}

// checkCounts checks that the server has the delivery counts that it should.
func (w *world) checkCounts() {
	if !w.isQuiet {
		return
	}
	w.noteOvertaken()
	for _, h := range w.workers {
		if h == nil || !h.offered || w.overtaken[h.tr.id] {
			continue
		}
		want := h.tr.counted + 1
		if h.tr.counted == 1 && !h.tr.recovered {
			want = 1
		}
		if p := w.s.pending[h.tr.id]; p != nil && p.owner == me && !w.s.stolen[h.tr.id] && !h.tr.dropped && !h.tr.others && p.count != want {
			w.t.Fatalf("the server has count %d of %s at its delivery %d, want %d", p.count, h.e.name, h.tr.counted, want)
		}
	}
	for e, tr := range w.held {
		if p := w.s.pending[tr.id]; !w.overtaken[tr.id] && e.stage == waiting && !e.counts.writing && !tr.dropped && !tr.deleted && !w.s.stolen[tr.id] && p != nil && p.owner == me && p.count != tr.counted+1 {
			w.t.Fatalf("the server has count %d of %s, which waits after %d deliveries", p.count, e.name, tr.counted)
		}
	}
}

// noteOvertaken notes entries of which an earlier holding, which was lost meanwhile, may still
// have its count written.
func (w *world) noteOvertaken() {
	for _, o := range slices.Concat(w.todo.Counts, w.l.core.todo.counts) {
		if w.held[o] == nil {
			w.overtaken[o.id.MS] = true
		}
	}
}

// checkNothingForgotten checks that every entry is handled, held, pending or unread.
func (w *world) checkNothingForgotten() {
	if !w.isQuiet {
		return // an operator may have made the group anywhere; see recreate
	}
	held := make(map[uint64]bool)
	for _, tr := range w.held {
		held[tr.id] = true
	}
	for id := range w.s.stream {
		if !w.isSettled(id) && !held[id] && w.s.pending[id] == nil && id <= w.s.delivered {
			w.t.Fatalf("nobody has %d, and nobody will read it", id)
		}
	}
}

// checkAllSettled checks that every entry that is in the stream was handled.
func (w *world) checkAllSettled() {
	for id := range w.s.stream {
		if !w.isSettled(id) {
			w.t.Fatalf("%d was not handled: %s", id, w.describe())
		}
	}
}

func (w *world) checkEmpty() {
	c := w.l.core
	q := &c.queues
	if n := len(c.entries) + len(w.held) + len(c.lanes) + c.bytes + q.ready + c.out.count + c.suspects.out + c.suspects.alone; n != 0 {
		w.t.Fatalf("left in the end: %s", w.describe())
	}
}

func (w *world) describe() string {
	c := w.l.core
	var b strings.Builder
	fmt.Fprintf(&b, "%d entries, %d held, %d lanes, %d bytes, %d ready, %d out, suspects %+v, role %+v, stream %v, delivered %d, group %v\n",
		len(c.entries), len(w.held), len(c.lanes), c.bytes, c.queues.ready, c.out.count, c.suspects, c.role, w.s.ids(), w.s.delivered, w.s.exists)
	for e := range w.held {
		fmt.Fprintf(&b, "  %s stage %d owner %+v counts %+v\n", e.name, e.stage, e.owner, e.counts)
	}
	for id, p := range w.s.pending {
		fmt.Fprintf(&b, "  pending %d %+v\n", id, *p)
	}
	return b.String()
}
