package ledger

import (
	"maps"
	"slices"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Consumers of the group. The ledger under test is me's.
const (
	me       = "c-1"
	rival    = "c-2"
	handback = "handback"
)

// fakeServer is a stream with one group, with the commands of package group: each does what
// its script does. Entries are named by the milliseconds of their IDs.
type fakeServer struct {
	now       func() Instant
	minIdle   time.Duration
	gen       int             // of the stream
	stream    map[uint64]bool // what is there
	last      uint64
	exists    bool // the group
	delivered uint64
	pending   map[uint64]*pendingEntry
	handled   map[uint64]string // by whom an entry was acknowledged
	dead      map[uint64]bool
	seen      map[string]Instant
	stolen    map[uint64]bool // once taken from a consumer that had renewed it
}

type pendingEntry struct {
	owner string
	count int
	since Instant
}

func newFakeServer(now func() Instant, minIdle time.Duration) *fakeServer {
	s := &fakeServer{now: now, minIdle: minIdle, seen: make(map[string]Instant)}
	s.renew()
	s.create(0)
	return s
}

// renew makes the stream anew, without a group.
func (s *fakeServer) renew() {
	s.gen++
	s.stream, s.handled, s.dead = make(map[uint64]bool), make(map[uint64]string), make(map[uint64]bool)
	s.last, s.stolen = 0, make(map[uint64]bool)
	s.destroy()
}

func (s *fakeServer) destroy() { s.exists, s.pending = false, make(map[uint64]*pendingEntry) }

func (s *fakeServer) create(start uint64) (created bool) {
	if s.exists {
		return false
	}
	s.exists, s.delivered = true, start
	return true
}

func (s *fakeServer) ms() int64 { return 1_000_000 + time.Duration(s.now()).Milliseconds() }

func (s *fakeServer) ids() []uint64 { return slices.Sorted(maps.Keys(s.stream)) }

// rows are the pending entries of a consumer in their order, of all where it is empty.
func (s *fakeServer) rows(owner string) (ids []uint64) {
	for _, id := range slices.Sorted(maps.Keys(s.pending)) {
		if owner == "" || s.pending[id].owner == owner {
			ids = append(ids, id)
		}
	}
	return ids
}

func (s *fakeServer) owns(owner string, id uint64) bool {
	p := s.pending[id]
	return p != nil && p.owner == owner
}

// claim gives a pending entry to a consumer; one that is deleted loses its record.
func (s *fakeServer) claim(id uint64, owner string, count int) (ok bool) {
	if !s.stream[id] {
		delete(s.pending, id)
		return false
	}
	p := s.pending[id]
	p.owner, p.since = owner, s.now()
	if count > 0 {
		p.count = count
	}
	return true
}

func (s *fakeServer) read(owner string, most int) (ids []uint64) {
	s.seen[owner] = s.now()
	for _, id := range s.ids() {
		if id > s.delivered && len(ids) < most {
			ids = append(ids, id)
			s.delivered = id
			s.pending[id] = &pendingEntry{owner: owner, count: 1, since: s.now()}
		}
	}
	return ids
}

type foundEntry struct {
	id    uint64
	count int
}

func (s *fakeServer) own(owner string) (found []foundEntry) {
	for _, id := range s.rows(owner) {
		found = append(found, foundEntry{id, s.pending[id].count})
	}
	return found
}

func (s *fakeServer) isIdle(id uint64) bool {
	return s.now()-s.pending[id].since >= Instant(s.minIdle)
}

// take is take.lua.
func (s *fakeServer) take(by string, most int, all bool) (back, dead []foundEntry) {
	s.seen[by] = s.now()
	for _, id := range s.rows("") {
		p := s.pending[id]
		if p.owner == by || !s.isIdle(id) || !all && p.owner != handback || len(back)+len(dead) == most {
			continue
		}
		s.takeOne(by, id, &back, &dead)
	}
	return back, dead
}

func (s *fakeServer) takeOne(by string, id uint64, back, dead *[]foundEntry) {
	list, count := dead, s.pending[id].count
	if s.pending[id].owner == handback {
		list = back
	}
	if s.claim(id, by, 0) {
		*list = append(*list, foundEntry{id, count})
	}
}

// activation is the answer of activate.lua.
type activation struct {
	back, dead []foundEntry
	others     uint64
	alive      bool
	mine       int
}

func (s *fakeServer) activate(most int) (a activation) {
	a.mine = len(s.rows(me))
	if at, ok := s.seen[rival]; ok && s.now()-at < Instant(s.minIdle) {
		a.alive = true
		return a
	}
	s.seen[me] = s.now()
	for _, id := range s.rows("") {
		p := s.pending[id]
		if p.owner == me {
			continue
		}
		if !s.isIdle(id) || len(a.back)+len(a.dead) == most {
			a.others = id
			break
		}
		s.takeOne(me, id, &a.back, &a.dead)
	}
	return a
}

func (s *fakeServer) info() (delivered, lowest uint64, others bool, mine int) {
	rows := s.rows("")
	if len(rows) > 0 {
		lowest = rows[0]
	}
	mine = len(s.rows(me))
	return s.delivered, lowest, len(rows) > mine, mine
}

func names(ids []uint64) map[string]bool {
	set := make(map[string]bool)
	for _, id := range ids {
		set[streamid.ID{MS: id}.String()] = true
	}
	return set
}

// heartbeat is renew.lua.
func (s *fakeServer) heartbeat(ids []uint64) Verdict {
	var others, nobodys, deleted []uint64
	for _, id := range ids {
		p := s.pending[id]
		switch {
		case p != nil && p.owner == me:
			if !s.claim(id, me, 0) {
				deleted = append(deleted, id)
			}
		case !s.stream[id]:
			deleted = append(deleted, id)
		case p != nil:
			others = append(others, id)
		default:
			nobodys = append(nobodys, id)
		}
	}
	return Verdict{Others: names(others), Nobodys: names(nobodys), Deleted: names(deleted)}
}

func (s *fakeServer) ack(ids []uint64, deadline int64) (others, nobodys []uint64) {
	sure := s.ms() < deadline
	for _, id := range ids {
		p := s.pending[id]
		switch {
		case p != nil && (sure || p.owner == me):
			s.settle(id, me)
		case sure:
		case p != nil:
			others = append(others, id)
		case s.stream[id]:
			nobodys = append(nobodys, id)
		}
	}
	return others, nobodys
}

func (s *fakeServer) settle(id uint64, by string) {
	delete(s.pending, id)
	s.handled[id] = by
}

// released is one entry of release.lua.
type released struct {
	id    uint64
	idle  time.Duration
	count int
}

func (s *fakeServer) release(to string, list []released) (absent, deleted []uint64) {
	for _, r := range list {
		if !s.owns(me, r.id) {
			absent = append(absent, r.id)
		} else if !s.claim(r.id, to, r.count) {
			deleted = append(deleted, r.id)
		} else {
			s.pending[r.id].since = s.now() - Instant(r.idle)
		}
	}
	return absent, deleted
}

// What prepare.lua and deadletter.lua answer.
const (
	isOK     = "ok"
	isOthers = "others"
	isNobody = "nobody's"
	isGone   = "gone"
)

func (s *fakeServer) prepare(id uint64, count int) string {
	p := s.pending[id]
	switch {
	case p == nil:
		return isNobody
	case p.owner != me:
		return isOthers
	case !s.claim(id, me, count):
		return isGone
	}
	return isOK
}

func (s *fakeServer) deadLetter(id uint64) string {
	p := s.pending[id]
	switch {
	case p == nil && s.dead[id]:
		return isOK
	case p == nil && !s.stream[id]:
		return isGone
	case p == nil:
		return isNobody
	case p.owner != me:
		return isOthers
	case !s.stream[id]:
		delete(s.pending, id)
		return isGone
	}
	delete(s.pending, id)
	s.dead[id] = true
	return isOK
}

// restore is restore.lua.
func (s *fakeServer) restore(list []Orphan) Restoration {
	found := Restoration{make(map[string]bool), make(map[string]bool), make(map[string]bool)}
	for _, o := range list {
		id := o.Entry.id.MS
		p := s.pending[id]
		switch {
		case p != nil && p.owner != me:
			found.Others[o.Name] = true
		case p != nil:
		case !s.stream[id]:
			found.Deleted[o.Name] = true
		case id > s.delivered:
			found.Unread[o.Name] = true
		case s.ms() >= o.Deadline:
			found.Others[o.Name] = true
		default:
			s.pending[id] = &pendingEntry{owner: me, count: o.Count, since: s.now()}
		}
	}
	return found
}
