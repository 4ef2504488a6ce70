package ledger

import "time"

// Handback is the face of a ledger for whoever gives entries away.
type Handback struct{ c *core }

// HandbackIdle is the idle time under which entries are handed back, and the longest
// MinIdle. The server refuses one that reaches behind the beginning of its calendar.
const HandbackIdle = 30 * 24 * time.Hour

// Release is an entry that is given away, with the idle time and the delivery count that it
// has then.
type Release struct {
	Entry *Entry
	Name  string
	Idle  time.Duration
	Count int
}

// release is how an entry is handed back: any consumer may take it at once, or when it
// is due.
func (h Handback) release(e *Entry) Release {
	c := h.c
	r := Release{Entry: e, Name: e.name, Idle: HandbackIdle, Count: e.nextCount()}
	if now := c.now(); e.stage == waiting && e.due > now {
		r.Idle = max(c.set.MinIdle-time.Duration(e.due-now), 0)
	}
	return r
}

// Unpicked lists what no handler has.
func (h Handback) Unpicked() []Release {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Release
	for _, e := range c.entries {
		if e.stage != picked && e.stage != committing && e.owner.state != deleted {
			list = append(list, h.release(e))
		}
	}
	return list
}

// Remains lists what is held at the end: what goes back, what a handler still works on,
// and the IDs of what is lost since it is gone from the stream.
func (h Handback) Remains() (back, stay []Release, gone []string) {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.out.byWorker {
		if e != nil && c.entries[e.id] != e && e.isLost() { // its stream is gone
			gone = append(gone, e.name)
		}
	}
	for _, e := range c.entries {
		switch {
		case e.isLost():
			gone = append(gone, e.name)
		case e.owner.state == anothers || e.owner.state == deleted:
		case e.stage == picked:
			// Nobody may start on it at once: the handler did not listen to its context.
			stay = append(stay, Release{Entry: e, Name: e.name, Count: e.counts.deliveries})
		default:
			back = append(back, h.release(e))
		}
	}
	return back, stay, gone
}

// StreamGone takes in that the stream is gone, and returns the IDs of those of the entries
// that are lost with it.
func (h Handback) StreamGone(list []Release) (lost []string) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for _, r := range list {
		if r.Entry.markDeleted(); r.Entry.isLost() {
			lost = append(lost, r.Name)
		}
	}
	return lost
}

// Given forgets what was given away. It returns what was not since it was not
// pending for us, and the IDs of what is lost since it is gone from the stream.
func (h Handback) Given(list []Release, notOurs, gone map[string]bool) (left []Release, lost []string) {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var given []*Entry
	for _, r := range list {
		e := r.Entry
		if notOurs[r.Name] && !e.owner.given {
			left = append(left, r)
			continue
		}
		if gone[r.Name] {
			e.markDeleted()
		}
		if e.isLost() {
			lost = append(lost, r.Name)
		}
		given = append(given, e)
	}
	c.forget(given)
	return left, lost
}

// MaybeGiven notes that the reply to giving entries away was lost. They may be another's
// by now, or may have been and be acknowledged: pending for nobody does not mean then that
// the group was made again, and none goes out before the server has said that it is ours.
func (h Handback) MaybeGiven(list []Release) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for _, r := range list {
		r.Entry.owner.given = true
		r.Entry.unverify()
	}
}
