package subscriber

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// settleGrace is how long handlers get to settle their message after its context has
// ended, before CloseTimeout is over.
func settleGrace(closeTimeout time.Duration) time.Duration { return min(closeTimeout/4, time.Second) }

// handbackIdle is the idle time under which entries are handed back, and the longest
// MinIdle.
// The server refuses one that reaches behind the beginning of its calendar.
const handbackIdle = 30 * 24 * time.Hour

// drain ends the subscription. The order matters:
//
//  1. Nothing is handed out any more, and what was offered is withdrawn.
//  2. Handlers finish, up to CloseTimeout; a moment before that their contexts end, so
//     that they can say so. Everything held is renewed meanwhile.
//  3. The last blocked read returns. What it brings is handed back with the rest: a
//     consumer that is removed while it reads would come back and keep it.
//  4. The server is told what became of the messages.
//  5. What is left is handed back, and the consumer removed.
//
// Then the caller closes the channel.
func (s *subscription) drain(ctx context.Context, reader, keeper, settler *sync.WaitGroup) {
	close(s.stopping)
	s.book.stop()
	s.flushUntil = time.Now().Add(s.cfg.CloseTimeout)
	grace := settleGrace(s.cfg.CloseTimeout)
	s.awaitIdle(s.cfg.CloseTimeout - grace)
	if ended := s.book.endAll(); ended > 0 {
		s.logger.Error("Handlers did not finish in time; their messages will be redelivered", errSlowHandlers,
			s.fields(watermill.LogFields{fieldEntries: ended}))
		s.awaitIdle(grace)
	}
	close(s.abandon)
	s.slots.Wait()
	reader.Wait()
	close(s.settling)
	keeper.Wait()
	close(s.flush)
	settler.Wait()
	if !s.cfg.FanOut {
		s.handBack(ctx)
	}
}

// awaitIdle waits until nothing is in flight.
func (s *subscription) awaitIdle(atMost time.Duration) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	for s.book.isFlying() {
		select {
		case <-s.book.idle:
		case <-timer.C:
			return
		}
	}
}

// handBack gives what is held to the hand-back consumer, from which anybody takes it at
// once, and removes the own consumer. What a handler still works on stays with the own
// consumer, and is taken over as that of a dead one.
func (s *subscription) handBack(ctx context.Context) {
	back, stay, gone := s.book.remains()
	s.ended(nil, gone)
	jobs := []struct {
		to   string
		list []handback
	}{{s.consumer, stay}, {handbackConsumer, back}}
	tries, most, remade := 0, 2, false
	if s.outage.health() != nil {
		most = 1 // the settler has just tried
	}
	for _, job := range jobs {
		for first := true; first && job.to == handbackConsumer || len(job.list) > 0; first = false {
			batch := job.list[:min(len(job.list), maxBatch)]
			leave := "stay"
			if job.to == handbackConsumer && len(batch) == len(job.list) {
				leave = "leave"
			}
			left, err := s.giveAway(ctx, job.to, leave, batch)
			job.list = slices.Concat(left, job.list[len(batch):])
			if err == nil {
				continue
			}
			if isNoGroup(err) {
				if remade || !s.remake(ctx, slices.Concat(stay, back)) {
					return
				}
				remade = true
				continue
			}
			if tries++; tries >= most {
				s.logger.Error("Entries could not be handed back; other consumers take them over after MinIdle", err,
					s.fields(watermill.LogFields{fieldEntries: len(back) + len(stay)}))
				return
			}
		}
	}
}

// remake makes the group again that was destroyed just before the end: whoever comes next
// would make it where its StartFrom says. A stream that is gone is let be, and what is held
// is lost with it.
func (s *subscription) remake(ctx context.Context, held []handback) bool {
	start, isNew, err := s.healFrom(ctx)
	if err != nil {
		return false
	}
	if isNew {
		if lost := s.book.lostOf(held); len(lost) > 0 {
			s.lost(LostStream, lost, int64(len(lost)))
		}
		return false
	}
	_, err = s.makeGroup(ctx, start)
	return err == nil
}

// lostOf takes in that the stream is gone, and returns the IDs of those of the entries that
// are lost with it.
func (b *book) lostOf(list []handback) (lost []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range list {
		if h.entry.deleted = true; h.entry.isLost() {
			lost = append(lost, h.name)
		}
	}
	return lost
}

