package subscriber

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// recovery takes in entries that were not read as new: what is pending for this consumer
// without its knowledge, and what others have left. The fetcher and the maintainer use it.
type recovery struct {
	*shared
	decoder *decoder

	takeovers   atomic.Int32 // under way
	unconfirmed atomic.Bool  // a takeover failed that may have taken entries of the dead
	lateArrival atomic.Bool  // entries may be pending for this consumer that it does not know of
}

// recoverOwn takes in the entries that are pending for this consumer without its knowledge.
// Where a takeover's reply was lost, or is still on its way, they may have been a dead
// consumer's.
//
// The fetcher does it after each failure, and after a heartbeat that found something
// pending: a command that the client has given up may arrive long after. No read is
// under way meanwhile whose reply would bring them as well; and what leaves between
// the answer and the look into the ledger was known.
func (r *recovery) recoverOwn(ctx context.Context, suspects bool) (err error) {
	r.ledger.Intake.Watch()
	defer r.ledger.Intake.Unwatch()
	unconfirmed := r.unconfirmed.Swap(false)
	defer func() {
		if err != nil && unconfirmed {
			r.unconfirmed.Store(true)
		}
	}()
	for from := "-"; ; {
		sent := r.ledger.Now()
		rows, err := r.group.ListOwn(ctx, from)
		if err != nil {
			return err
		}
		var found []group.Pending
		for _, p := range rows {
			from = "(" + p.Name
			if !r.ledger.Intake.Knows(p.ID) {
				found = append(found, p)
			}
		}
		if len(found) > 0 {
			r.report.info("Recovered pending entries whose reply was lost; they are handed out", watermill.LogFields{fieldEntries: len(found)})
			suspect := suspects || unconfirmed || r.takeovers.Load() > 0 || r.unconfirmed.Load()
			if err := r.adopt(ctx, found, suspect, sent); err != nil {
				return err
			}
		}
		if len(rows) < group.MaxBatch {
			return nil
		}
	}
}

// takingOver notes that a takeover is under way, until the function returned is called with
// its error. Where that may have taken entries of the dead, what is found afterwards is
// suspected.
func (r *recovery) takingOver(ofTheDead bool) (ended func(error)) {
	r.takeovers.Add(1)
	return func(err error) {
		r.unconfirmed.CompareAndSwap(false, err != nil && ofTheDead)
		r.takeovers.Add(-1)
	}
}

// takeOver takes over what was handed back, and with all what dead consumers have.
func (r *recovery) takeOver(ctx context.Context, all bool) (found int, err error) {
	most := r.ledger.Intake.Spare()
	if most == 0 {
		return 0, nil
	}
	ended := r.takingOver(all)
	defer func() { ended(err) }()
	sent := r.ledger.Now()
	t, err := r.group.TakeOver(ctx, r.cfg.MinIdle, most, all)
	if err != nil {
		r.askRecovery() // it may have taken some
		return 0, err
	}
	return r.adoptTakeover(ctx, t, sent)
}

// activate asks to be, or to stay, the active consumer of the group, and says so to the
// ledger. It returns how many others are alive, and how many entries it has taken over.
func (r *recovery) activate(ctx context.Context, leave bool) (alive, found int, err error) {
	ended := r.takingOver(true)
	defer func() { ended(err) }()
	sent, most, losses, held := r.ledger.Now(), r.ledger.Intake.Spare(), r.ledger.Role.Losses(), r.ledger.Ownership.Size()
	a, err := r.group.Activate(ctx, r.cfg.MinIdle, most, leave)
	if err != nil {
		r.askRecovery() // it may have taken some
		return 0, 0, err
	}
	if found, err = r.adoptTakeover(ctx, a.Takeover, sent); err != nil {
		return 0, 0, err
	}
	if a.Alive > 0 {
		if r.ledger.Role.StandBy() {
			r.report.error("Another consumer of the group has become active beside this one, which stands by from now on", errNotAlone, nil)
		}
		return a.Alive, found, nil
	}
	// A takeover that the client had given up may have come late: what it took has lower IDs
	// than what was taken now. Only the fetcher, which has no read under way, can tell.
	if leave && a.Mine > held {
		r.unconfirmed.Store(true)
		r.mustRecover.Store(true)
		r.ledger.Role.StandBy()
		return 0, found, nil
	}
	r.ledger.Role.Activate(sent, a.Others, losses)
	return 0, found, nil
}

// adoptTakeover takes in what was taken over.
func (r *recovery) adoptTakeover(ctx context.Context, t group.Takeover, sent ledger.Instant) (int, error) {
	r.ledger.Ownership.SetClock(t.Time)
	r.report.lostPending(t.Deleted...)
	if len(t.HandedBack)+len(t.Dead) == 0 {
		return 0, nil
	}
	r.report.takenOver(len(t.HandedBack), len(t.Dead))
	if err := r.adopt(ctx, t.HandedBack, false, sent); err != nil {
		return 0, err
	}
	return len(t.HandedBack) + len(t.Dead), r.adopt(ctx, t.Dead, true, sent)
}

// adopt takes entries into the ledger of which the server has given ID and delivery
// count. Their message is fetched when their turn comes; an order by key needs to see
// it now.
func (r *recovery) adopt(ctx context.Context, found []group.Pending, suspect bool, sent ledger.Instant) error {
	for batch := range slices.Chunk(found, group.MaxBatch) {
		arrivals := make([]ledger.Arrival, len(batch))
		for i, p := range batch {
			arrivals[i] = ledger.Arrival{
				ID: p.ID, Name: p.Name, Count: p.Count, Recovered: true, Suspect: suspect, HasKey: r.cfg.Order == OrderStream,
			}
		}
		if r.cfg.Order == OrderKey {
			if err := r.findKeys(ctx, arrivals); err != nil {
				r.askRecovery()
				return err
			}
		}
		r.ledger.Intake.Add(arrivals, sent)
	}
	return nil
}

// findKeys reads the entries for the sake of their keys, and lets go of them again.
func (r *recovery) findKeys(ctx context.Context, arrivals []ledger.Arrival) error {
	names := make([]string, len(arrivals))
	for i, a := range arrivals {
		names[i] = a.Name
	}
	for len(arrivals) > 0 {
		entries, seen, err := r.group.Peek(ctx, names)
		if err != nil {
			return err
		}
		part := arrivals[:seen]
		arrivals, names = arrivals[seen:], names[seen:]
		there := make(map[streamid.ID]group.Entry, len(entries))
		for _, e := range entries {
			there[e.ID] = e
		}
		for i := range part {
			e, ok := there[part[i].ID]
			if !ok {
				continue // deleted: its turn will show it
			}
			msg, err := r.decoder.decode(e.Name, e.Pairs)
			if err != nil {
				part[i].Reason, part[i].Failure = ReasonUndecodable, err
				continue
			}
			part[i].Key, part[i].HasKey = r.decoder.orderKey(msg, e.Name)
		}
	}
	return nil
}
