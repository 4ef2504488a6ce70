package subscriber

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/onceward/watermill-idempotent/internal/hook"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

const (
	// ackBatch is how many acknowledgements go out in one go, ackLinger how long the
	// first of them waits for others.
	ackBatch  = 256
	ackLinger = time.Millisecond
	// maxErrorText bounds what a handler's error takes in a dead letter.
	maxErrorText = 4096
)

// settle tells the server what became of entries: acknowledgements, counts of those
// that wait, dead letters. It ends after flush is closed, when all is told, or the
// server does not listen and CloseTimeout is over. One goroutine per
// subscription.
func (s *subscription) settle(ctx context.Context) {
	retry, graveRetry := newRetry(), newRetry()
	var todo jobs
	var graveTimer <-chan time.Time // set while dead letters wait for another try
	for failures := 0; ; {
		flushing := false
		if !todo.pressing() && (len(todo.graves) == 0 || graveTimer != nil) {
			select {
			case <-s.book.work:
				s.linger()
			case <-graveTimer:
				graveTimer = nil
			case <-s.flush:
			}
		}
		select {
		case <-s.flush:
			flushing, graveTimer = true, nil
		default:
		}
		more := s.book.takeJobs()
		todo.restores = append(todo.restores, more.restores...)
		todo.acks = append(todo.acks, more.acks...)
		todo.marks = append(todo.marks, more.marks...)
		todo.graves = append(todo.graves, more.graves...)
		if flushing && todo.none() {
			return
		}
		err := s.work(ctx, &todo)
		switch {
		case err != nil:
			s.did(doSettle, err)
		case graveTimer == nil || len(more.graves) > 0:
			retry.Reset()
			if err = s.bury(ctx, &todo); err == nil {
				graveRetry.Reset()
			} else if graveTimer = time.After(graveRetry.NextBackOff()); !flushing {
				if isNoGroup(err) {
					s.groupGone()
				}
				continue // acknowledgements don't wait for it
			}
		}
		if err == nil {
			continue
		}
		if isNoGroup(err) {
			s.forget(&todo, flushing)
			continue
		}
		if flushing {
			failures++
			if hangs := server.Classify(err) == server.Ambiguous; (hangs || failures > 1) && time.Now().After(s.flushUntil) {
				s.logger.Error("Redis does not take acknowledgements; unacknowledged entries will be redelivered", err,
					s.fields(watermill.LogFields{fieldEntries: len(todo.acks) + len(todo.graves)}))
				return
			}
		}
		s.settlerPause(retry.NextBackOff())
	}
}

func newRetry() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = minRetry, maxRetry
	return b
}

// linger waits a moment for more acknowledgements, unless it is urgent or there are
// enough.
func (s *subscription) linger() {
	if s.book.isUrgent() {
		return
	}
	timer := time.NewTimer(ackLinger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.book.work: // the batch is full, or it is urgent
	case <-s.flush:
	}
}

func (s *subscription) settlerPause(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.flush:
		if d > minRetry {
			timer.Reset(minRetry)
			<-timer.C
		}
	}
}

// forget drops what concerns a group that does not exist any more: there is nothing to
// acknowledge, and what it held will be read again. Dead letters wait for that: only one
// that was written is settled.
func (s *subscription) forget(todo *jobs, flushing bool) {
	s.groupGone()
	s.book.orphans(todo.restores) // a heartbeat will find them again
	s.book.confirm(todo.acks)
	s.book.marked(todo.marks, nil)
	todo.restores, todo.acks, todo.marks = nil, nil, nil
	if flushing { // handBack makes the group again; they stay in the book
		todo.graves = nil
	}
}

// work tells the server, and leaves in todo what is still to be told.
func (s *subscription) work(ctx context.Context, todo *jobs) error {
	if !todo.pressing() {
		return nil
	}
	for len(todo.restores) > 0 {
		batch := todo.restores[:min(len(todo.restores), maxBatch)]
		if err := s.restore(ctx, batch); err != nil {
			return err
		}
		todo.restores = todo.restores[len(batch):]
	}
	todo.restores = nil
	for len(todo.acks) > 0 {
		batch := todo.acks[:min(len(todo.acks), maxBatch)]
		if err := s.ack(ctx, batch); err != nil {
			return err
		}
		todo.acks = todo.acks[len(batch):]
	}
	todo.acks = nil
	for len(todo.marks) > 0 {
		batch := todo.marks[:min(len(todo.marks), maxBatch/2)]
		if err := s.mark(ctx, batch); err != nil {
			return err
		}
		todo.marks = todo.marks[len(batch):]
	}
	todo.marks = nil
	s.did(doSettle, nil)
	return nil
}

// bury moves entries to the dead letters, and leaves in todo those that the server did
// not take.
func (s *subscription) bury(ctx context.Context, todo *jobs) error {
	if len(todo.graves) == 0 {
		return nil
	}
	var failed error
	var left []*entry
	for i, e := range todo.graves {
		if err := s.buryOne(ctx, e, false); err != nil {
			failed = fmt.Errorf("dead letter of %s: %w", e.name, err)
			left = append(left, e)
			// The server may refuse one and take the next. One that does not answer would
			// keep us waiting for each.
			if isNoGroup(err) || server.MayBeAnother(err) {
				left = append(left, todo.graves[i+1:]...)
				break
			}
		}
	}
	if todo.graves = left; failed == nil {
		s.burying.over(doSettle)
	} else if !isNoGroup(failed) {
		// Apart from the outage of the connection: reading goes on meanwhile.
		s.burying.failed(doSettle, failed)
	}
	return failed
}