// giveAway gives entries to a consumer, and forgets those that no handler has. What turns
// out to be pending for nobody, since the group was made again after the last heartbeat,
// is made pending first. With an error it returns what is left to be given.
func (s *subscription) giveAway(ctx context.Context, to, leave string, batch []handback) (left []handback, err error) {
	nobodys, deleted, err := s.release(ctx, to, leave, batch)
	if err != nil {
		s.book.mayBeGiven(batch, err)
		return batch, err
	}
	left, lost := s.book.given(batch, nobodys, deleted)
	s.ended(nil, lost)
	if len(left) == 0 {
		return nil, nil
	}
	orphans := make([]*entry, len(left))
	for i, h := range left {
		orphans[i] = h.entry
	}
	if err := s.restore(ctx, orphans); err != nil {
		return left, err
	}
	if _, deleted, err = s.release(ctx, to, leave, left); err != nil {
		s.book.mayBeGiven(left, err)
		return left, err
	}
	_, lost = s.book.given(left, nil, deleted) // what is nobody's again is another's, or will be read again
	s.ended(nil, lost)
	return nil, nil
}

// mayBeGiven notes that the reply to giving entries away was lost. They may be another's
// by now, or may have been and be acknowledged: pending for nobody does not mean then that
// the group was made again, and none goes out before the server has said that it is ours.
func (b *book) mayBeGiven(list []handback, err error) {
	if server.Classify(err) != server.Ambiguous {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, h := range list {
		h.entry.given, h.entry.doubt = true, true
	}
}

// given forgets what was given away. It returns what was not since it is pending for
// nobody, and the IDs of what is lost since it is gone from the stream.
func (b *book) given(list []handback, nobodys, deleted map[string]bool) (left []handback, lost []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var given []*entry
	for _, h := range list {
		e := h.entry
		if nobodys[h.name] && !e.given {
			left = append(left, h)
			continue
		}
		if e.deleted = e.deleted || deleted[h.name]; e.isLost() {
			lost = append(lost, h.name)
		}
		given = append(given, e)
	}
	b.forget(given)
	return left, lost
}

// release gives entries to a consumer. It returns those that were not pending, and those
// that are gone from the stream.
func (s *subscription) release(ctx context.Context, to, leave string, batch []handback) (nobodys, deleted map[string]bool, err error) {
	args := []any{s.cfg.Group, s.consumer, to, leave}
	for _, h := range batch {
		args = append(args, h.name, h.idle.Milliseconds(), h.count)
	}
	reply, err := releaseScript.Run(ctx, s.client, []string{s.topic}, args...)
	if err != nil {
		return nil, nil, err
	}
	parts, err := list(reply, 4)
	if err != nil {
		return nil, nil, err
	}
	absent, err := texts(parts[0])
	if err != nil {
		return nil, nil, err
	}
	gone, err := texts(parts[3])
	return set(absent), set(gone), err
}

// handback is an entry that is given away.
type handback struct {
	entry *entry
	name  string
	idle  time.Duration
	count int
}

// handback is how an entry is handed back: any consumer may take it at once, or when it
// is due.
func (b *book) handback(e *entry) handback {
	h := handback{entry: e, name: e.name, idle: handbackIdle, count: e.wanted()}
	if now := b.now(); e.state == stateWaiting && e.due > now {
		h.idle = max(b.cfg.MinIdle-time.Duration(e.due-now), 0)
	}
	return h
}

// remains lists what is held at the end: what goes back, what a handler still works on,
// and the IDs of what is lost since it is gone from the stream.
func (b *book) remains() (back, stay []handback, lost []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.inFlight {
		if e != nil && b.entries[e.id] != e && e.isLost() { // its stream is gone
			lost = append(lost, e.name)
		}
	}
	for _, e := range b.entries {
		switch {
		case e.isLost():
			lost = append(lost, e.name)
		case e.gone || e.deleted:
		case e.state == stateOut:
			// Nobody may start on it at once: the handler did not listen to its context.
			stay = append(stay, handback{entry: e, name: e.name, count: e.count})
		default:
			back = append(back, b.handback(e))
		}
	}
	return back, stay, lost
}

func (b *book) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopping = true
	notify(b.recall)
	notify(b.wake)
	notify(b.room)
}

func (b *book) isFlying() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.flying > 0
}

// endAll ends the contexts of all messages that are with handlers.
func (b *book) endAll() (ended int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range b.inFlight {
		if e != nil && !e.over {
			e.end(ErrClosing)
			ended++
		}
	}
	return ended
}
