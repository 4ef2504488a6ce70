package middleware

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// later gives a message back that can't be handled now.
func (r *run) later(after time.Duration, cause error) ([]*message.Message, error) {
	return r.laterAfter(r.event(), after, cause)
}

// laterAfter does it after a run, which ev tells of.
func (r *run) laterAfter(ev Event, after time.Duration, cause error) ([]*message.Message, error) {
	after = spread(after)
	ev.After, ev.Err = after, fmt.Errorf("%w: %w", dedupe.ErrRetryLater, cause)
	r.once.tell(onDelayed, ev)
	return r.delay(after, ev.Err)
}

// spread keeps duplicates from coming in step.
func spread(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }

// delay lets the message come again after a time.
//
// An error would be repeated on the spot by Retry, moved away and acknowledged by
// PoisonQueue, counted as a failure by the subscriber. So the message is nacked here,
// and nothing is returned: the Router's own acknowledgement is ignored by Watermill
// then, and nothing is published.
func (r *run) delay(after time.Duration, err error) ([]*message.Message, error) {
	switch {
	case r.delivery != nil:
		r.delivery.Delay(after)
	case !r.instantAck:
		// Others redeliver at once what is nacked; without the wait that is a loop as
		// fast as the machine.
		r.pause(after)
	}
	return r.giveBack(err)
}

// interrupted gives a message back whose context was cancelled: its subscription ends,
// and nothing is wrong with it.
func (r *run) interrupted(cause error) ([]*message.Message, error) {
	return r.givenBack(r.event(), cause)
}

// givenBack is for a message that comes again without a delay of ours: its handler gave
// it back without saying that it failed (it nacked, or asked our subscriber for a delay
// or for the dead letters), or its subscription ends.
func (r *run) givenBack(ev Event, cause error) ([]*message.Message, error) {
	if cause == nil {
		cause = errGivenBack
	}
	ev.Err = fmt.Errorf("%w: %w", dedupe.ErrRetryLater, cause)
	r.once.tell(onDelayed, ev)
	return r.giveBack(ev.Err)
}

// giveBack nacks. Where nobody looks at that, or it is too late for it (InstantAck),
// the error has to tell.
func (r *run) giveBack(err error) ([]*message.Message, error) {
	if r.asError || !r.msg.Nack() {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	return nil, nil
}

// reject is for a message that no further try can mend. Our subscriber puts it among
// the dead letters at once, whatever middlewares are around; others get an error.
func (r *run) reject(reason string, err error) ([]*message.Message, error) {
	err = permanentError{fmt.Errorf("middleware: %w", err)}
	if r.delivery == nil {
		return nil, err
	}
	r.once.logger.Error("Message goes to the dead letters, since another try can't help", err, r.fields())
	r.delivery.Reject(reason, err)
	if r.asError || !r.msg.Nack() {
		return nil, err
	}
	return nil, nil
}

// pause waits, until the end of the subscription at most. That a Timeout around us has
// run out does not end it.
func (r *run) pause(d time.Duration) {
	done := r.own.Done()
	if errors.Is(r.own.Err(), context.DeadlineExceeded) {
		done = nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
