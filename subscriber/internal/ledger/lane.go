package ledger

import "slices"

// lanes are the entries of each key, under an order.
type lanes map[string]*lane

// lane has the entries of one key. Only the current one may go out; the others are parked
// behind it in the order of the stream until it is done.
type lane struct {
	key     string
	current *Entry
	parked  []*Entry
}

// admit lets a new entry take its place in the lane of its key. It returns the entry that
// is ready with that, nil if none is, and the one that is not any more.
func (ls lanes) admit(e *Entry, key string) (now, notNow *Entry) {
	l := ls[key]
	if l == nil {
		e.lane = &lane{key: key, current: e}
		ls[key] = e.lane
		return e, nil
	}
	e.lane = l
	if l.current.stage == ready && l.current.id.After(e.id) {
		// Found again after a lost reply, behind entries that were read later.
		l.current, e = e, l.current
		now, notNow = l.current, e
	}
	e.stage = parked
	at := len(l.parked)
	for at > 0 && l.parked[at-1].id.After(e.id) {
		at--
	}
	l.parked = slices.Insert(l.parked, at, e)
	return now, notNow
}

// pass takes an entry out of its lane, and returns the one that goes out next, nil if none
// does.
func (ls lanes) pass(e *Entry) (next *Entry) {
	l := e.lane
	if l == nil {
		return nil
	}
	e.lane = nil
	if l.current != e {
		if i := slices.Index(l.parked, e); i >= 0 {
			l.parked = slices.Delete(l.parked, i, i+1)
		}
		return nil
	}
	return ls.advance(l)
}

// advance makes the first parked entry the current one.
func (ls lanes) advance(l *lane) *Entry {
	if len(l.parked) == 0 {
		delete(ls, l.key)
		return nil
	}
	l.current = l.parked[0]
	l.parked[0] = nil
	l.parked = l.parked[1:]
	return l.current
}

// prune drops entries that are done, and returns those that go out next for that.
func (ls lanes) prune() (next []*Entry) {
	for _, l := range ls {
		l.parked = slices.DeleteFunc(l.parked, func(e *Entry) bool { return e.stage == done })
		if l.current.stage == done {
			if e := ls.advance(l); e != nil {
				next = append(next, e)
			}
		}
	}
	return next
}
