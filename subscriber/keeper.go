package subscriber

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/hook"
)

// keep renews what the book holds, until nothing can be in flight any more. Until the
// subscription ends it also takes over what others have left, removes dead consumers,
// and looks for entries that were trimmed unread. One goroutine per subscription.
func (s *subscription) keep(ctx context.Context) {
	poll := time.NewTicker(s.pollEvery())
	defer poll.Stop()
	beat := time.NewTimer(s.cfg.Heartbeat)
	defer beat.Stop()
	lookAgain := false // soon after a look at the group has failed, once
	for n := 0; ; {
		select {
		case <-s.settling: // first: with a server that does not answer, others are always due
			return
		default:
		}
		select {
		case <-s.settling:
			return
		case <-beat.C:
			beat.Reset(s.heartbeat(ctx))
			if s.isEnding() {
				continue
			}
			// Every consumer of the group sweeps: once in a while is enough.
			lookAgain = !s.tidy(ctx, rand.IntN(2) == 0)
		case <-s.book.verify:
			beat.Reset(s.heartbeat(ctx))
			// What could not be renewed asks again at once; the server may need a moment.
			s.pauseKeeper(poll.C)
		case <-poll.C:
			if s.isEnding() {
				continue
			}
			if lookAgain {
				lookAgain = false
				s.tidy(ctx, true)
			}
			if s.cfg.Order != OrderNone {
				if !s.book.isGated() { // else the reader does it
					_, _, err := s.beActive(ctx, "stay")
					s.did(doTakeOver, err)
				}
				continue
			}
			which := "back"
			if n++; n%s.pollsForAll() == 0 {
				which = "all"
			}
			_, err := s.takeOver(ctx, which)
			s.did(doTakeOver+" "+which, err)
		}
	}
}

// pollsForAll is how many times a subscription looks for entries that were handed back
// before it looks through all that is pending in the group, about every eighth of
// MinIdle.
func (s *subscription) pollsForAll() int {
	return max(int(s.cfg.MinIdle/8/s.pollEvery()), 1)
}

func (s *subscription) pauseKeeper(until <-chan time.Time) {
	select {
	case <-until:
	case <-s.settling:
	}
}

// did notes what came of something that a goroutine has done that is not the reader. The
// reader heals a missing group.
func (s *subscription) did(what string, err error) {
	if isNoGroup(err) {
		s.groupGone()
		err = nil
	}
	if err != nil {
		s.outage.failed(what, err)
	} else {
		s.outage.over(what)
	}
}

// askRecovery makes the reader recover before it reads on, also while it waits for room:
// of a missing group nothing can be settled, so room might never come.
func (s *subscription) askRecovery() {
	s.needRecovery.Store(true)
	notify(s.book.room)
}

// heartbeat renews everything that is held, and returns when to do it again.
func (s *subscription) heartbeat(ctx context.Context) time.Duration {
	held := s.book.held()
	for len(held) > 0 {
		batch := held[:min(len(held), maxBatch)]
		held = held[len(batch):]
		if err := s.renew(ctx, batch); err != nil {
			s.did(doRenew, err)
			return min(s.cfg.Heartbeat, max(s.cfg.MinIdle/20, 10*time.Millisecond))
		}
	}
	s.did(doRenew, nil)
	return s.cfg.Heartbeat
}

func (s *subscription) renew(ctx context.Context, batch []*entry) error {
	args := make([]any, 0, len(batch)+2)
	args = append(args, s.cfg.Group, s.consumer)
	for _, e := range batch {
		args = append(args, e.name)
	}
	sent := s.book.now()
	reply, err := holdScript.Run(ctx, s.client, []string{s.topic}, args...)
	if err != nil {
		return err
	}
	parts, err := list(reply, 4)
	if err != nil {
		return err
	}
	s.book.setClock(parts[3])
	var ids [3][]string
	for i := range ids {
		if ids[i], err = texts(parts[i]); err != nil {
			return err
		}
	}
	s.ended(s.book.renewed(batch, sent, verdict{others: set(ids[0]), nobodys: set(ids[1]), deleted: set(ids[2])}))
	return nil
}

// ended tells about entries that are no longer held.
func (s *subscription) ended(taken []OwnershipEvent, lost []string) {
	s.ownershipLost(taken)
	if len(lost) > 0 {
		s.lost(LostPending, lost, int64(len(lost)))
	}
}

// tidy does what need not be done often, and removes dead consumers if it is to sweep. It
// tells whether all was done.
func (s *subscription) tidy(ctx context.Context, sweep bool) bool {
	mine, err := s.notePosition(ctx)
	s.did(doLook, err)
	ok := err == nil
	if mine > 0 {
		s.listOwn.Store(true)
		notify(s.book.room)
	}
	if !sweep {
		return ok
	}
	idle := 2 * s.cfg.MinIdle
	_, err = sweepScript.Run(ctx, s.client, []string{s.topic}, s.cfg.Group, s.consumer, idle.Milliseconds(), handbackConsumer)
	s.did(doLook+": its dead consumers", err)
	return ok && err == nil
}

// watchClock ends the contexts of messages whose entries could not be renewed in time.
// It talks to nobody, so that a server that does not answer can't hold it up.
func (s *subscription) watchClock() {
	tick := time.NewTicker(max(leaseMargin(s.cfg.MinIdle)/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-s.settling:
			return
		case <-tick.C:
		}
		ended := s.book.expire()
		events := make([]OwnershipEvent, len(ended))
		for i, e := range ended {
			events[i] = OwnershipEvent{Topic: s.topic, Group: s.cfg.Group, EntryID: e.name, InFlight: true}
		}
		s.ownershipLost(events)
	}
}

func (s *subscription) ownershipLost(events []OwnershipEvent) {
	var inFlight, refused int
	for _, ev := range events {
		if ev.Refused {
			refused++
		} else if ev.InFlight {
			inFlight++
		}
		hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(OwnershipEvent) { return h.OnOwnershipLost }, ev)
	}
	if inFlight+refused > 0 {
		s.logger.Error("Ownership of entries was lost while they were handled; another consumer may handle them, too", ErrOwnershipLost,
			s.fields(watermill.LogFields{fieldEntry: events[0].EntryID, fieldEntries: len(events), "acknowledgements_refused": refused}))
	}
}
