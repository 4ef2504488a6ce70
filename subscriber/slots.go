package subscriber

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/hook"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// slot hands out one message at a time and waits until it is settled. There are up to
// MaxInFlight slots; the baton makes sure that messages go into the channel in the
// order in which they were picked. With one slot the message goes from the reader's
// buffer to the handler and back without another goroutine in between.
func (s *subscription) slot(ctx context.Context, number int) {
	defer s.slots.Done()
	for {
		s.idleSlots.Add(1)
		s.baton.Lock()
		s.idleSlots.Add(-1)
		e, msg := s.handOut(ctx, number)
		if e != nil && s.idleSlots.Load() == 0 && s.started < s.cfg.MaxInFlight {
			s.slots.Add(1)
			go s.slot(ctx, s.started)
			s.started++
		}
		s.baton.Unlock()
		if e == nil || !s.attend(e, msg) {
			return
		}
	}
}

// handOut waits for the next entry and for somebody who takes its message. It returns
// nil when the subscription ends.
func (s *subscription) handOut(ctx context.Context, slot int) (*entry, *message.Message) {
	for {
		e := s.nextEntry(slot)
		if e == nil {
			return nil, nil
		}
		readAhead := !e.again && e.written == 1 && !e.suspect
		if e.msg == nil || !readAhead && (e.written != e.outCount() || s.book.isStale(e)) {
			if !s.prepare(ctx, e) {
				continue
			}
		}
		msg := e.msg
		msgCtx, cancel := context.WithCancelCause(delivery.With(ctx, e))
		if !s.book.offer(e, cancel) {
			cancel(ErrOwnershipLost)
			s.ifLost(s.book.withdraw(e), e)
			continue
		}
		msg.SetContext(msgCtx)
		for sent := false; !sent; {
			select {
			case s.out <- msg:
				return e, msg
			case <-s.book.recall:
				if s.book.mayStay(e) {
					continue
				}
				cancel(ErrOwnershipLost)
				s.ifLost(s.book.withdraw(e), e)
				sent = true
			}
		}
	}
}

// nextEntry waits for an entry that may go out.
func (s *subscription) nextEntry(slot int) *entry {
	for {
		e, until := s.book.next(slot)
		if e != nil {
			return e
		}
		var due <-chan time.Time
		var timer *time.Timer
		if until != forever {
			timer = time.NewTimer(time.Duration(until - s.book.now()))
			due = timer.C
		}
		select {
		case <-s.stopping:
		case <-s.book.wake:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
		if s.isEnding() {
			return nil
		}
	}
}

// attend waits until a message is settled. It is false when the subscription has given
// up waiting.
func (s *subscription) attend(e *entry, msg *message.Message) bool {
	var acked bool
	var a ask
	select {
	case <-msg.Acked():
		acked = true
	case <-msg.Nacked():
		if !s.book.isDelayed(e) {
			a = askedDelay(msg.Metadata)
		}
	case <-s.abandon:
		return false
	}
	cancel := e.cancel
	settled, redeliver, lost := s.book.settled(e, acked, a)
	cancel(ErrSettled)
	s.noteFailures(e, redeliver)
	if len(s.cfg.Hooks) > 0 {
		hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(SettleEvent) { return h.OnSettle }, settled)
		if redeliver != nil {
			hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(RedeliverEvent) { return h.OnRedeliver }, *redeliver)
		}
	}
	s.ifLost(lost, e)
	return true
}

// noteFailures logs a message that fails without end: at its 10th, 100th, 1000th delivery.
func (s *subscription) noteFailures(e *entry, redeliver *RedeliverEvent) {
	if s.cfg.MaxDeliveries > 0 || redeliver == nil || redeliver.Delayed {
		return
	}
	n := redeliver.Count
	for n >= 10 && n%10 == 0 {
		n /= 10
	}
	if n == 1 && redeliver.Count > 1 {
		s.logger.Error("A message fails again and again; set MaxDeliveries to make it a dead letter in the end", causeOfFailure(redeliver.Err),
			s.fields(watermill.LogFields{fieldEntry: e.name, fieldCount: redeliver.Count}))
	}
}

