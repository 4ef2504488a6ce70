package subscriber

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/hook"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// recover finds what is pending for this consumer without its knowledge, since a reply
// was lost, and takes over what others have left, before anything new is read.
func (s *subscription) recover(ctx context.Context) error {
	if err := s.recoverOwn(ctx, false); err != nil {
		return err
	}
	if _, err := s.notePosition(ctx); err != nil {
		return err
	}
	if s.cfg.Order != OrderNone {
		return nil // beActive does it
	}
	for {
		found, err := s.takeOver(ctx, "all")
		if err != nil {
			return err
		}
		if found == 0 || s.book.spare() == 0 {
			return nil
		}
	}
}

// recoverOwn lists the entries that are pending for this consumer. Where a takeover's
// reply was lost, or is still on its way, they may have been a dead consumer's.
//
// The reader does it after each failure, and after a heartbeat that found something
// pending: a command that the client has given up may arrive long after. No read is
// under way meanwhile whose reply would bring them as well; and what is settled between
// the answer and the look into the book was known.
func (s *subscription) recoverOwn(ctx context.Context, suspects bool) (err error) {
	s.book.watch()
	defer s.book.unwatch()
	untold := s.untold.Swap(false)
	defer func() {
		if err != nil && untold {
			s.untold.Store(true)
		}
	}()
	start := "-"
	for {
		sent := s.book.now()
		reply, err := ownScript.Run(ctx, s.client, []string{s.topic}, s.cfg.Group, s.consumer, start, maxBatch)
		if err != nil {
			return err
		}
		rows, err := pairs(reply)
		if err != nil {
			return err
		}
		var found []pending
		for _, p := range rows {
			start = "(" + p.name
			if !s.book.knows(p.id) {
				found = append(found, p)
			}
		}
		if len(found) > 0 {
			s.logger.Info("Recovered pending entries whose reply was lost; they are handed out", s.fields(watermill.LogFields{fieldEntries: len(found)}))
			suspect := suspects || untold || s.taking.Load() > 0 || s.untold.Load()
			if err := s.adopt(ctx, found, suspect, sent); err != nil {
				return err
			}
		}
		if len(rows) < maxBatch {
			return nil
		}
	}
}

// takeOver takes over what was handed back, and with which "all" what dead consumers have.
func (s *subscription) takeOver(ctx context.Context, which string) (found int, err error) {
	most := s.book.spare()
	if most == 0 {
		return 0, nil
	}
	s.taking.Add(1)
	defer func() {
		s.untold.CompareAndSwap(false, err != nil && which == "all")
		s.taking.Add(-1)
	}()
	sent := s.book.now()
	reply, err := takeScript.Run(ctx, s.client, []string{s.topic},
		s.cfg.Group, s.consumer, s.cfg.MinIdle.Milliseconds(), most, handbackConsumer, which)
	if err != nil {
		s.askRecovery() // it may have taken some
		return 0, err
	}
	parts, err := list(reply, 4)
	if err != nil {
		return 0, err
	}
	s.book.setClock(parts[3])
	return s.adoptTaken(ctx, parts[0], parts[1], parts[2], sent)
}

// adoptTaken takes in what a script has taken over: entries handed back, entries of
// dead consumers, and IDs of deleted ones.
func (s *subscription) adoptTaken(ctx context.Context, back, dead, gone any, sent instant) (int, error) {
	returned, err := pairs(back)
	if err != nil {
		return 0, err
	}
	left, err := pairs(dead)
	if err != nil {
		return 0, err
	}
	lost, err := texts(gone)
	if err != nil {
		return 0, err
	}
	if len(lost) > 0 {
		s.lost(LostPending, lost, int64(len(lost)))
	}
	if len(returned)+len(left) == 0 {
		return 0, nil
	}
	if len(returned) > 0 {
		s.logger.Info("Took over entries that other consumers had handed back", s.fields(watermill.LogFields{fieldEntries: len(returned)}))
	}
	if len(left) > 0 {
		s.logger.Error("Took over entries of dead consumers; they are handed out again", errSilent, s.fields(watermill.LogFields{fieldEntries: len(left)}))
	}
	hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(TakeoverEvent) { return h.OnTakeover },
		TakeoverEvent{Topic: s.topic, Group: s.cfg.Group, HandedBack: len(returned), Dead: len(left)})
	if err := s.adopt(ctx, returned, false, sent); err != nil {
		return 0, err
	}
	return len(returned) + len(left), s.adopt(ctx, left, true, sent)
}

