package group

import (
	"context"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// StreamInfo tells about a stream.
type StreamInfo struct {
	Last          streamid.ID // the highest ID that it ever had
	First         streamid.ID // of the first entry, zero where there is none
	Added, Length int64
}

// Info tells about a group.
type Info struct {
	Delivered     streamid.ID // the last entry that was delivered to it
	Read          int64       // how many entries it has got past, -1 where the server does not know
	Lowest        streamid.ID // pending, zero where none is
	Pending, Mine int64
}

// TrimmedUnread is how many entries are gone that the group has not read. Redis says how
// many entries were ever added, and how many the group has got past; of those that it has
// not, all that are gone from the stream are lost. The answer is exact while the gap is
// there; when the group has read past it, it can't be seen any more.
func TrimmedUnread(stream StreamInfo, group Info) int64 {
	// Only when the group is behind the first entry that is still there was anything
	// trimmed unread, and then all that is there is unread.
	if !stream.First.IsZero() && !stream.First.After(group.Delivered) {
		return 0
	}
	read := group.Read
	if read < 0 {
		if !group.Delivered.IsZero() {
			return 0
		}
		read = 0
	}
	return max(stream.Added-read-stream.Length, 0)
}

// Stream asks about the stream; exists is false where there is none.
func (g *Group) Stream(ctx context.Context) (info StreamInfo, exists bool, err error) {
	parts, err := g.run(ctx, infoScript, 0, "", g.consumer)
	if err != nil || len(parts) == 0 {
		return info, false, err
	}
	info, err = newStreamInfo(parts)
	return info, err == nil, err
}

// Info asks about the stream and the group.
func (g *Group) Info(ctx context.Context) (stream StreamInfo, group Info, err error) {
	parts, err := g.run(ctx, infoScript, 9, g.name, g.consumer)
	if err != nil {
		return stream, group, err
	}
	if stream, err = newStreamInfo(parts); err != nil {
		return stream, group, err
	}
	if group.Delivered, err = optionalID(parts[4]); err != nil {
		return stream, group, err
	}
	if group.Lowest, err = optionalID(parts[6]); err != nil {
		return stream, group, err
	}
	group.Read, group.Pending, group.Mine = integer(parts[5]), integer(parts[7]), integer(parts[8])
	return stream, group, nil
}

func newStreamInfo(parts []any) (info StreamInfo, err error) {
	if len(parts) < 4 {
		return info, fmt.Errorf("unexpected reply of the server: %d parts about a stream", len(parts))
	}
	if info.Last, err = optionalID(parts[0]); err != nil {
		return info, err
	}
	info.First, err = optionalID(parts[3])
	info.Added, info.Length = integer(parts[1]), integer(parts[2])
	return info, err
}

// Summary is what an operator wants to know about a group.
type Summary struct {
	Exists              bool
	Pending, HandedBack int64
	Lag                 int64 // -1 where the server does not know
	OldestPending       time.Duration
	Consumers           int
	TrimmedUnread       int64
}

// Summary asks about the group.
func (g *Group) Summary(ctx context.Context) (Summary, error) {
	s := Summary{Lag: -1}
	cmd := server.NewCommand(ctx, 2, "xinfo", "groups", g.stream)
	if err := server.Process(ctx, g.client, cmd); err != nil {
		return s, err
	}
	groups, err := list(cmd.Val(), 0)
	if err != nil {
		return s, err
	}
	for _, one := range groups {
		fields := fieldsOf(one)
		if fields["name"] != g.name {
			continue
		}
		s.Exists, s.Consumers = true, int(integer(fields["consumers"]))
		if lag, ok := fields["lag"].(int64); ok {
			s.Lag = lag
		}
	}
	if !s.Exists {
		return s, nil
	}
	stream, info, err := g.Info(ctx)
	if err != nil {
		return s, err
	}
	s.TrimmedUnread = TrimmedUnread(stream, info)
	pending, err := g.client.XPending(ctx, g.stream, g.name).Result()
	if err != nil {
		return s, err
	}
	s.Pending, s.HandedBack = pending.Count, pending.Consumers[HandbackConsumer]
	if id, err := streamid.Parse(pending.Lower); err == nil && pending.Count > 0 {
		s.OldestPending = max(time.Since(time.UnixMilli(int64(id.MS))), 0)
	}
	return s, nil
}
