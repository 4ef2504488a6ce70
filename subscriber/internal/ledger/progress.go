package ledger

import (
	"maps"
	"slices"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Progress is the face of a ledger for whoever makes a group again.
type Progress struct{ c *core }

// progress is how far the group has come. What is at or below the position was delivered to
// the group, and is handled but for what the ledger holds. Nothing is known before the first
// answer of the server; then 0-0 is a place like any other.
type progress struct {
	position streamid.ID
	known    bool
	drops    int // how many times it was lowered

	othersFrom streamid.ID // at or below it nothing was pending when others had something, else zero
	lastRead   streamid.ID
	lastPrint  uint64 // fingerprint of the entry lastRead
}

// lower notes that what is above id will be read again, as far as it is known here.
func (p *progress) lower(id streamid.ID) {
	if p.known && p.position.After(id) {
		p.position = id
		p.drops++
	}
}

// Question is what was known when the server was asked.
type Question struct {
	position streamid.ID
	known    bool
	drops    int
}

// Ask is called before the server is asked how far the group is.
func (p Progress) Ask() Question {
	p.c.mu.Lock()
	defer p.c.mu.Unlock()
	return Question{p.c.progress.position, p.c.progress.known, p.c.progress.drops}
}

// Note takes in the last ID that was delivered to the group, and the lowest that is pending
// in it, zero if none is; others tells that some of that is pending for other consumers.
func (p Progress) Note(asked Question, last, lowest streamid.ID, others bool) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	position := last
	if !lowest.IsZero() && !lowest.After(last) {
		position = lowest.Before()
	}
	c.progress.othersFrom = streamid.ID{}
	if others {
		c.progress.othersFrom = lowest.Before()
	}
	switch {
	case c.progress.drops != asked.drops:
		// The answer may be about the group that was destroyed meanwhile.
	case !asked.known, position.After(c.progress.position):
		c.progress.position, c.progress.known = position, true
	case asked.position.After(last): // it was set back, or made again
		c.progress.lower(position)
	}
}

// Unhandled is what is known of the stream when its group is gone.
type Unhandled struct {
	Known   bool
	From    streamid.ID // at or below it everything is handled
	Reached streamid.ID // up to here the stream is known to have had entries
	Read    streamid.ID // the last entry that was read here
	Print   uint64      // its fingerprint, 0 if none was
}

// FirstUnhandled finds where to read from. A dead letter is handled when it is written.
func (p Progress) FirstUnhandled() Unhandled {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	at := &c.progress
	u := Unhandled{Known: at.known, From: at.position, Reached: at.position, Read: at.lastRead, Print: at.lastPrint}
	if u.Read.After(u.Reached) {
		u.Reached = u.Read
	}
	for id, e := range c.entries {
		if !e.isHandled() && (!u.Known || !id.After(u.From)) {
			u.Known, u.From = true, id.Before()
		}
	}
	if u.Known && !at.othersFrom.IsZero() && u.From.After(at.othersFrom) {
		u.From = at.othersFrom
	}
	return u
}

// Reset drops what no handler has. What one has stays until it is settled, so that the
// same entry, read again, does not go out a second time; in a new stream the same ID is
// another entry.
func (p Progress) Reset(isNewStream bool) (dropped []string) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	dropped = c.forget(slices.SortedFunc(maps.Values(c.entries), byID))
	if !isNewStream {
		return dropped
	}
	for id, e := range c.entries {
		e.markDeleted()
		if e.stage == picked { // else a dead letter, or an acknowledgement that is confirmed soon
			delete(c.entries, id)
		}
	}
	c.progress.lastRead, c.progress.lastPrint = streamid.ID{}, 0
	return dropped
}

// Restart notes that the group was made again to be read from the ID given on, which is
// not known where it was made at a place such as the stream's end.
func (p Progress) Restart(from streamid.ID, known bool) {
	c := p.c
	c.mu.Lock()
	defer c.mu.Unlock()
	c.progress.othersFrom = streamid.ID{} // what it was about will be read again
	c.progress.position, c.progress.known = from, known
	c.progress.drops++
}
