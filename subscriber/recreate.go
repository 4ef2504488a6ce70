package subscriber

import (
	"context"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// recreator makes the group, and makes it again after it or the stream was deleted. For that
// it keeps an eye on how far the group has come.
type recreator struct {
	*shared

	mu       sync.Mutex
	reported int64 // how many entries that were trimmed unread
}

// create makes the group where it is missing, and the stream with it. It tells whether it
// was missing.
func (r *recreator) create(ctx context.Context, start string) (created bool, err error) {
	created, err = r.group.Create(ctx, start)
	if created {
		r.report.info("Created the consumer group", watermill.LogFields{"start": start})
	}
	return created, err
}

// observe asks about the group, and puts the answer where it belongs. The ledger learns how
// far it has come, for when it is destroyed: what other consumers have handled need not come
// again, and what is pending for one that is dead, or was handed back, has nobody else to
// speak for it. What was trimmed unread is reported. It returns how many entries are pending
// for this consumer.
func (r *recreator) observe(ctx context.Context) (mine int64, err error) {
	asked := r.ledger.Progress.Ask()
	stream, info, err := r.group.Info(ctx)
	if err != nil {
		return 0, err
	}
	r.reportUnread(group.TrimmedUnread(stream, info))
	r.ledger.Progress.Note(asked, info.Delivered, info.Lowest, info.Pending > info.Mine)
	return info.Mine, nil
}

// reportUnread reports what was trimmed before the group has read it, once.
func (r *recreator) reportUnread(lost int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if lost > r.reported {
		r.report.lost(LostUnread, nil, lost-r.reported)
	}
	r.reported = lost
}

// again makes the group again after the stream or the group was deleted. A new stream is
// read from its beginning, an old one from the first entry that is not handled as far as
// is known here. Another consumer may have been faster: then the heartbeat finds out what
// became of the entries that are held, see restorer.
func (r *recreator) again(ctx context.Context) error {
	start, isNew, err := r.place(ctx)
	if err != nil {
		return err
	}
	r.ledger.Ownership.Unverify()
	created, err := r.create(ctx, start)
	if err != nil {
		return err
	}
	var dropped []string
	if created || isNew {
		dropped = r.ledger.Progress.Reset(isNew)
		id, err := streamid.Parse(start)
		r.ledger.Progress.Restart(id, err == nil)
	} else {
		_, _ = r.observe(ctx) // the other may know of lower ones; else the heartbeat asks
	}
	r.report.error("The stream or its consumer group was missing, and is created again; unacknowledged entries will be redelivered", errDeleted,
		watermill.LogFields{"start": start, "dropped_read_ahead": len(dropped), "by_another_consumer": !created})
	switch {
	case len(dropped) == 0:
	case isNew:
		r.report.lost(LostStream, dropped, int64(len(dropped)))
	default: // to be read again, unless it is gone: the stream may be another one after all
		r.report.lostPending(r.deletedOf(ctx, dropped)...)
	}
	r.mustRecover.Store(true)
	return nil
}

// atTheEnd makes the group again that was destroyed just before the end: whoever comes next
// would make it where its StartFrom says. A stream that is gone is let be, and what is held
// is lost with it.
func (r *recreator) atTheEnd(ctx context.Context, held []ledger.Release) bool {
	start, isNew, err := r.place(ctx)
	if err != nil {
		return false
	}
	if isNew {
		if lost := r.ledger.Handback.StreamGone(held); len(lost) > 0 {
			r.report.lost(LostStream, lost, int64(len(lost)))
		}
		return false
	}
	_, err = r.create(ctx, start)
	return err == nil
}

// deletedOf returns those of the entries that are not in the stream. A renewal says so without
// reading them, and renews none: in a new group nothing of them is pending.
func (r *recreator) deletedOf(ctx context.Context, names []string) (deleted []string) {
	for batch := range slices.Chunk(names, group.MaxBatch) {
		renewal, err := r.group.Renew(ctx, batch)
		if err != nil {
			r.report.error("Could not look for entries that may be gone with their stream", err, watermill.LogFields{fieldEntries: len(batch)})
		}
		for _, name := range batch {
			if renewal.Deleted[name] {
				deleted = append(deleted, name)
			}
		}
	}
	return deleted
}

// place finds the ID to read from, and whether the stream is another one than before.
// A stream has no identity. One that was made anew has later IDs than all that was read
// from the old one, except that the clock may have been set back, and that both may have
// entries of the same millisecond: then the last entry that was read tells.
func (r *recreator) place(ctx context.Context) (start string, isNew bool, err error) {
	info, exists, err := r.group.Stream(ctx)
	switch {
	case err != nil:
		return "", false, group.Explain(err)
	case !exists:
		return "0", true, nil
	}
	u := r.ledger.Progress.FirstUnhandled()
	switch {
	case !u.Known:
		return r.cfg.StartFrom.argument(), false, nil
	case u.Reached.After(info.Last):
		return "0", true, nil
	case u.Print == 0: // nothing was read here by which to tell the streams apart
		return u.From.String(), false, nil
	}
	last, found, err := r.group.Fetch(ctx, u.Read.String())
	switch {
	case err != nil:
		return "", false, err
	case found && fingerprint(last.Pairs) != u.Print:
		return "0", true, nil
	case !found:
		if floor := (streamid.ID{MS: u.Reached.MS}).Before(); u.From.After(floor) {
			u.From = floor
		}
	}
	return u.From.String(), false, nil
}
