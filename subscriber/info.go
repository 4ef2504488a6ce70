package subscriber

import (
	"context"
	"fmt"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// streamInfo is what info.lua tells of a stream.
type streamInfo struct {
	last          server.ID // the highest ID that it ever had
	first         server.ID // of the first entry, zero where there is none
	added, length int64
}

// groupInfo is what it tells of a group.
type groupInfo struct {
	delivered     server.ID // the last entry that was delivered to it
	read          int64     // how many entries it has got past, -1 where the server does not know
	lowest        server.ID // pending, zero where none is
	pending, mine int64
}

// lookAtStream asks about the stream; exists is false where there is none.
func (s *subscription) lookAtStream(ctx context.Context) (info streamInfo, exists bool, err error) {
	parts, err := s.look(ctx, "", 0)
	if err != nil || len(parts) == 0 {
		return info, false, err
	}
	info, err = parseStreamInfo(parts)
	return info, err == nil, err
}

// lookAtGroup asks about the stream and the group.
func (s *subscription) lookAtGroup(ctx context.Context) (stream streamInfo, group groupInfo, err error) {
	parts, err := s.look(ctx, s.cfg.Group, 9)
	if err != nil {
		return stream, group, err
	}
	if stream, err = parseStreamInfo(parts); err != nil {
		return stream, group, err
	}
	if group.delivered, err = optionalID(parts[4]); err != nil {
		return stream, group, err
	}
	if group.lowest, err = optionalID(parts[6]); err != nil {
		return stream, group, err
	}
	group.read, _ = parts[5].(int64)
	group.pending, _ = parts[7].(int64)
	group.mine, _ = parts[8].(int64)
	return stream, group, nil
}

func (s *subscription) look(ctx context.Context, group string, least int) ([]any, error) {
	reply, err := infoScript.Run(ctx, s.client, []string{s.topic}, group, s.consumer)
	if err != nil {
		return nil, err
	}
	return list(reply, least)
}

func parseStreamInfo(parts []any) (info streamInfo, err error) {
	if len(parts) < 4 {
		return info, fmt.Errorf("unexpected reply of the server: %d parts about a stream", len(parts))
	}
	if info.last, err = optionalID(parts[0]); err != nil {
		return info, err
	}
	if info.first, err = optionalID(parts[3]); err != nil {
		return info, err
	}
	info.added, _ = parts[1].(int64)
	info.length, _ = parts[2].(int64)
	return info, nil
}

// optionalID is zero for an empty text, or for none.
func optionalID(reply any) (server.ID, error) {
	text, _ := reply.(string)
	if text == "" {
		return server.ID{}, nil
	}
	return server.ParseID(text)
}
