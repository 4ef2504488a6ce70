package subscriber

import (
	"context"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill"
)

// When a group is destroyed, what was pending in it is pending for nobody. Whoever finds
// it missing first makes it again, from the lowest entry that it knows of (healFrom);
// others, and those who never saw that it was missing, find what they hold in one of two
// places:
//
//   - Behind the new group's position: nobody will read it. It is made pending again for
//     who holds it.
//   - Ahead of it: somebody will read it as new, also if it were made pending. What no
//     handler has is dropped and left to that; what a handler has stays here, so that it
//     does not go out a second time if it is we who read it.
//
// An entry is pending for nobody as well when its acknowledgement was run: by us with a
// lost reply, so what is being settled is left alone; by another consumer that had taken
// it over, so what was not renewed in time is left alone, too, and so is what may have
// been given away. It is the settler that
// makes entries pending again: it sends their acknowledgements, which come after.

// doubtAll notes that the group may be another one than before: before the server has
// said again whose the entries are, none goes out, and acknowledgements ask for the owner.
func (b *book) doubtAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.doubt()
}

func (b *book) doubt() {
	for _, e := range b.entries {
		e.doubt = true
	}
	notify(b.recall)
	notify(b.verify)
}

// own notes that the server has an entry pending for us.
func (b *book) own(e *entry, until instant) {
	e.until, e.doubt, e.given, e.seen = until, false, false, b.now()
}

// groupGone is called by who finds the group missing. The reader makes it again.
func (s *subscription) groupGone() {
	s.book.doubtAll()
	s.askRecovery()
}

// orphaned queues an entry that is pending for nobody.
func (b *book) orphaned(e *entry) {
	e.doubt = true
	if e.state != stateSettling && !e.restoring {
		e.restoring = true
		b.restores = append(b.restores, e)
		notify(b.work)
	}
}

// restore makes entries pending again.
func (s *subscription) restore(ctx context.Context, batch []*entry) error {
	args := []any{s.cfg.Group, s.consumer}
	orphans := s.book.orphans(batch)
	for _, o := range orphans {
		args = append(args, o.entry.name, o.count, o.deadline)
	}
	if len(orphans) == 0 {
		return nil
	}
	sent := s.book.now()
	reply, err := restoreScript.Run(ctx, s.client, []string{s.topic}, args...)
	if err != nil {
		return err
	}
	parts, err := list(reply, 2)
	if err != nil {
		return err
	}
	s.book.setClock(parts[1])
	found, err := texts(parts[0])
	if err != nil {
		return err
	}
	if len(found) != len(orphans) {
		return fmt.Errorf("unexpected reply of the server: %d answers for %d entries", len(found), len(orphans))
	}
	s.logger.Info("Held entries were pending for no consumer, as in a group that was created again; checked each", s.fields(watermill.LogFields{fieldEntries: len(orphans)}))
	s.ended(s.book.restored(orphans, found, sent))
	return nil
}

// orphan is an entry that is to be made pending again, with its delivery count and the
// time by the server's clock until which nobody can have taken it over.
type orphan struct {
	entry    *entry
	count    int
	deadline int64
}

// orphans leaves out what was acknowledged since it was queued.
func (b *book) orphans(batch []*entry) []orphan {
	b.mu.Lock()
	defer b.mu.Unlock()
	list := make([]orphan, 0, len(batch))
	for _, e := range batch {
		e.restoring = false
		if e.state != stateDone && (e.state != stateSettling || e.reason != "") {
			list = append(list, orphan{e, e.written, b.deadline(e.until)})
		}
	}
	return list
}

// restored takes in what the server found.
func (b *book) restored(list []orphan, found []string, sent instant) (ended []OwnershipEvent, lost []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var unread []*entry
	for i, o := range list {
		e := o.entry
		switch {
		case e.state == stateDone:
		case found[i] == "held":
			b.own(e, b.leaseFrom(sent))
		case e.seen > sent: // it came by another way meanwhile
		case found[i] == "unread":
			unread = append(unread, e)
		case found[i] == "gone":
			lost = append(lost, b.vanished(e)...)
		default:
			ended = append(ended, b.taken(e)...)
		}
	}
	b.forget(unread)
	notify(b.wake)
	notify(b.room)
	return ended, lost
}

// forget drops those of the entries that no handler has: they will be read again. It
// returns their IDs.
func (b *book) forget(list []*entry) (dropped []string) {
	for _, e := range list {
		switch e.state {
		case stateReady, stateParked, stateWaiting:
			// Not done: that would let the next of its key go out.
			if e.state == stateReady {
				b.readyCount--
			}
			e.state = stateDone
			b.rejoin(e)
			b.unload(e)
			b.remove(e)
			b.lower(before(e.id))
			dropped = append(dropped, e.name)
		}
	}
	if len(dropped) == 0 {
		return nil
	}
	for key, l := range b.lanes {
		l.parked = slices.DeleteFunc(l.parked, func(e *entry) bool { return e.state == stateDone })
		switch {
		case l.current.state != stateDone:
		case len(l.parked) == 0:
			delete(b.lanes, key)
		default:
			b.advance(l)
		}
	}
	return dropped
}
