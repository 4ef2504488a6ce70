package middleware

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

// later gives a message back that can't be handled now.
func (e ending) later(after time.Duration, cause error) ([]*message.Message, error) {
	return e.laterAfter(e.event(), after, cause)
}

// laterAfter does it after a run, which ev is about.
func (e ending) laterAfter(ev Event, after time.Duration, cause error) ([]*message.Message, error) {
	after = spread(after)
	ev.After, ev.Err = after, fmt.Errorf("%w: %w", dedupe.ErrRetryLater, cause)
	e.once.report(onDelayed, ev)
	return e.delay(after, ev.Err)
}

// spread keeps duplicates from coming in step.
func spread(d time.Duration) time.Duration { return d*3/4 + rand.N(d/2+1) }

// delay lets the message come again after a time.
//
// An error would be repeated on the spot by Retry, moved away and acknowledged by
// PoisonQueue, counted as a failure by the subscriber. So the message is nacked here,
// and nothing is returned: the Router's own acknowledgement is ignored by Watermill
// then, and nothing is published.
func (e ending) delay(after time.Duration, err error) ([]*message.Message, error) {
	switch {
	case e.delivery != nil:
		e.delivery.Delay(after)
	case !e.instantAck:
		// Others redeliver at once what is nacked; without the wait that is a loop as
		// fast as the machine.
		e.pause(after)
	}
	return e.giveBack(err)
}

// interrupted gives a message back whose context was cancelled: its subscription ends,
// and nothing is wrong with it.
func (e ending) interrupted(cause error) ([]*message.Message, error) {
	return e.givenBack(e.event(), cause)
}

// givenBack is for a message that comes again without a delay of ours: its handler gave
// it back without saying that it failed (it nacked, or asked our subscriber for a delay
// or for the dead letters), or its subscription ends.
func (e ending) givenBack(ev Event, cause error) ([]*message.Message, error) {
	if cause == nil {
		cause = errGivenBack
	}
	ev.Err = fmt.Errorf("%w: %w", dedupe.ErrRetryLater, cause)
	e.once.report(onDelayed, ev)
	return e.giveBack(ev.Err)
}

// giveBack nacks. Where nobody looks at that, or it is too late for it (InstantAck),
// the error has to say it.
func (e ending) giveBack(err error) ([]*message.Message, error) {
	if e.asError || !e.msg.Nack() {
		return nil, fmt.Errorf("middleware: %w", err)
	}
	return nil, nil
}

// reject is for a message that no further try can mend. Our subscriber puts it among
// the dead letters at once, whatever middlewares are around; others get an error.
func (e ending) reject(reason string, err error) ([]*message.Message, error) {
	err = permanentError{fmt.Errorf("middleware: %w", err)}
	if e.delivery == nil {
		return nil, err
	}
	e.once.logger.Error("Message goes to the dead letters, since another try can't help", err, e.fields())
	e.delivery.Reject(reason, err)
	if e.asError || !e.msg.Nack() {
		return nil, err
	}
	return nil, nil
}

// pause waits, until the end of the subscription at most. That a Timeout around us has
// run out does not end it.
func (e ending) pause(d time.Duration) {
	done := e.own.Done()
	if errors.Is(e.own.Err(), context.DeadlineExceeded) {
		done = nil
	}
	wait.For(context.Background(), done, d)
}