// offer puts the context onto an entry that is about to be offered. It is false when
// the entry is not ours any more.
func (b *book) offer(e *entry, cancel context.CancelCauseFunc) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopping || b.isShut() || !b.isBelowOthers(e) || e.gone || e.doubt || b.now() >= e.until {
		return false
	}
	e.cancel, e.over = cancel, false
	return true
}

// isStale tells that an entry was not renewed in time. One that was read ahead is held
// back until it is; another one is prepared anew, which makes the pauses of an outage.
func (b *book) isStale(e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now() >= e.until
}

// mayStay tells whether an entry that nobody has taken yet may still be offered.
func (b *book) mayStay(e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !b.stopping && !b.isShut() && b.isBelowOthers(e) && !e.over && !e.gone && !e.doubt
}

func (b *book) isDelayed(e *entry) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return e.delayed || e.reason != ""
}

// prepare fetches the message of an entry and writes its count: the hand-out that
// comes next. It is false when the entry can't go out now.
func (s *subscription) prepare(ctx context.Context, e *entry) bool {
	sent := s.book.now()
	pairs, outcome, err := s.fetch(ctx, e)
	s.did(doFetch, err)
	if err != nil {
		s.ifLost(s.book.postpone(e, s.retryPause()), e)
		return false
	}
	switch outcome {
	case fetchedNobodys:
		s.ifLost(s.book.question(e), e)
		return false
	case fetchedLost:
		if deleted := s.book.drop(e, outcome); deleted {
			s.ifLost(true, e)
		} else {
			s.ownershipLost([]OwnershipEvent{{Topic: s.topic, Group: s.cfg.Group, EntryID: e.name}})
		}
		return false
	case fetchedGone:
		s.book.drop(e, outcome)
		s.ifLost(true, e)
		return false
	}
	msg, err := s.decode(e.name, pairs)
	if err != nil {
		s.book.condemn(e, ReasonUndecodable, err)
		return false
	}
	if e.delayUntil != "" {
		msg.Metadata.Set(wmeta.DelayedUntil, e.delayUntil)
		msg.Metadata.Set(wmeta.DelayedFor, e.delayFor)
	} else { // an entry that was taken over is seen for the first time
		e.delayUntil, e.delayFor = msg.Metadata[wmeta.DelayedUntil], msg.Metadata[wmeta.DelayedFor]
	}
	s.book.prepared(e, msg, size(pairs), sent)
	return true
}

// postpone puts an entry back whose preparation failed.
func (b *book) postpone(e *entry, pause time.Duration) (lost bool) {
	lost = b.withdraw(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.prepareAt = b.now() + instant(pause)
	return lost
}

// question puts an entry back that is pending for nobody; the heartbeat sees to it.
func (b *book) question(e *entry) (lost bool) {
	lost = b.withdraw(e)
	b.mu.Lock()
	defer b.mu.Unlock()
	e.doubt = true
	notify(b.verify)
	return lost
}

// drop forgets an entry that was picked and turned out to be another consumer's, or gone
// from the stream. It tells whether it was known to be deleted.
func (b *book) drop(e *entry, because fetched) (deleted bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if because == fetchedLost {
		b.yield()
	}
	b.land(e)
	deleted = e.deleted
	b.done(e)
	return deleted
}

// condemn sends an entry that was picked to the dead letters.
func (b *book) condemn(e *entry, reason string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.land(e)
	e.count--
	e.reason, e.failure = reason, err
	b.bury(e)
}

func (b *book) prepared(e *entry, msg *message.Message, size int, sent instant) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.unload(e)
	e.msg, e.size = msg, size
	b.bytes += size
	e.written = e.outCount()
	if !e.deleted {
		b.own(e, b.leaseFrom(sent))
	}
}

var errNoMessage = errors.New("the Unmarshaller returned no message")

// ifLost tells of an entry that is gone from the stream and was not handled, if that is so.
func (s *subscription) ifLost(lost bool, e *entry) {
	if lost {
		s.lost(LostPending, []string{e.name}, 1)
	}
}

func (s *subscription) lost(reason LostReason, ids []string, entries int64) {
	s.logger.Error("Entries are gone from the stream that were not handled", errTrimmed,
		s.fields(watermill.LogFields{fieldReason: reason.String(), fieldEntries: entries}))
	hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(LostEvent) { return h.OnLost },
		LostEvent{Topic: s.topic, Group: s.cfg.Group, Reason: reason, Entries: entries, EntryIDs: ids})
}
