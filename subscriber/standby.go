package subscriber

import (
	"context"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// gate says whether a subscription that keeps an order may hand out and read.
type gate struct {
	open  bool
	until instant // when it shuts by our own clock
	// others is the lowest ID that is pending for other consumers, zero if there is none.
	// What lies above it has to wait: entries of the same key may come back in parts, in
	// any number of steps. Nothing new is read meanwhile.
	others server.ID
	// losses counts how often the gate was shut, since another consumer is active or has
	// entries: an answer to an earlier question does not open it again.
	losses int
}

// One subscription of a group is active when an order is to be kept: the one whose
// consumer the group has (standby.lua). Others have none and ask again and again. The
// active one gives a sign of life with each poll; where it could not for as long as
// another waits before it takes its place, it shuts the gate by its own clock. Where two
// are active all the same, since a process stood still between the look at its clock and
// a read, or since somebody reads the group without an order, it gives back what no
// handler has, and stands by.

// standBy is what the reader does while the gate is not open.
func (s *subscription) standBy(ctx context.Context) error {
	if s.needRecovery.Swap(false) {
		if err := s.recoverOwn(ctx, false); err != nil {
			s.needRecovery.Store(true)
			return err
		}
	}
	alive, found, err := s.beActive(ctx, "leave")
	if err != nil {
		return err
	}
	s.outage.over(doRead)
	s.outage.over(doTakeOver) // the keeper's, which asks no more while the gate is shut
	if alive > 0 {
		if !s.standing {
			s.logger.Info("Another consumer of the group is active: standing by", s.fields(nil))
		}
		s.standing = true
		if err := s.giveBack(ctx); err != nil {
			s.needRecovery.Store(true)
			return err
		}
	}
	if !s.book.isGated() {
		s.standing = false
	} else if found < (s.cfg.ReadAhead+1)/2 {
		s.pause(s.pollEvery()) // not a script for every entry that makes room
	}
	return nil
}

// beActive asks to be, or to stay, the active consumer of the group, and sets the gate.
// It tells how many others are alive, and how many entries it has taken over.
func (s *subscription) beActive(ctx context.Context, otherwise string) (alive int64, found int, err error) {
	s.taking.Add(1)
	defer func() {
		s.untold.CompareAndSwap(false, err != nil)
		s.taking.Add(-1)
	}()
	sent, most, losses, held := s.book.now(), s.book.spare(), s.book.losses(), s.book.size()
	reply, err := standbyScript.Run(ctx, s.client, []string{s.topic},
		s.cfg.Group, s.consumer, s.cfg.MinIdle.Milliseconds(), most, handbackConsumer, otherwise)
	if err != nil {
		s.askRecovery() // it may have taken some
		return 0, 0, err
	}
	parts, err := list(reply, 7)
	if err != nil {
		return 0, 0, err
	}
	s.book.setClock(parts[5])
	others, err := optionalID(parts[0])
	if err != nil {
		return 0, 0, err
	}
	alive, _ = parts[1].(int64)
	found, err = s.adoptTaken(ctx, parts[2], parts[3], parts[4], sent)
	if err != nil {
		return 0, 0, err
	}
	if alive > 0 {
		if s.book.shutGate() {
			s.logger.Error("Another consumer of the group has become active beside this one, which stands by from now on", errNotAlone, s.fields(nil))
		}
		return alive, found, nil
	}
	// A takeover that the client had given up may have come late: what it took has lower IDs
	// than what was taken now. Only the reader, which has no read under way, can tell.
	if mine, _ := parts[6].(int64); otherwise == "leave" && int(mine) > held {
		s.untold.Store(true)
		s.needRecovery.Store(true)
		s.book.standBack()
		return 0, found, nil
	}
	s.book.openGate(s.book.leaseFrom(sent), others, losses)
	return alive, found, nil
}

// giveBack hands back what no handler has.
func (s *subscription) giveBack(ctx context.Context) error {
	list := s.book.unhandled()
	for len(list) > 0 {
		batch := list[:min(len(list), maxBatch)]
		list = list[len(batch):]
		if _, err := s.giveAway(ctx, handbackConsumer, "stay", batch); err != nil {
			return err
		}
	}
	return nil
}

// openGate opens the gate for what lies below the lowest ID that is pending for others,
// and says until when that is good without another sign of life. losses is what the book
// had counted before the server was asked.
func (b *book) openGate(until instant, others server.ID, losses int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gate.losses != losses {
		return
	}
	b.gate.open, b.gate.until, b.gate.others = true, until, others
	b.gateChanged()
}

// shutGate tells whether the gate was open before.
func (b *book) shutGate() (wasOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasOpen = b.gate.open
	b.gate.open = false
	b.gate.losses++
	b.gateChanged()
	return wasOpen
}

func (b *book) gateChanged() {
	notify(b.recall)
	notify(b.wake)
	notify(b.room)
}

// yield shuts the gate of an ordered subscription: an entry turned out to be another
// consumer's, and before the server has said how much is, nothing may overtake it.
func (b *book) yield() {
	if b.ordered {
		b.gate.open = false
		b.gate.losses++
		b.gateChanged()
	}
}

// standBack is yield for those who don't hold the lock.
func (b *book) standBack() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.yield()
}

// size is how many entries are held.
func (b *book) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entries)
}

func (b *book) losses() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gate.losses
}

// isShut tells that nothing may go out now.
func (b *book) isShut() bool {
	return b.ordered && (!b.gate.open || b.now() >= b.gate.until)
}

// isBelowOthers tells that nothing lower is pending for another consumer.
func (b *book) isBelowOthers(e *entry) bool {
	return b.gate.others == server.ID{} || b.gate.others.After(e.id)
}

// mayRead tells that the gate is open, and nothing is pending for others.
func (b *book) mayRead() bool { return !b.isShut() && b.gate.others == server.ID{} }

func (b *book) isGated() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.mayRead() && !b.stopping
}

// unhandled lists what no handler has.
func (b *book) unhandled() []handback {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []handback
	for _, e := range b.entries {
		if e.state != stateOut && e.state != stateSettling && !e.deleted {
			list = append(list, b.handback(e))
		}
	}
	return list
}

// pollEvery is how often a subscription looks for entries that were handed back or
// whose consumers died.
func (s *subscription) pollEvery() time.Duration {
	return max(min(time.Second, s.cfg.MinIdle/8), 5*time.Millisecond)
}
