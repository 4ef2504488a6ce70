package ledger

import (
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Intake is the fetcher's face of a ledger.
type Intake struct{ c *core }

// Arrival is an entry on its way into the ledger.
type Arrival struct {
	ID    streamid.ID
	Name  string           // the ID as the server wrote it
	Msg   *message.Message // nil where only the ID is known
	Size  int              // of the message, in bytes
	Count int              // the server's delivery count
	Delay Delay            // what the message came with

	Key    string // under an order, where HasKey
	HasKey bool

	Recovered bool   // not read as new
	Suspect   bool   // its last consumer died
	Reason    string // why it becomes a dead letter at once; empty: it does not
	Failure   error

	Print uint64 // fingerprint of the last entry of a read
}

func (in Intake) newEntry(a *Arrival) *Entry {
	c := in.c
	e := &Entry{
		core: c, id: a.ID, name: a.Name, msg: a.Msg, size: a.Size, delay: a.Delay, recovered: a.Recovered,
		counts:  counts{server: a.Count},
		attempt: attempt{reason: a.Reason, failure: a.Failure},
	}
	if a.Recovered && a.Count > 1 {
		e.counts.deliveries, e.counts.redelivered = a.Count-1, true
	}
	if a.Suspect {
		e.suspicion = suspected
	}
	return e
}

// Add takes entries in, in the order of the stream, that came with a command sent at the
// time given. One that is held already is only renewed.
func (in Intake) Add(list []Arrival, sent Instant) {
	c := in.c
	c.mu.Lock()
	defer c.mu.Unlock()
	until := c.leaseFrom(sent)
	if len(list) > 0 {
		if last := list[len(list)-1]; last.Print != 0 {
			in.noteRead(list[0].ID, last)
		}
	}
	for i := range list {
		a := &list[i]
		if held := c.entries[a.ID]; held != nil {
			if held.owner.state == anothers {
				held.owner.state = owned
			}
			held.confirm(until, c.now())
			held.counts.server = min(held.counts.server, a.Count) // less where the group was made again
			continue
		}
		e := in.newEntry(a)
		e.confirm(until, c.now())
		c.entries[e.id] = e
		if a.Reason != "" {
			c.deadLetter(e, a.Reason)
			continue
		}
		if a.Suspect {
			c.suspects.cautious = true
		}
		c.bytes += e.size
		in.admit(e, a)
	}
	Notify(c.signals.Wake)
}

// noteRead takes in how far a read has come.
func (in Intake) noteRead(first streamid.ID, last Arrival) {
	c := in.c
	p := &c.progress
	if !c.set.FanOut && p.known && !first.After(p.position) {
		c.unverify() // the group was made again, or set back: what is held may be another's
		p.drops++
	}
	p.position, p.known = last.ID, true
	p.lastRead, p.lastPrint = last.ID, last.Print
}

// admit lets a new entry take its place.
func (in Intake) admit(e *Entry, a *Arrival) {
	c := in.c
	if !a.HasKey || c.lanes.admit(e, a.Key) {
		c.readyLowest(e)
	} else if first := e.lane.current; first.stage == ready && first.id.After(e.id) {
		c.queues.ready--
		c.readyLowest(first)
	}
}

// Free is how many entries may be read, of the average size given, and 0 when there is no
// room.
func (in Intake) Free(average int) int {
	c := in.c
	c.mu.Lock()
	defer c.mu.Unlock()
	n := min(c.set.ReadAhead, c.set.MaxHeld-len(c.entries))
	if c.stopping || !c.mayRead() || n <= 0 || c.queues.ready > c.set.ReadAhead {
		return 0
	}
	if left := c.set.ReadAheadBytes - c.bytes; average > 0 && n*average > left {
		n = left / average
		if n < 1 && c.bytes == 0 {
			n = 1
		}
	}
	return max(n, 0)
}

// Spare is how many entries may be taken over.
func (in Intake) Spare() int {
	c := in.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopping {
		return 0
	}
	if n := min(c.set.ReadAhead, c.set.MaxHeld-len(c.entries)); n > 0 {
		return n
	}
	if in.waitsForOthers() {
		return 1
	}
	return 0
}

// waitsForOthers tells that all that is held lies above what is pending for others: only
// taking that over, whatever MaxHeld says, lets anything go out.
func (in Intake) waitsForOthers() bool {
	c := in.c
	if !c.set.Ordered || c.role.others.IsZero() {
		return false
	}
	for _, e := range c.entries {
		if c.role.isBelowOthers(e) {
			return false
		}
	}
	return true
}

// Watch begins to note what leaves the ledger, until Unwatch.
func (in Intake) Watch() {
	in.c.mu.Lock()
	defer in.c.mu.Unlock()
	in.c.left = make(map[streamid.ID]bool)
}

// Unwatch ends what Watch has begun.
func (in Intake) Unwatch() {
	in.c.mu.Lock()
	defer in.c.mu.Unlock()
	in.c.left = nil
}

// Knows tells that an entry is held, or was when Watch began or later.
func (in Intake) Knows(id streamid.ID) bool {
	in.c.mu.Lock()
	defer in.c.mu.Unlock()
	return in.c.entries[id] != nil || in.c.left[id]
}
