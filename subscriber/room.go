package subscriber

import (
	"slices"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// free is how many entries may be read, and 0 when there is no room.
func (b *book) free(average int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(b.cfg.ReadAhead, b.cfg.MaxHeld-len(b.entries))
	if b.stopping || !b.mayRead() || n <= 0 || b.readyCount > b.cfg.ReadAhead {
		return 0
	}
	if left := b.cfg.ReadAheadBytes - b.bytes; average > 0 && n*average > left {
		n = left / average
		if n < 1 && b.bytes == 0 {
			n = 1
		}
	}
	return max(n, 0)
}

// spare is how many entries may be taken over.
func (b *book) spare() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping {
		return 0
	}
	if n := min(b.cfg.ReadAhead, b.cfg.MaxHeld-len(b.entries)); n > 0 {
		return n
	}
	if b.waitsForOthers() {
		return 1
	}
	return 0
}

// waitsForOthers tells that all that is held lies above what is pending for others: only
// taking that over, whatever MaxHeld says, lets anything go out.
func (b *book) waitsForOthers() bool {
	if !b.ordered || b.gate.others == (server.ID{}) {
		return false
	}
	for _, e := range b.entries {
		if b.isBelowOthers(e) {
			return false
		}
	}
	return true
}

// held returns the entries whose ownership is to be renewed, by ID.
func (b *book) held() []*entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]*entry, 0, len(b.entries))
	for _, e := range b.entries {
		if !e.gone && !e.deleted {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, byID)
	return list
}

func byID(x, y *entry) int {
	if x.id.After(y.id) {
		return 1
	}
	return -1
}

// watch begins to note what leaves the book, until unwatch.
func (b *book) watch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = make(map[server.ID]bool)
}

func (b *book) unwatch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left = nil
}

// knows tells that an entry is held, or was when watch began or later.
func (b *book) knows(id server.ID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entries[id] != nil || b.left[id]
}
