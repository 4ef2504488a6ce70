package subscriber

import (
	"context"
	"time"
)

// gate says what a subscription that keeps an order may do.
type gate uint8

const (
	gateOpen    gate = iota // read and hand out
	gateNoReads             // hand out what was taken over, read nothing new
	gateShut                // stand by
)

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
	sent, most := s.book.now(), s.book.spare()
	reply, err := standbyScript.Run(ctx, s.client, []string{s.topic},
		s.cfg.Group, s.consumer, s.cfg.MinIdle.Milliseconds(), most, handbackConsumer, otherwise)
	if err != nil {
		s.askRecovery() // it may have taken some
		return 0, 0, err
	}
	parts, err := list(reply, 6)
	if err != nil {
		return 0, 0, err
	}
	s.book.setClock(parts[5])
	left, _ := parts[0].(int64)
	alive, _ = parts[1].(int64)
	found, err = s.adoptTaken(ctx, parts[2], parts[3], parts[4], sent)
	switch {
	case err != nil:
		return 0, 0, err
	case alive > 0:
		if s.book.setGate(gateShut, 0) {
			s.logger.Error("Another consumer of the group has become active beside this one, which stands by from now on", nil, s.fields(nil))
		}
	case left == 0:
		s.book.setGate(gateOpen, s.book.leaseFrom(sent))
	case found > 0 || most == 0:
		// More than fits: what was taken has the lowest IDs and may go out.
		s.book.setGate(gateNoReads, s.book.leaseFrom(sent))
	default: // the first one waits for its redelivery
		s.book.stayActive(s.book.leaseFrom(sent))
	}
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

// setGate sets the gate, and until when it is good without another sign of life. It
// tells whether it was open before.
func (b *book) setGate(g gate, until instant) (wasOpen bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	wasOpen = b.gate == gateOpen
	b.gate, b.activeUntil = g, until
	notify(b.recall)
	notify(b.wake)
	notify(b.room)
	return wasOpen
}

func (b *book) stayActive(until instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.activeUntil = until
}

// isShut tells that nothing may go out now.
func (b *book) isShut() bool {
	return b.ordered && (b.gate == gateShut || b.now() >= b.activeUntil)
}

// mayRead tells that the gate is open.
func (b *book) mayRead() bool { return b.gate == gateOpen && !b.isShut() }

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
