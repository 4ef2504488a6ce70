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

// admit lets a new entry take its place in the lane of its key. It tells whether it is the
// current one.
func (ls lanes) admit(e *Entry, key string) (isCurrent bool) {
	if l := ls[key]; l != nil {
		e.lane = l
		l.park(e)
		return false
	}
	e.lane = &lane{key: key, current: e}
	ls[key] = e.lane
	return true
}

// park puts an entry behind the current one.
func (l *lane) park(e *Entry) {
	e.stage = parked
	at := len(l.parked)
	for at > 0 && l.parked[at-1].id.After(e.id) {
		at--
	}
	l.parked = slices.Insert(l.parked, at, e)
}

// promoteLowest makes the lowest entry the current one, and returns it: what is found again after a
// lost reply, for example, comes behind entries that were read later. The one that was
// current may not be out.
func (l *lane) promoteLowest() *Entry {
	if was := l.current; len(l.parked) > 0 && was.id.After(l.parked[0].id) {
		l.current = l.parked[0]
		l.parked = l.parked[1:]
		l.park(was)
	}
	return l.current
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