// adopt takes entries into the book of which the server has told ID and delivery
// count. Their message is fetched when their turn comes; an order by key needs to see
// it now.
func (s *subscription) adopt(ctx context.Context, found []pending, suspect bool, sent instant) error {
	for len(found) > 0 {
		batch := found[:min(len(found), maxBatch)]
		found = found[len(batch):]
		arrivals := make([]arrival, len(batch))
		for i, p := range batch {
			e := &entry{id: p.id, name: p.name, written: p.count, found: true, suspect: suspect}
			if p.count > 1 {
				e.count, e.again = p.count-1, true
			}
			arrivals[i] = arrival{entry: e, hasKey: s.cfg.Order == OrderStream}
		}
		if s.cfg.Order == OrderKey {
			if err := s.findKeys(ctx, arrivals); err != nil {
				s.askRecovery()
				return err
			}
		}
		s.book.add(arrivals, sent)
	}
	return nil
}

// findKeys reads the entries for the sake of their keys, and lets go of them again.
func (s *subscription) findKeys(ctx context.Context, arrivals []arrival) error {
	for len(arrivals) > 0 {
		entries, seen, err := s.peek(ctx, arrivals)
		if err != nil {
			return err
		}
		part := arrivals[:seen]
		arrivals = arrivals[seen:]
		there := make(map[server.ID]rawEntry, len(entries))
		for _, r := range entries {
			there[r.id] = r
		}
		for i := range part {
			r, ok := there[part[i].entry.id]
			if !ok {
				continue // deleted: its turn will show it
			}
			msg, err := s.decode(r.name, r.pairs)
			if err != nil {
				part[i].entry.reason, part[i].entry.failure = ReasonUndecodable, err
				continue
			}
			part[i].key, part[i].hasKey = s.orderKey(msg, r.name)
		}
	}
	return nil
}

// Bounds of what one call of peek.lua returns: a reply must come within the client's read
// time-out.
const (
	peekEntries = 64
	peekBytes   = 256 << 10
)

// peek reads the first of the entries, and tells how many of them it has looked at.
func (s *subscription) peek(ctx context.Context, arrivals []arrival) (entries []rawEntry, seen int, err error) {
	args := []any{peekBytes}
	for _, a := range arrivals[:min(len(arrivals), peekEntries)] {
		args = append(args, a.entry.name)
	}
	reply, err := peekScript.Run(ctx, s.client, []string{s.topic}, args...)
	if err != nil {
		return nil, 0, err
	}
	parts, err := list(reply, 2)
	if err != nil {
		return nil, 0, err
	}
	n, _ := parts[0].(int64)
	if n < 1 || int(n) > len(arrivals) {
		return nil, 0, fmt.Errorf("unexpected reply of the server: looked at %d of %d entries", n, len(arrivals))
	}
	entries, err = rawEntries(parts[1])
	return entries, int(n), err
}

// What came of fetching an entry.
type fetched uint8

const (
	fetchedOK      fetched = iota
	fetchedLost            // another's
	fetchedNobodys         // pending for nobody
	fetchedGone            // not in the stream
)

// fetch reads an entry that goes out now, and writes its delivery count.
func (s *subscription) fetch(ctx context.Context, e *entry) ([]string, fetched, error) {
	if s.cfg.FanOut {
		cmd := server.NewCommand(ctx, 1, "xrange", s.topic, e.name, e.name)
		if err := server.Process(ctx, s.client, cmd); err != nil {
			return nil, 0, err
		}
		entries, err := rawEntries(cmd.Val())
		if err != nil {
			return nil, 0, err
		}
		if len(entries) == 0 {
			return nil, fetchedGone, nil
		}
		return entries[0].pairs, fetchedOK, nil
	}
	reply, err := prepareScript.Run(ctx, s.client, []string{s.topic}, s.cfg.Group, s.consumer, e.name, e.outCount())
	if err != nil {
		return nil, 0, err
	}
	rows, err := list(reply, 1)
	if err != nil {
		return nil, 0, err
	}
	row, err := list(rows[0], 1)
	if err != nil {
		return nil, 0, err
	}
	switch row[0] {
	case "ok":
		if len(row) == 2 {
			fields, err := texts(row[1])
			return fields, fetchedOK, err
		}
	case "lost":
		return nil, fetchedLost, nil
	case "absent":
		return nil, fetchedNobodys, nil
	case "gone":
		return nil, fetchedGone, nil
	}
	return nil, 0, fmt.Errorf("unexpected reply of the server to fetching %s", e.name)
}
