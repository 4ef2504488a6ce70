package subscriber

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// makeGroup makes the group where it is missing, and the stream with it.
// It tells whether it was missing.
func (s *subscription) makeGroup(ctx context.Context, start string) (made bool, err error) {
	err = s.client.XGroupCreateMkStream(ctx, s.topic, s.cfg.Group, start).Err()
	switch {
	case err == nil:
		s.logger.Info("Made the consumer group", s.fields(watermill.LogFields{"start": start}))
		return true, nil
	case hasPrefix(err, "BUSYGROUP"):
		return false, nil
	}
	return false, explain(err)
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

// notePosition remembers behind which entry nothing is settled in the group, for a group
// that is destroyed before this consumer has read anything. Without it StartFrom counts.
func (s *subscription) notePosition(ctx context.Context) {
	groups, err := s.client.XInfoGroups(ctx, s.topic).Result()
	if err != nil {
		return
	}
	pending, err := s.noteOthers(ctx)
	if err != nil {
		return
	}
	for _, g := range groups {
		if g.Name != s.cfg.Group {
			continue
		}
		last, err := server.ParseID(g.LastDeliveredID)
		if err != nil {
			return
		}
		if lowest, err := server.ParseID(pending.Lower); err == nil && pending.Count > 0 && !lowest.After(last) {
			last = before(lowest)
		}
		s.book.lastRead = last // no goroutine has begun
	}
}

// noteOthers remembers behind which entry nothing is pending in the group while other
// consumers have something pending: were the group destroyed, those that are dead, and
// what was handed back, would have nobody else to speak for them.
func (s *subscription) noteOthers(ctx context.Context) (*redis.XPending, error) {
	pending, err := s.client.XPending(ctx, s.topic, s.cfg.Group).Result()
	if err != nil {
		return nil, err
	}
	s.book.mu.Lock()
	defer s.book.mu.Unlock()
	s.book.othersFrom = server.ID{}
	if lowest, err := server.ParseID(pending.Lower); err == nil && pending.Count > pending.Consumers[s.consumer] {
		s.book.othersFrom = before(lowest)
	}
	return pending, nil
}

// checkDelete tells whether the server can delete what all groups have acknowledged.
func (s *subscription) checkDelete(ctx context.Context) error {
	if !s.cfg.DeleteOnAck {
		return nil
	}
	// No group has the name of a consumer that was just made up: nothing is acknowledged.
	probe := server.NewCommand(ctx, 1, "xackdel", s.topic, s.consumer, "acked", "ids", 1, "0-1")
	err := s.client.Process(ctx, probe)
	var reply redis.Error
	switch {
	case err == nil, hasPrefix(err, "NOGROUP"):
	case hasPrefix(err, "WRONGTYPE"):
		return explain(err)
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
// read from its beginning, an old one from the first entry that is not settled as far as
// is known here. Another consumer may have been faster: then the heartbeat finds out what
// became of the entries that are held, see restore.go.
func (s *subscription) heal(ctx context.Context) error {
	start, isNew, err := s.healFrom(ctx)
	if err != nil {
		return err
	}
	s.book.doubtAll()
	made, err := s.makeGroup(ctx, start)
	if err != nil {
		return err
	}
	dropped := 0
	if made || isNew {
		dropped = s.book.reset(isNew)
	}
	s.logger.Error("The stream or its consumer group was deleted, and is made again", nil,
		s.fields(watermill.LogFields{"start": start, "dropped_read_ahead": dropped, "by_another_consumer": !made}))
	if isNew && dropped > 0 {
		each(s.cfg.Hooks, func(h Hooks) func(LostEvent) { return h.OnLost },
			LostEvent{Topic: s.topic, Group: s.cfg.Group, Reason: LostStream, Entries: int64(dropped)})
	}
	s.needRecovery.Store(true)
	return nil
}

// healFrom finds the ID to read from, and whether the stream is another one than before.
// A stream has no identity. One that was made anew has later IDs than all that was read
// from the old one, except that the clock may have been set back, and that both may have
// entries of the same millisecond: then the last entry that was read tells.
func (s *subscription) healFrom(ctx context.Context) (start string, isNew bool, err error) {
	last, exists, err := s.lastGenerated(ctx)
	switch {
	case err != nil:
		return "", false, explain(err)
	case !exists:
		return "0", true, nil
	}
	from, read, print := s.book.firstUnsettled()
	switch {
	case from == (server.ID{}): // nothing is known here
		return s.cfg.StartFrom.argument(), false, nil
	case read.After(last):
		return "0", true, nil
	case print == 0: // nothing was read here that could tell the streams apart
		return idText(from), false, nil
	}
	cmd := server.NewCommand(ctx, 1, "xrange", s.topic, idText(read), idText(read))
	if err := s.client.Process(ctx, cmd); err != nil {
		return "", false, err
	}
	entries, err := rawEntries(cmd.Val())
	switch {
	case err != nil:
		return "", false, err
	case len(entries) == 1 && fingerprint(entries[0].pairs) != print:
		return "0", true, nil
	case len(entries) == 0:
		if floor := before(server.ID{MS: read.MS}); from.After(floor) {
			from = floor
		}
	}
	return idText(from), false, nil
}

var printSeed = maphash.MakeSeed()

// fingerprint tells entries of one ID apart, in this process.
func fingerprint(pairs []string) uint64 {
	var h maphash.Hash
	h.SetSeed(printSeed)
	for _, p := range pairs {
		_, _ = h.WriteString(p)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}

// firstUnsettled is the ID behind which nothing is settled here, with the last one that
// was read and its fingerprint. A dead letter is settled when it is written.
func (b *book) firstUnsettled() (from, read server.ID, print uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	from = b.lastRead
	for id, e := range b.entries {
		if (e.state != stateSettling || e.reason != "") && (from == (server.ID{}) || !id.After(from)) {
			from = before(id)
		}
	}
	if b.othersFrom != (server.ID{}) && from.After(b.othersFrom) {
		from = b.othersFrom
	}
	return from, b.lastRead, b.lastPrint
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
// same entry, read again, does not go out a second time; in a new stream the same ID is
// another entry.
func (b *book) reset(isNew bool) (dropped int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	dropped = b.forget(slices.Collect(maps.Values(b.entries)))
	if !isNew {
		return dropped
	}
	for id, e := range b.entries {
		e.deleted, e.until, e.doubt = true, forever, false
		if e.state == stateOut { // else a dead letter, or an acknowledgement that is confirmed soon
			delete(b.entries, id)
		}
	}
	b.lastRead, b.lastPrint, b.othersFrom = server.ID{}, 0, server.ID{}
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

// checkAnew notices, with FanOut, a stream that was deleted and has begun again with
// lower IDs. It is called when nothing came.
func (s *subscription) checkAnew(ctx context.Context) error {
	last, exists, err := s.lastGenerated(ctx)
	if err != nil {
		return err
	}
	if exists && s.lastID.After(last) {
		s.logger.Error("The stream has begun again with lower IDs; reading it from its beginning", nil, s.fields(nil))
		s.lastID = server.ID{}
	}
	return nil
}

func (s *subscription) lastGenerated(ctx context.Context) (id server.ID, exists bool, err error) {
	info, exists, err := server.ReadStreamInfo(ctx, s.client, s.topic)
	return info.Last, exists, err
}
