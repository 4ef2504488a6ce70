package subscriber

import (
	"container/heap"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// book keeps the entries that a subscription holds, and decides which goes out next.
// It does no I/O. Who does, says here what came of it.
type book struct {
	cfg      *Config
	topic    string
	consumer string
	begin    time.Time
	lease    time.Duration // how long a renewal is good for, by our clock

	// Signals, each to one goroutine, of capacity 1.
	wake   chan struct{} // to the slot that hands out: something changed
	recall chan struct{} // to the slot that offers: look whether you still may
	room   chan struct{} // to the reader: there may be room
	work   chan struct{} // to the settler
	verify chan struct{} // to the keeper: entries need to be renewed before they may go out
	idle   chan struct{} // to the drain: nothing is in flight

	mu       sync.Mutex
	entries  map[server.ID]*entry
	left     map[server.ID]bool // what left entries while own pending entries are listed, else nil
	lanes    map[string]*lane
	fresh    queue // read, with their message
	found    queue // of which the server has only told: handed back, or left by a lost reply
	suspects queue // the same, from consumers that died
	redo     queue // to be handed out again
	lastRedo bool  // so was the last one that went out
	waiting  waiting
	inFlight []*entry // by slot
	flying   int

	readyCount, bytes int
	othersFrom        server.ID // behind it nothing was pending in the group when others had something, else zero
	position          position
	lastRead          server.ID
	lastPrint         uint64 // of the entry lastRead
	gate              gate   // of an ordered subscription
	ordered           bool
	stopping          bool // nothing is handed out any more
	prepareAt         instant
	clock             serverClock
	suspectsOut       int
	aloneOut          int
	cautious          bool // until one entry of a dead consumer is settled

	restores, acks, marks, graves []*entry
	urgent                        bool // the settler must not linger
}

func newBook(cfg *Config, topic, consumer string) *book {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	b := &book{
		cfg: cfg, topic: topic, consumer: consumer, begin: time.Now(),
		lease: cfg.MinIdle - leaseMargin(cfg.MinIdle),
		wake:  signal(), recall: signal(), room: signal(), work: signal(), verify: signal(), idle: signal(),
		entries: make(map[server.ID]*entry), lanes: make(map[string]*lane),
		inFlight: make([]*entry, cfg.MaxInFlight),
	}
	b.ordered = cfg.Order != OrderNone && !cfg.FanOut
	return b
}

// leaseMargin is how much earlier than the server's our clock ends ownership: for
// clocks that run at different speeds, and for our own timers.
func leaseMargin(minIdle time.Duration) time.Duration { return minIdle / 10 }

func notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

func (b *book) now() instant { return instant(time.Since(b.begin)) }

// leaseFrom is when ownership ends by our clock that was confirmed by a command sent
// at the time given.
func (b *book) leaseFrom(sent instant) instant {
	if b.cfg.FanOut {
		return forever
	}
	return sent + instant(b.lease)
}

// arrival is an entry on its way into the book.
type arrival struct {
	entry  *entry
	key    string
	hasKey bool
	print  uint64 // of the last entry of a read
}

// add takes entries in, in the order of the stream. One that is held already is only
// renewed.
func (b *book) add(list []arrival, sent instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	until := b.leaseFrom(sent)
	if len(list) > 0 {
		if last := list[len(list)-1]; last.print != 0 {
			if !b.cfg.FanOut && b.position.known && !list[0].entry.id.After(b.position.id) {
				b.doubt() // the group was made again, or set back: what is held may be another's
				b.position.drops++
			}
			b.position.id, b.position.known = last.entry.id, true
			b.lastRead, b.lastPrint = last.entry.id, last.print
		}
	}
	for _, a := range list {
		e := a.entry
		if held := b.entries[e.id]; held != nil {
			held.gone = false
			b.own(held, until)
			continue
		}
		e.book = b
		b.own(e, until)
		b.entries[e.id] = e
		if e.reason != "" {
			b.bury(e)
			continue
		}
		if e.suspect {
			b.cautious = true
		}
		b.bytes += e.size
		b.admit(e, a.key, a.hasKey)
	}
	notify(b.wake)
}

// ready puts an entry into the queue that it belongs to.
func (b *book) ready(e *entry) {
	e.state = stateReady
	b.readyCount++
	if !e.queued {
		e.queued = true
		b.queueOf(e).push(e)
	}
}

func (b *book) queueOf(e *entry) *queue {
	switch {
	case e.msg != nil && !e.again && e.written == 1 && !e.suspect:
		return &b.fresh
	case e.suspect:
		return &b.suspects
	case !e.again:
		return &b.found
	default:
		return &b.redo
	}
}

// next picks the entry that goes out by a slot, nil if there is none now. until is
// when to ask again at the latest, without a signal.
func (b *book) next(slot int) (e *entry, until instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	until = forever
	for top := b.waiting.top(); top != nil; top = b.waiting.top() {
		if top.due > now {
			until = top.due
			break
		}
		heap.Pop(&b.waiting)
		if top.overdue = top.marking; !top.overdue {
			b.ready(top)
		}
	}
	if b.stopping || b.isShut() {
		return nil, until
	}
	for {
		e, until = b.pick(now, until)
		if e == nil {
			return nil, until
		}
		b.readyCount--
		if b.cfg.MaxDeliveries > 0 && e.count >= b.cfg.MaxDeliveries {
			e.reason = ReasonMaxDeliveries
			b.bury(e)
			continue
		}
		break
	}
	e.state, e.slot, e.outAt = stateOut, slot, now
	e.over, e.delayed, e.counts, e.reason, e.failure, e.cancel = false, false, false, "", nil, nil
	if e.suspect {
		b.suspectsOut++
		if e.alone = b.mustBeAlone(e); e.alone {
			b.aloneOut++
		}
	}
	e.count++
	b.inFlight[slot] = e
	b.flying++
	if b.readyCount == b.cfg.ReadAhead {
		notify(b.room)
	}
	return e, until
}

// pick takes the next entry out of its queue.
func (b *book) pick(now, until instant) (*entry, instant) {
	if now >= b.prepareAt {
		if e := b.head(&b.suspects); e != nil && b.mayGo(e) {
			b.suspects.pop()
			return e, until
		}
		if e := b.head(&b.found); e != nil {
			b.found.pop()
			return e, until
		}
		// Messages that fail again and again must not starve those that never had a try.
		if e := b.head(&b.redo); e != nil && (!b.lastRedo || b.freshFor(now) == nil) {
			b.redo.pop()
			b.lastRedo = true
			return e, until
		}
	} else {
		until = min(until, b.prepareAt)
	}
	e := b.freshFor(now)
	if e != nil {
		b.fresh.pop()
		b.lastRedo = false
	}
	return e, until
}

// head is the first entry of a queue, nil while the server has to say first whose it is.
func (b *book) head(q *queue) *entry {
	e := q.peek(b.isBelowOthers)
	if e != nil && e.doubt {
		notify(b.verify)
		return nil
	}
	return e
}

// freshFor is the next entry that was read ahead, nil if there is none or it is stale.
func (b *book) freshFor(now instant) *entry {
	e := b.head(&b.fresh)
	if e != nil && now >= e.until {
		// Maybe another consumer's by now: no hand-out starts before the server has
		// said that it is ours.
		notify(b.verify)
		return nil
	}
	return e
}

// mustBeAlone tells that no other suspect may be in flight with e. An entry that was
// in flight when a process died may have killed it. One that was not, as far as
// known, is suspected only until it is seen that such entries do no harm; with a
// single delivery allowed even one unjust count would be a sentence.
func (b *book) mustBeAlone(e *entry) bool {
	return e.count > 0 || b.cautious || b.cfg.MaxDeliveries == 1
}

func (b *book) mayGo(e *entry) bool {
	return b.aloneOut == 0 && (b.suspectsOut == 0 || !b.mustBeAlone(e))
}

// land takes an entry out of its slot.
func (b *book) land(e *entry) {
	b.inFlight[e.slot] = nil
	b.flying--
	if e.suspect {
		b.suspectsOut--
		notify(b.wake)
	}
	if b.flying == 0 && b.stopping {
		notify(b.idle)
	}
}

// rejoin lets other suspects go out after e.
func (b *book) rejoin(e *entry) {
	if e.alone {
		e.alone = false
		b.aloneOut--
		notify(b.wake)
	}
}

// withdraw takes back an entry that was not handed out after all. It tells whether the
// entry is lost: one that is gone from the stream needs its message here and somebody to
// take it, and goes with its stream as those do that were not offered, see reset.
func (b *book) withdraw(e *entry) (lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.land(e)
	b.rejoin(e)
	e.count--
	switch {
	case e.gone:
		b.done(e)
	case e.deleted && (e.msg == nil || b.stopping || b.entries[e.id] != e):
		b.done(e)
		return true
	default:
		e.state, e.queued = stateReady, true
		b.readyCount++
		b.queueOf(e).unpop(e)
	}
	return false
}

// done forgets an entry.
func (b *book) done(e *entry) {
	if e.state == stateReady {
		b.readyCount--
	}
	e.state = stateDone
	b.unload(e)
	b.rejoin(e)
	b.remove(e)
	if e.lane != nil {
		b.pass(e)
		notify(b.wake)
	}
	if len(b.entries) < b.cfg.MaxHeld {
		notify(b.room)
	}
}

func (b *book) remove(e *entry) {
	if b.entries[e.id] != e {
		return // an entry of a stream that is gone
	}
	delete(b.entries, e.id)
	if b.left != nil {
		b.left[e.id] = true
	}
}

// unload lets go of the message.
func (b *book) unload(e *entry) {
	b.bytes -= e.size
	e.size, e.msg = 0, nil
}

// bury marks an entry for the dead letters.
func (b *book) bury(e *entry) {
	e.state = stateSettling
	b.rejoin(e)
	b.unload(e)
	b.graves = append(b.graves, e)
	notify(b.work)
}

// wait makes an entry wait for its redelivery.
func (b *book) wait(e *entry, d time.Duration) {
	e.state = stateWaiting
	b.unload(e)
	e.due = b.now() + instant(d)
	e.again = true
	if !b.cfg.FanOut && !e.gone && !e.deleted && e.written != e.wanted() {
		e.marking = true
		b.marks = append(b.marks, e)
		notify(b.work)
	} else {
		b.rejoin(e)
	}
	heap.Push(&b.waiting, e)
	notify(b.wake)
}

// marked takes in that the server has the counts of these entries, but for those that are
// gone from the stream. It returns the IDs of those that are lost with that.
func (b *book) marked(list []*entry, deleted map[string]bool) (lost []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range list {
		e.marking = false
		b.rejoin(e)
		if deleted[e.name] && e.state != stateDone {
			lost = append(lost, b.vanished(e)...)
		}
		if e.overdue && e.state == stateWaiting {
			e.overdue = false
			b.ready(e)
		}
	}
	notify(b.wake)
	return lost
}

// backoff is how long an entry waits after so many deliveries.
func (b *book) backoff(count int) time.Duration {
	d := b.cfg.RedeliverAfter
	for range min(count-1, 40) {
		if d >= b.cfg.RedeliverMax/2 {
			d = b.cfg.RedeliverMax
			break
		}
		d *= 2
	}
	if d <= 0 {
		return 0
	}
	// Entries that failed together would come again together.
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}
