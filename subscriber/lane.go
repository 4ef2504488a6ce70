package subscriber

import "slices"

// lane has the entries of one key, under OrderKey and OrderStream. Only the current
// one may go out; the others are parked behind it in the order of the stream until it
// is done.
type lane struct {
	key     string
	current *entry
	parked  []*entry
}

// admit lets a new entry take its place. Its lane is nil where it has no key.
func (b *book) admit(e *entry, key string, hasKey bool) {
	if !hasKey {
		b.ready(e)
		return
	}
	l := b.lanes[key]
	if l == nil {
		l = &lane{key: key, current: e}
		b.lanes[key] = l
		e.lane = l
		b.ready(e)
		return
	}
	e.lane = l
	if l.current.state == stateReady && l.current.id.After(e.id) {
		// Found again after a lost reply, behind entries that were read later.
		l.current, e = e, l.current
		b.ready(l.current)
		b.readyCount--
	}
	e.state = stateParked
	at := len(l.parked)
	for at > 0 && l.parked[at-1].id.After(e.id) {
		at--
	}
	l.parked = slices.Insert(l.parked, at, e)
}

// pass lets the next entry of the lane go out, after e.
func (b *book) pass(e *entry) {
	l := e.lane
	if l == nil {
		return
	}
	e.lane = nil
	if l.current != e {
		if i := slices.Index(l.parked, e); i >= 0 {
			l.parked = slices.Delete(l.parked, i, i+1)
		}
		return
	}
	if len(l.parked) == 0 {
		delete(b.lanes, l.key)
		return
	}
	b.advance(l)
}

// advance makes the first parked entry the current one.
func (b *book) advance(l *lane) {
	l.current = l.parked[0]
	l.parked[0] = nil
	l.parked = l.parked[1:]
	b.ready(l.current)
}
