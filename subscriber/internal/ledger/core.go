package ledger

import (
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// core is what the faces share. The lock guards all below it.
type core struct {
	set     Settings
	begin   time.Time
	lease   time.Duration // how long a renewal is good for, by our clock
	signals Signals

	mu       sync.Mutex
	entries  map[streamid.ID]*Entry
	left     map[streamid.ID]bool // what left entries while own pending entries are listed, else nil
	lanes    lanes
	queues   queues
	out      out
	bytes    int // of the messages that are held
	role     role
	progress progress
	clock    serverClock
	suspects suspects
	todo     todo
	stopping bool // nothing is handed out any more
}

// out is what has been picked and is not settled.
type out struct {
	byWorker []*Entry
	count    int
}

func (c *core) now() Instant { return Instant(time.Since(c.begin)) }

// leaseFrom is when ownership ends by our clock that was confirmed by a command sent
// at the time given.
func (c *core) leaseFrom(sent Instant) Instant {
	if c.set.FanOut {
		return Forever
	}
	return sent + Instant(c.lease)
}

// readyLowest puts an entry into the queue that it belongs to, or under an order the lowest of its
// key, where that came later.
func (c *core) readyLowest(e *Entry) {
	if e.lane != nil {
		e = e.lane.promoteLowest()
	}
	e.stage = ready
	c.queues.ready++
	if !e.queued {
		e.queued = true
		c.queues.of(e).push(e)
	}
}

// land takes an entry from its worker.
func (c *core) land(e *Entry) {
	c.out.byWorker[e.attempt.worker] = nil
	c.out.count--
	if e.suspicion.isSuspect() {
		c.suspects.out--
		Notify(c.signals.Wake)
	}
	if c.out.count == 0 && c.stopping {
		Notify(c.signals.Idle)
	}
}

// rejoin lets other suspects go out after e.
func (c *core) rejoin(e *Entry) {
	if e.suspicion.keepsOthers() {
		e.suspicion = e.suspicion.rejoined()
		c.suspects.alone--
		Notify(c.signals.Wake)
	}
}

// done forgets an entry.
func (c *core) done(e *Entry) {
	if e.stage == ready {
		c.queues.ready--
	}
	e.stage = done
	c.unload(e)
	c.rejoin(e)
	c.remove(e)
	if e.lane != nil {
		c.pass(e)
		Notify(c.signals.Wake)
	}
	if len(c.entries) < c.set.MaxHeld {
		Notify(c.signals.Room)
	}
}

// forget drops those of the entries that no handler has: they will be read again. It
// returns their IDs.
func (c *core) forget(list []*Entry) (dropped []string) {
	for _, e := range list {
		switch e.stage {
		case ready, parked, waiting:
			// Not done: that would let the next of its key go out.
			if e.stage == ready {
				c.queues.ready--
			}
			e.stage = done
			c.rejoin(e)
			c.unload(e)
			c.remove(e)
			c.progress.lower(e.id.Before())
			dropped = append(dropped, e.name)
		}
	}
	if len(dropped) > 0 {
		for _, next := range c.lanes.prune() {
			c.readyLowest(next)
		}
	}
	return dropped
}

func (c *core) remove(e *Entry) {
	if c.entries[e.id] != e {
		return // an entry of a stream that is gone
	}
	delete(c.entries, e.id)
	if c.left != nil {
		c.left[e.id] = true
	}
}

// unload lets go of the message.
func (c *core) unload(e *Entry) {
	c.bytes -= e.size
	e.size, e.msg = 0, nil
}

// deadLetter queues an entry for the dead letters.
func (c *core) deadLetter(e *Entry, reason string) {
	e.stage, e.attempt.reason = committing, reason
	c.rejoin(e)
	c.unload(e)
	c.todo.deadLetters = append(c.todo.deadLetters, e)
	Notify(c.signals.DeadLetters)
	Notify(c.signals.Room) // of bytes
}

// pass lets the next entry of the lane go out, after e.
func (c *core) pass(e *Entry) {
	if next := c.lanes.pass(e); next != nil {
		c.readyLowest(next)
	}
}

// takenAway ends an entry that another consumer has.
func (c *core) takenAway(e *Entry) []Ended {
	c.yield()
	switch e.stage {
	case committing:
		return nil // the answer to its acknowledgement will tell
	case picked:
		e.owner.state = anothers
		wasEnded := e.attempt.ended
		e.end(ErrOwnershipLost)
		Notify(c.signals.Recall)
		if wasEnded {
			return nil
		}
		return []Ended{{Name: e.name, InFlight: true}}
	}
	c.done(e)
	return []Ended{{Name: e.name}}
}

// vanished takes in that an entry is no longer in the stream. One whose message is here
// is handled all the same; else it returns the ID.
func (c *core) vanished(e *Entry) (lost []string) {
	e.markDeleted()
	if e.msg == nil && e.stage != picked && e.stage != committing {
		c.done(e)
		lost = []string{e.name}
	}
	return lost
}

func (c *core) unverify() {
	for _, e := range c.entries {
		e.unverify()
	}
	Notify(c.signals.Recall)
	Notify(c.signals.Verify)
}
