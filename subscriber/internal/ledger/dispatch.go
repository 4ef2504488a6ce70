package ledger

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Dispatch is the dispatcher's face of a ledger.
type Dispatch struct{ c *core }

// Picked is an entry that goes out.
type Picked struct {
	Entry *Entry
	Msg   *message.Message
	// Prepare tells that it has to be prepared first, see [Dispatch.Prepared]: the message is
	// not held, the server has another delivery count, or the entry was not renewed in time;
	// preparing again and again makes the pauses of an outage. What was read ahead has
	// the first count, and is held back until it is renewed.
	Prepare bool
}

// Next picks the entry that goes out by a worker; it has none if there is none now. until is
// when to ask again at the latest, without a signal.
func (d Dispatch) Next(worker int) (p Picked, until Instant) {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	until = d.takeDue(now)
	if c.stopping || c.isStandby() {
		return p, until
	}
	var e *Entry
	for {
		e, until = d.pick(now, until)
		if e == nil {
			return p, until
		}
		c.queues.ready--
		if c.set.MaxDeliveries == 0 || e.counts.deliveries < c.set.MaxDeliveries {
			break
		}
		c.deadLetter(e, ReasonMaxDeliveries)
	}
	e.stage, e.attempt = picked, attempt{worker: worker, at: now}
	if e.suspicion.isSuspect() {
		c.suspects.out++
		if c.suspects.mustBeAlone(e, c.set.MaxDeliveries) {
			e.suspicion = alone
			c.suspects.alone++
		}
	}
	e.counts.deliveries++
	c.out.byWorker[worker] = e
	c.out.count++
	if c.queues.ready == c.set.ReadAhead {
		Notify(c.signals.Room)
	}
	isPrepared := e.msg != nil && (e.isFresh() || e.counts.server == e.outCount() && now < e.owner.until)
	return Picked{Entry: e, Msg: e.msg, Prepare: !isPrepared}, until
}

// takeDue makes ready what has waited long enough, and returns when the next one is due.
func (d Dispatch) takeDue(now Instant) (next Instant) {
	c := d.c
	for {
		e, due := c.queues.waiting.takeDue(now)
		if e == nil {
			return due
		}
		if e.counts.overdue = e.counts.writing; !e.counts.overdue {
			c.readyLowest(e)
		}
	}
}

// pick takes the next entry out of its queue.
func (d Dispatch) pick(now, until Instant) (*Entry, Instant) {
	c := d.c
	q := &c.queues
	if now >= q.notBefore {
		if e := d.findNext(&q.suspects); e != nil && c.suspects.mayGo(e, c.set.MaxDeliveries) {
			q.suspects.pop()
			return e, until
		}
		if e := d.findNext(&q.recovered); e != nil {
			q.recovered.pop()
			return e, until
		}
		// Messages that fail again and again must not starve those that never had a try.
		if e := d.findNext(&q.redelivered); e != nil && (!q.again || d.findFresh(now) == nil) {
			q.redelivered.pop()
			q.again = true
			return e, until
		}
	} else {
		until = min(until, q.notBefore)
	}
	e := d.findFresh(now)
	if e != nil {
		q.fresh.pop()
		q.again = false
	}
	return e, until
}

// findNext finds the first entry of a queue that may go; nil while the server has to say first whose it is.
func (d Dispatch) findNext(q *queue) *Entry {
	c := d.c
	e := q.bringToFront(c.role.isBelowOthers)
	if e != nil && e.owner.state == unverified {
		Notify(c.signals.Verify)
		return nil
	}
	return e
}

// findFresh finds the next entry that was read ahead, nil if there is none or it is stale.
func (d Dispatch) findFresh(now Instant) *Entry {
	c := d.c
	e := d.findNext(&c.queues.fresh)
	if e != nil && now >= e.owner.until {
		// Maybe another consumer's by now: no hand-out starts before the server has
		// said that it is ours.
		Notify(c.signals.Verify)
		return nil
	}
	return e
}

// OutCount is the delivery count that the server gets for the hand-out under way, and the
// delay that the message last came with.
func (d Dispatch) OutCount(e *Entry) (count int, delay Delay) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	return e.outCount(), e.delay
}

