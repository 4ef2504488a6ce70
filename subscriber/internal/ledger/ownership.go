package ledger

import (
	"slices"
	"time"
)

// Ownership is the maintainer's face of a ledger.
type Ownership struct{ c *core }

// Ended is an entry that is not ours any more.
type Ended struct {
	Name     string
	InFlight bool // it was picked, and maybe with a handler; its context has ended
	Refused  bool // its acknowledgement was refused
}

// Held returns the entries whose ownership is to be renewed, by ID.
func (o Ownership) Held() []*Entry {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]*Entry, 0, len(c.entries))
	for _, e := range c.entries {
		if e.owner.state != anothers && e.owner.state != deleted {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, byID)
	return list
}

func byID(x, y *Entry) int { return x.id.Compare(y.id) }

// Size is how many entries are held.
func (o Ownership) Size() int {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	return len(o.c.entries)
}

// Verdict is the answer to a heartbeat: which of the entries are pending for another
// consumer, which for nobody, and which are no longer in the stream.
type Verdict struct{ Others, Nobodys, Deleted map[string]bool }

// Renewed takes in the answer to a heartbeat that was sent at the time given. It returns
// the entries that ended here, and the IDs of those that are lost.
func (o Ownership) Renewed(list []*Entry, sent Instant, v Verdict) (ended []Ended, missing []string) {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.leaseFrom(sent)
	for _, e := range list {
		isOthers, isNobodys, isDeleted := v.Others[e.name], v.Nobodys[e.name], v.Deleted[e.name]
		switch {
		case e.stage == done:
		case !isOthers && !isNobodys && !isDeleted:
			e.confirm(until, c.now())
		case e.owner.seen > sent:
			// What was read since then, or made pending again, is ours by now.
		case isNobodys && !e.owner.given:
			o.orphaned(e)
		case isNobodys, isOthers:
			ended = append(ended, c.takenAway(e)...)
		case isDeleted:
			missing = append(missing, c.vanished(e)...)
		}
	}
	Notify(c.signals.Wake)
	Notify(c.signals.Room)
	return ended, missing
}

// orphaned queues an entry that is pending for nobody, to be made pending again.
func (o Ownership) orphaned(e *Entry) {
	c := o.c
	e.unverify()
	Notify(c.signals.Recall)
	if e.stage != committing && !e.owner.restoring {
		e.owner.restoring = true
		c.todo.restores = append(c.todo.restores, e)
		Notify(c.signals.Commit)
	}
}

// Expire ends the contexts of messages whose ownership our clock says is over, and
// returns their entries.
func (o Ownership) Expire() (ended []Ended) {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now()
	for _, e := range c.out.byWorker {
		// Without a context it is being prepared, and offered only if it is renewed.
		if e != nil && e.attempt.cancel != nil && !e.attempt.ended && now >= e.owner.until {
			e.end(ErrOwnershipLost)
			ended = append(ended, Ended{Name: e.name, InFlight: true})
		}
	}
	if len(ended) > 0 {
		Notify(c.signals.Recall)
		Notify(c.signals.Verify)
	}
	return ended
}

// Unverify notes that the group may be another one than before: before the server has
// said again whose the entries are, none goes out, and acknowledgements ask for the owner.
func (o Ownership) Unverify() {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	o.c.unverify()
}

// SetClock takes in the server's time, in milliseconds, from a reply.
func (o Ownership) SetClock(ms int64) {
	o.c.mu.Lock()
	defer o.c.mu.Unlock()
	o.c.clock = serverClock{ms: ms, read: o.c.now()}
}

// serverClock is what the server's clock said, and when the answer had arrived by ours:
// at that moment it said so or more.
type serverClock struct {
	ms   int64
	read Instant
}

// at is a time of ours by the server's clock in milliseconds, 0 if that is unknown. A lease
// is counted from before the command was sent that renewed it, and the server's clock reads
// at least as much as is reckoned here, so this errs to the safe side; clocks that run at
// different speeds are what the lease's margin is for.
func (s serverClock) at(t Instant) int64 {
	if s.ms == 0 || t == Forever {
		return 0
	}
	return s.ms + time.Duration(t-s.read).Milliseconds()
}
