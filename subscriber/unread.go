package subscriber

import (
	"fmt"
	"sync"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// unread remembers how much was already reported of what the group never read.
type unread struct {
	mu       sync.Mutex
	reported int64
}

// countUnread looks for entries that were trimmed before the group has read them. Redis
// says how many entries were ever added, and how many the group has got past; of those
// that it has not, all that are gone from the stream are lost. The answer is exact while
// the gap is there; when the group has read past it, it can't be seen any more.
func (s *subscription) countUnread(stream streamInfo, group groupInfo) {
	s.unread.mu.Lock()
	defer s.unread.mu.Unlock()
	lost := trimmedUnread(stream, group)
	if lost > s.unread.reported {
		s.lost(LostUnread, nil, lost-s.unread.reported)
	}
	s.unread.reported = lost
}

func trimmedUnread(stream streamInfo, group groupInfo) int64 {
	// Only when the group is behind the first entry that is still there was anything
	// trimmed unread, and then all that is there is unread.
	if stream.first != (server.ID{}) && !stream.first.After(group.delivered) {
		return 0
	}
	read := group.read
	if read < 0 {
		if group.delivered != (server.ID{}) {
			return 0
		}
		read = 0
	}
	return max(stream.added-read-stream.length, 0)
}

// fieldsOf reads a reply of XINFO, a map or a list by the protocol version.
func fieldsOf(reply any) map[string]any {
	fields := make(map[string]any)
	switch r := reply.(type) {
	case map[any]any:
		for name, value := range r {
			fields[fmt.Sprint(name)] = value
		}
	case []any:
		for i := 0; i+1 < len(r); i += 2 {
			fields[fmt.Sprint(r[i])] = r[i+1]
		}
	}
	return fields
}
