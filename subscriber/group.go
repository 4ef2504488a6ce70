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
	create := redis.NewStatusCmd(ctx, "xgroup", "create", s.topic, s.cfg.Group, start, "mkstream")
	create.SetFirstKeyPos(2)
	err = server.Process(ctx, s.client, create)
	switch {
	case err == nil:
		s.logger.Info("Created the consumer group", s.fields(watermill.LogFields{"start": start}))
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

// notePosition asks how far the group has come, for when it is destroyed: what other
// consumers have settled need not come again, and what is pending for one that is dead,
// or was handed back, has nobody else to speak for it. It reports what was trimmed unread,
// and returns how many entries are pending for this consumer.
func (s *subscription) notePosition(ctx context.Context) (mine int64, err error) {
	asked := s.book.askPosition()
	stream, group, err := s.lookAtGroup(ctx)
	if err != nil {
		return 0, err
	}
	s.countUnread(stream, group)
	s.book.notePosition(asked, group.delivered, group.lowest, group.pending > group.mine)
	return group.mine, nil
}

// position is a place in the stream: what is not behind it was delivered to the group,
// and is settled but for what the book holds. Nothing is known before the first answer of
// the server; then 0-0 is a place like any other.
type position struct {
	id    server.ID
	known bool
	drops int // how many times it was lowered
}

func (b *book) askPosition() position {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.position
}

// notePosition takes in the last ID that was delivered to the group, and the lowest that
// is pending in it, zero if none is; asked is what the position was before the question.
func (b *book) notePosition(asked position, last, lowest server.ID, others bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	settled := last
	if lowest != (server.ID{}) && !lowest.After(last) {
		settled = before(lowest)
	}
	b.othersFrom = server.ID{}
	if others {
		b.othersFrom = before(lowest)
	}
	switch {
	case b.position.drops != asked.drops:
		// The answer may be about the group that was destroyed meanwhile.
	case !asked.known, settled.After(b.position.id):
		b.position.id, b.position.known = settled, true
	case asked.id.After(last): // it was set back, or made again
		b.lower(settled)
	}
}

// lower notes that what is behind id will be read again, as far as it is known here.
func (b *book) lower(id server.ID) {
	if b.position.known && b.position.id.After(id) {
		b.position.id = id
		b.position.drops++
	}
}

// checkDelete tells whether the server can delete what all groups have acknowledged.
func (s *subscription) checkDelete(ctx context.Context) error {
	if !s.cfg.DeleteOnAck {
		return nil
	}
	// No group has the name of a consumer that was just made up: nothing is acknowledged.
	probe := server.NewCommand(ctx, 1, "xackdel", s.topic, s.consumer, "acked", "ids", 1, "0-1")
	err := server.Process(ctx, s.client, probe)
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
	var dropped []string
	if made || isNew {
		dropped = s.book.reset(isNew)
		s.book.restart(start)
	} else {
		_, _ = s.notePosition(ctx) // the other may know of lower ones; else the heartbeat asks
	}
	s.logger.Error("The stream or its consumer group was missing, and is created again; unsettled entries will be redelivered", errDeleted,
		s.fields(watermill.LogFields{"start": start, "dropped_read_ahead": len(dropped), "by_another_consumer": !made}))
	switch {
	case len(dropped) == 0:
	case isNew:
		s.lost(LostStream, dropped, int64(len(dropped)))
	default: // to be read again, unless it is gone: the stream may be another one after all
		s.ended(nil, s.deletedOf(ctx, dropped))
	}
	s.needRecovery.Store(true)
	return nil
}

// deletedOf returns those of the entries that are not in the stream.
func (s *subscription) deletedOf(ctx context.Context, names []string) (deleted []string) {
	for batch := range slices.Chunk(names, maxBatch) {
		args := []any{s.cfg.Group, s.consumer}
		for _, name := range batch {
			args = append(args, name)
		}
		reply, err := holdScript.Run(ctx, s.client, []string{s.topic}, args...)
		if err == nil {
			var parts []any
			if parts, err = list(reply, 4); err == nil {
				var gone []string
				gone, err = texts(parts[2])
				deleted = append(deleted, gone...)
			}
		}
		if err != nil {
			s.logger.Error("Could not look for entries that may be gone with their stream", err, s.fields(watermill.LogFields{fieldEntries: len(batch)}))
		}
	}
	return deleted
}

// healFrom finds the ID to read from, and whether the stream is another one than before.
// A stream has no identity. One that was made anew has later IDs than all that was read
// from the old one, except that the clock may have been set back, and that both may have
// entries of the same millisecond: then the last entry that was read tells.
func (s *subscription) healFrom(ctx context.Context) (start string, isNew bool, err error) {
	info, exists, err := s.lookAtStream(ctx)
	switch {
	case err != nil:
		return "", false, explain(err)
	case !exists:
		return "0", true, nil
	}
	p := s.book.firstUnsettled()
	switch {
	case !p.known:
		return s.cfg.StartFrom.argument(), false, nil
	case p.reached.After(info.last):
		return "0", true, nil
	case p.print == 0: // nothing was read here that could tell the streams apart
		return idText(p.from), false, nil
	}
	cmd := server.NewCommand(ctx, 1, "xrange", s.topic, idText(p.read), idText(p.read))
	if err := server.Process(ctx, s.client, cmd); err != nil {
		return "", false, err
	}
	entries, err := rawEntries(cmd.Val())
	switch {
	case err != nil:
		return "", false, err
	case len(entries) == 1 && fingerprint(entries[0].pairs) != p.print:
		return "0", true, nil
	case len(entries) == 0:
		if floor := before(server.ID{MS: p.reached.MS}); p.from.After(floor) {
			p.from = floor
		}
	}
	return idText(p.from), false, nil
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

// unsettled is what is known of the stream when its group is gone.
type unsettled struct {
	known   bool
	from    server.ID // behind it nothing is settled
	reached server.ID // up to here the stream is known to have had entries
	read    server.ID // the last entry that was read here
	print   uint64    // its fingerprint, 0 if none was
}

// firstUnsettled finds where to read from. A dead letter is settled when it is written.
func (b *book) firstUnsettled() unsettled {
	b.mu.Lock()
	defer b.mu.Unlock()
	u := unsettled{known: b.position.known, from: b.position.id, reached: b.position.id, read: b.lastRead, print: b.lastPrint}
	if u.read.After(u.reached) {
		u.reached = u.read
	}
	for id, e := range b.entries {
		if (e.state != stateSettling || e.reason != "") && (!u.known || !id.After(u.from)) {
			u.known, u.from = true, before(id)
		}
	}
	if u.known && b.othersFrom != (server.ID{}) && u.from.After(b.othersFrom) {
		u.from = b.othersFrom
	}
	return u
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
func (b *book) reset(isNew bool) (dropped []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	dropped = b.forget(slices.SortedFunc(maps.Values(b.entries), byID))
	if !isNew {
		return dropped
	}
	for id, e := range b.entries {
		e.deleted, e.until, e.doubt = true, forever, false
		if e.state == stateOut { // else a dead letter, or an acknowledgement that is confirmed soon
			delete(b.entries, id)
		}
	}
	b.lastRead, b.lastPrint = server.ID{}, 0
	return dropped
}

// restart notes that the group was made again to be read from start on.
func (b *book) restart(start string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.othersFrom = server.ID{} // what it was about will be read again
	id, err := server.ParseID(start)
	b.position = position{id: id, known: err == nil, drops: b.position.drops + 1}
}

// resolveStart finds the ID to read from with FanOut, so that what is added from now on
// is not missed.
func (s *subscription) resolveStart(ctx context.Context) error {
	start := s.cfg.StartFrom.argument()
	switch start {
	case "0":
	case "$":
		info, _, err := s.lookAtStream(ctx)
		s.lastID = info.last
		return explain(err)
	default:
		id, err := server.ParseID(start)
		if err != nil {
			return err
		}
		s.lastID = id
	}
	_, _, err := s.lookAtStream(ctx) // shows a key of another type
	return explain(err)
}

// checkAnew notices, with FanOut, a stream that was deleted and has begun again with
// lower IDs. It is called when nothing came, and looks once a heartbeat.
func (s *subscription) checkAnew(ctx context.Context) error {
	if now := s.book.now(); now >= s.checkAnewAt {
		s.checkAnewAt = now + instant(s.cfg.Heartbeat)
	} else {
		return nil
	}
	info, exists, err := s.lookAtStream(ctx)
	if err != nil {
		return err
	}
	if exists && s.lastID.After(info.last) {
		s.logger.Error("Reading the stream from its beginning", errStreamAnew, s.fields(nil))
		s.lastID = server.ID{}
	}
	return nil
}
