package subscriber

import (
	"context"
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
// It tells whether it could look.
func (s *subscription) countUnread(ctx context.Context) bool {
	s.unread.mu.Lock()
	defer s.unread.mu.Unlock()
	lost, err := s.trimmedUnread(ctx)
	s.did(doLook+": its lag", err)
	if err != nil {
		return false
	}
	if lost > s.unread.reported {
		s.lost(LostUnread, nil, lost-s.unread.reported)
	}
	s.unread.reported = lost
	return true
}

func (s *subscription) trimmedUnread(ctx context.Context) (int64, error) {
	streamCmd := server.NewCommand(ctx, 2, "xinfo", "stream", s.topic)
	if err := s.client.Process(ctx, streamCmd); err != nil {
		return 0, err
	}
	groupCmd := server.NewCommand(ctx, 2, "xinfo", "groups", s.topic)
	if err := s.client.Process(ctx, groupCmd); err != nil {
		return 0, err
	}
	stream := fieldsOf(streamCmd.Val())
	groups, err := list(groupCmd.Val(), 0)
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		group := fieldsOf(g)
		if group["name"] != s.cfg.Group {
			continue
		}
		last, err := server.ParseID(fmt.Sprint(group["last-delivered-id"]))
		if err != nil {
			return 0, err
		}
		// The first entry that is still there: only when the group is behind it was
		// anything trimmed unread, and then all that is there is unread.
		first, err := list(stream["first-entry"], 1)
		added, _ := stream["entries-added"].(int64)
		length, _ := stream["length"].(int64)
		if err == nil {
			id, err := server.ParseID(fmt.Sprint(first[0]))
			if err != nil || !id.After(last) {
				return 0, err
			}
		}
		read, known := group["entries-read"].(int64)
		if !known {
			if last != (server.ID{}) {
				return 0, nil
			}
			read = 0
		}
		return max(added-read-length, 0), nil
	}
	return 0, nil
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