// ack acknowledges. Entries that turn out not to be ours are refused by the script.
func (s *subscription) ack(ctx context.Context, batch []*entry) error {
	args := make([]any, 0, len(batch)+4)
	args = append(args, s.cfg.Group, s.consumer, s.ackVerb(), s.book.serverDeadline(batch))
	for _, e := range batch {
		args = append(args, e.name)
	}
	reply, err := ackScript.Run(ctx, s.client, []string{s.topic}, args...)
	if err != nil {
		s.noteTried(batch, err)
		return err
	}
	parts, err := list(reply, 2)
	if err != nil {
		return err
	}
	others, err := texts(parts[0])
	if err != nil {
		return err
	}
	absent, err := texts(parts[1])
	if err != nil {
		return err
	}
	if len(others)+len(absent) > 0 {
		s.ownershipLost(s.book.refused(batch, set(others), set(absent)))
	}
	s.book.confirm(batch)
	return nil
}

// refused are those of the entries whose acknowledgement was refused.
func (b *book) refused(batch []*entry, others, nobodys map[string]bool) (events []OwnershipEvent) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range batch {
		// After a lost reply it may be our own first try that has done it; in a group that
		// was made again there may be nothing to acknowledge.
		if others[e.name] {
			b.yield()
		}
		if others[e.name] || nobodys[e.name] && !e.tried && !e.doubt {
			events = append(events, OwnershipEvent{Topic: b.topic, Group: b.cfg.Group, EntryID: e.name, Refused: true})
		}
	}
	return events
}

func (s *subscription) ackVerb() string {
	if s.cfg.DeleteOnAck {
		return "delete"
	}
	return "ack"
}

// noteTried remembers entries whose command may have run.
func (s *subscription) noteTried(batch []*entry, err error) {
	if server.Classify(err) != server.Ambiguous {
		return
	}
	for _, e := range batch {
		e.tried = true
	}
}

// mark writes the delivery counts of entries that wait.
func (s *subscription) mark(ctx context.Context, batch []*entry) error {
	args := make([]any, 0, 3*len(batch)+4)
	args = append(args, s.cfg.Group, s.consumer, s.consumer, "stay")
	s.book.mu.Lock()
	for _, e := range batch {
		args = append(args, e.name, 0, e.wanted())
	}
	s.book.mu.Unlock()
	reply, err := releaseScript.Run(ctx, s.client, []string{s.topic}, args...)
	if err != nil {
		return err
	}
	parts, err := list(reply, 4)
	if err != nil {
		return err
	}
	gone, err := texts(parts[3])
	if err != nil {
		return err
	}
	s.book.mu.Lock()
	for _, e := range batch {
		e.written = e.wanted()
	}
	s.book.mu.Unlock()
	s.ended(nil, s.book.marked(batch, set(gone)))
	return nil
}

// buryOne moves an entry to the dead letters. restored tells that it was not pending and
// that this was mended if it could be.
func (s *subscription) buryOne(ctx context.Context, e *entry, restored bool) error {
	ev := DeadLetterEvent{Topic: s.topic, Group: s.cfg.Group, EntryID: e.name, Reason: e.reason, Err: e.failure, Count: e.count}
	fields := watermill.LogFields{fieldEntry: e.name, fieldReason: e.reason, fieldCount: e.count}
	if s.cfg.FanOut {
		s.logger.Error("Entry is dropped: with FanOut there are no dead letters", causeOfFailure(e.failure), s.fields(fields))
		hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(DeadLetterEvent) { return h.OnDeadLetter }, ev)
		s.book.confirm([]*entry{e})
		return nil
	}
	text := ""
	if e.failure != nil {
		text = strings.ToValidUTF8(e.failure.Error(), "\uFFFD")
		text = text[:min(len(text), maxErrorText)]
	}
	reply, err := buryScript.Run(ctx, s.client, []string{s.topic, rediskey.DeadLetter(s.topic)},
		s.cfg.Group, s.consumer, e.name, s.cfg.DeadLetterMaxLen, s.ackVerb(),
		wire.FieldDeadReason, e.reason, wire.FieldDeadError, text, wire.FieldDeadCount, e.count,
		wire.FieldDeadGroup, s.cfg.Group, wire.FieldDeadOrigin, s.topic+" "+e.name,
		wire.FieldDeadAt, time.Now().UTC().Format(time.RFC3339))
	if err != nil {
		return err
	}
	out, err := texts(reply)
	if err != nil || len(out) == 0 {
		return fmt.Errorf("unexpected reply of the server: %w", err)
	}
	s.book.mu.Lock()
	deleted := e.deleted
	s.book.mu.Unlock()
	switch {
	case out[0] == "gone", out[0] != "buried" && deleted:
		s.lost(LostPending, []string{e.name}, 1)
	case out[0] == "absent" && !restored: // its group was made again
		if err := s.restore(ctx, []*entry{e}); err != nil {
			return err
		}
		return s.buryOne(ctx, e, true)
	case out[0] == "lost", out[0] == "absent":
		s.book.standBack()
		s.ownershipLost([]OwnershipEvent{{Topic: s.topic, Group: s.cfg.Group, EntryID: e.name}})
	default:
		ev.DeadLetterTopic = rediskey.DeadLetter(s.topic)
		if len(out) == 2 {
			ev.DeadLetterID = out[1]
		}
		s.logger.Error("Entry became a dead letter", causeOfFailure(e.failure), s.fields(fields.Add(watermill.LogFields{"dead_letter_topic": ev.DeadLetterTopic})))
		hook.Call(s.logger, s.cfg.Hooks, func(h Hooks) func(DeadLetterEvent) { return h.OnDeadLetter }, ev)
	}
	s.book.confirm([]*entry{e})
	return nil
}