// Prepared takes in the message of an entry that was picked. Its count was written by a
// command that was sent at the time given.
func (d Dispatch) Prepared(e *Entry, msg *message.Message, size int, delay Delay, sent Instant) {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unload(e)
	e.msg, e.size, e.delay = msg, size, delay
	c.bytes += size
	e.counts.server = e.outCount()
	if e.owner.state != deleted {
		e.confirm(c.leaseFrom(sent), c.now())
	}
}

// Offer puts the context onto an entry that is about to be offered. It is false when
// the entry is not ours any more.
func (d Dispatch) Offer(e *Entry, cancel context.CancelCauseFunc) bool {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if !d.mayOffer(e) || c.now() >= e.owner.until {
		return false
	}
	e.attempt.cancel, e.attempt.ended = cancel, false
	return true
}

func (d Dispatch) mayOffer(e *Entry) bool {
	c := d.c
	return !c.stopping && !c.isStandby() && c.role.isBelowOthers(e) && e.owner.state != anothers && e.owner.state != unverified
}

// MayStay tells whether an entry that nobody has taken yet may still be offered.
func (d Dispatch) MayStay(e *Entry) bool {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	return d.mayOffer(e) && !e.attempt.ended
}

// Withdraw takes back an entry that was not handed out after all. It tells whether the
// entry is lost: one that is gone from the stream needs its message here and somebody to
// take it, and goes with its stream as those do that were not offered, see [Progress.Reset].
func (d Dispatch) Withdraw(e *Entry) (isLost bool) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	return d.withdraw(e)
}

func (d Dispatch) withdraw(e *Entry) (isLost bool) {
	c := d.c
	c.land(e)
	c.rejoin(e)
	e.counts.deliveries--
	switch {
	case e.owner.state == anothers:
		c.done(e)
	case e.owner.state == deleted && (e.msg == nil || c.stopping || c.entries[e.id] != e):
		c.done(e)
		return true
	case e.lane != nil && e.lane.promoteLowest() != e:
		c.readyLowest(e.lane.current)
	default:
		e.stage = ready
		c.queues.ready++
		c.queues.of(e).unpop(e)
	}
	return false
}

// Postpone puts an entry back whose preparation failed; the next one is tried after a pause.
func (d Dispatch) Postpone(e *Entry, pause time.Duration) (isLost bool) {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	isLost = d.withdraw(e)
	c.queues.notBefore = c.now() + Instant(pause)
	return isLost
}

// Question puts an entry back that is pending for nobody; the heartbeat sees to it.
func (d Dispatch) Question(e *Entry) (isLost bool) {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	isLost = d.withdraw(e)
	e.unverify()
	Notify(c.signals.Verify)
	return isLost
}

// Drop forgets an entry that was picked and turned out to be gone from the stream, or
// another consumer's. It tells whether it was known to be deleted.
func (d Dispatch) Drop(e *Entry, isAnothers bool) (wasDeleted bool) {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if isAnothers {
		c.yield()
	}
	c.land(e)
	wasDeleted = e.owner.state == deleted
	c.done(e)
	return wasDeleted
}

// Undecodable sends an entry that was picked to the dead letters.
func (d Dispatch) Undecodable(e *Entry, err error) {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.land(e)
	e.counts.deliveries--
	e.attempt.failure = err
	c.deadLetter(e, ReasonUndecodable)
}

// Stop ends handing out.
func (d Dispatch) Stop() {
	c := d.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopping = true
	Notify(c.signals.Recall)
	Notify(c.signals.Wake)
	Notify(c.signals.Room)
}

// InFlight is how many entries are with the workers.
func (d Dispatch) InFlight() int {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	return d.c.out.count
}

// EndAll ends the contexts of all messages that are with handlers.
func (d Dispatch) EndAll() (ended int) {
	d.c.mu.Lock()
	defer d.c.mu.Unlock()
	for _, e := range d.c.out.byWorker {
		if e == nil || e.attempt.ended {
			continue
		}
		e.end(ErrClosing)
		if e.attempt.cancel != nil { // else it is being prepared
			ended++
		}
	}
	return ended
}
