package subscriber

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// When a group is destroyed, what was pending in it is pending for nobody. Whoever finds
// it missing first makes it again, from the lowest entry that it knows of (recreator);
// others, and those who never saw that it was missing, find what they hold in one of two
// places:
//
//   - At or below the new group's position: nobody will read it. It is made pending again
//     for who holds it.
//   - Above it: somebody will read it as new, also if it were made pending. What no
//     handler has is dropped and left to that; what a handler has stays here, so that it
//     does not go out a second time if it is we who read it.
//
// An entry is pending for nobody as well when its acknowledgement was run: by us with a
// lost reply, so what is acknowledged is left alone; by another consumer that had taken
// it over, so what was not renewed in time is left alone, too, and so is what may have
// been given away.
//
// Nor may an acknowledgement be under way while an entry is made pending again. So three do
// it: the committer, which sends the acknowledgements, for what a heartbeat has found; the
// goroutine of the dead letters for one that it moves, which nobody acknowledges; handback for
// what no handler gets any more, while the subscription stands by or when the committer
// has ended.

// restorer makes entries pending again that are pending for nobody.
type restorer struct{ *shared }

func (r *restorer) entries(ctx context.Context, entries ...*ledger.Entry) error {
	orphans := r.ledger.Commits.Orphans(entries...)
	if len(orphans) == 0 {
		return nil
	}
	list := make([]group.Restore, len(orphans))
	for i, o := range orphans {
		list[i] = group.Restore{Name: o.Name, Count: o.Count, Deadline: o.Deadline}
	}
	sent := r.ledger.Now()
	found, err := r.group.Restore(ctx, list)
	if err != nil {
		return err
	}
	r.ledger.Ownership.SetClock(found.Time)
	r.report.info("Held entries were pending for no consumer, as in a group that was created again; checked each",
		watermill.LogFields{fieldEntries: len(orphans)})
	r.report.ended(r.ledger.Commits.Restored(orphans,
		ledger.Restoration{Others: found.Others, Unread: found.Unread, Deleted: found.Deleted}, sent))
	return nil
}
