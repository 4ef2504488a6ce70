package subscriber

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/slot"
)

// makeGroup makes the group where it is missing, and the stream with it.
func (s *subscription) makeGroup(ctx context.Context, start string) error {
	err := s.client.XGroupCreateMkStream(ctx, s.topic, s.cfg.Group, start).Err()
	switch {
	case err == nil:
		s.logger.Info("Made the consumer group", s.fields(watermill.LogFields{"start": start}))
		return nil
	case hasPrefix(err, "BUSYGROUP"):
		return nil
	}
	return explain(err)
}

// explain makes the errors of Subscribe clear.
func explain(err error) error {
	switch {
	case hasPrefix(err, "WRONGTYPE"):
		return fmt.Errorf("%w: %w", ErrWrongType, err)
	case server.IsRefusedByACL(err):
		return fmt.Errorf("the user needs the rights that Check lists: %w", err)
	}
	return err
}

// checkDelete tells whether the server can delete what all groups have acknowledged.
func (s *subscription) checkDelete(ctx context.Context) error {
	if !s.cfg.DeleteOnAck {
		return nil
	}
	probe := server.NewCommand(ctx, 1, "xackdel", slot.LayoutKey(s.topic), "probe", "acked", "ids", 1, "0-1")
	err := s.client.Process(ctx, probe)
	var reply redis.Error
	switch {
	case err == nil, hasPrefix(err, "NOGROUP"), hasPrefix(err, "WRONGTYPE"):
	case errors.As(err, &reply) && server.Classify(err) == server.Final && !server.IsRefusedByACL(err):
		return fmt.Errorf("%w: DeleteOnAck needs XACKDEL (Redis 8.2.2 or newer): %w", ErrUnsupported, err)
	default:
		return explain(err)
	}
	info, err := server.InfoSection(ctx, s.client, s.topic, "server")
	if err == nil && (info["redis_version"] == "8.2.0" || info["redis_version"] == "8.2.1") {
		return fmt.Errorf("%w: XACKDEL with several IDs crashes Redis %s; update it to 8.2.2", ErrUnsupported, info["redis_version"])
	}
	return nil
}

// heal makes the group again after the stream or the group was deleted. A new stream is
// read from its beginning, an old one from the first entry that is not settled here.
func (s *subscription) heal(ctx context.Context) error {
	start, err := s.healFrom(ctx)
	if err != nil {
		return err
	}
	dropped := s.book.reset()
	if dropped > 0 {
		s.logger.Info("Dropped entries that were read ahead: their group is gone", s.fields(watermill.LogFields{fieldEntries: dropped}))
	}
	s.logger.Error("The stream or its consumer group was deleted; making it again", nil, s.fields(watermill.LogFields{"start": start}))
	if err := s.makeGroup(ctx, start); err != nil {
		return err
	}
	s.needRecovery.Store(true)
	return nil
}

func (s *subscription) healFrom(ctx context.Context) (string, error) {
	cmd := server.NewCommand(ctx, 2, "xinfo", "stream", s.topic)
	if err := s.client.Process(ctx, cmd); err != nil {
		if server.IsMissingKey(err) {
			return "0", nil
		}
		return "", explain(err)
	}
	info, err := server.ParseStreamInfo(cmd.Val())
	if err != nil {
		return "", err
	}
	from, known := s.book.firstUnsettled()
	switch {
	case !known:
		return s.cfg.StartFrom.argument(), nil
	case from.After(info.Last):
		return "0", nil // another stream, with lower IDs
	}
	return idText(from), nil
}

// firstUnsettled is the ID behind which nothing is settled here; false if nothing was
// ever read.
func (b *book) firstUnsettled() (server.ID, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	first := b.lastRead
	if first == (server.ID{}) {
		return first, false
	}
	for id, e := range b.entries {
		if e.state != stateSettling && !id.After(first) {
			first = before(id)
		}
	}
	return first, true
}

// before is the highest ID below id.
func before(id server.ID) server.ID {
	switch {
	case id.Seq > 0:
		id.Seq--
	case id.MS > 0:
		id.MS, id.Seq = id.MS-1, 1<<64-1
	}
	return id
}

// reset drops what no handler has. What one has stays until it is settled, so that the
// same entry, read again, does not go out a second time.
func (b *book) reset() (dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.entries {
		if e.state == stateReady || e.state == stateParked || e.state == stateWaiting {
			// Not done: that would let the next of its key go out.
			if e.state == stateReady {
				b.readyCount--
			}
			e.state = stateDone
			b.unload(e)
			delete(b.entries, e.id)
			dropped++
		}
	}
	for key, l := range b.lanes {
		l.parked = nil
		if l.current.state == stateDone {
			delete(b.lanes, key)
		}
	}
	return dropped
}

// resolveStart finds the ID to read from with FanOut, so that what is added from now on
// is not missed.
func (s *subscription) resolveStart(ctx context.Context) error {
	start := s.cfg.StartFrom.argument()
	switch start {
	case "0":
	case "$":
		last, exists, err := s.lastGenerated(ctx)
		if err != nil {
			return explain(err)
		}
		if exists {
			s.lastID = last
		}
		return nil
	default:
		id, err := server.ParseID(start)
		if err != nil {
			return err
		}
		s.lastID = id
	}
	_, _, err := s.lastGenerated(ctx) // shows a key of another type
	return explain(err)
}

func (s *subscription) lastGenerated(ctx context.Context) (id server.ID, exists bool, err error) {
	cmd := server.NewCommand(ctx, 2, "xinfo", "stream", s.topic)
	if err := s.client.Process(ctx, cmd); err != nil {
		if server.IsMissingKey(err) {
			return id, false, nil
		}
		return id, false, err
	}
	info, err := server.ParseStreamInfo(cmd.Val())
	return info.Last, true, err
}
