package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// ending is how the handling of a message ends other than by a success. Each way out reports
// to the hooks once, and returns what the Router, or the caller of Run, gets.
type ending struct {
	*received
	once *Once
}

// refused is for a message that the handler can't be run for.
func (e ending) refused(err error) ([]*message.Message, error) {
	ev := e.event()
	ev.Err = err
	e.once.report(onRefused, ev)
	return nil, err
}

// failed is for a handler's error.
func (e ending) failed(ev Event, err error) ([]*message.Message, error) {
	switch {
	case errors.Is(err, dedupe.ErrRetryLater):
		return e.laterAfter(ev, e.once.cfg.Delay, err)
	case errors.Is(err, context.Canceled) && errors.Is(e.own.Err(), context.Canceled):
		return e.givenBack(ev, err)
	}
	e.noteFailure(ev, err)
	return nil, err
}

// noteFailure reports to the hooks, to our subscriber, and to a later try of the same delivery.
func (e ending) noteFailure(ev Event, err error) {
	ev.Err = err
	e.once.report(onFailed, ev)
	if e.delivery != nil {
		e.delivery.Failed(err)
	}
	e.markFailed(err)
}

// triedInVain returns the failure again.
func (e ending) triedInVain(cause error) ([]*message.Message, error) {
	err := endedError{fmt.Errorf("middleware: %s: not run again, since the context of the message has ended after this failure: %w", e.key, cause)}
	if e.once.log.due("ended", e.key.Topic, e.key.Handler) {
		e.once.logger.Error("A handler that has failed can't be tried again, since a Timeout inside of Retry has ended the context of the message: the delivery counts as failed; "+
			"set Retry's ResetContextOnRetry, or put Timeout outside of Retry", cause, e.fields())
	}
	ev := e.event()
	ev.Err = err
	e.once.report(onFailed, ev)
	if e.delivery != nil {
		e.delivery.Failed(cause)
	}
	return nil, err
}

// tooLate is for a Run inside of a handler whose time is up: the failure is that handler's,
// which would otherwise be delivered again uncounted, and be too slow each time.
func (e ending) tooLate() ([]*message.Message, error) {
	err := fmt.Errorf("%s: %w", e.key, e.own.Err())
	ev := e.event()
	ev.Err = fmt.Errorf("%w: %w", dedupe.ErrRetryLater, err)
	e.once.report(onDelayed, ev)
	return nil, fmt.Errorf("middleware: %w", err)
}

// tooLarge is for messages that can't be recorded: running the handler again would only
// do again what it does besides.
func (e ending) tooLarge(ev Event, err error) ([]*message.Message, error) {
	ev.Err = fmt.Errorf("%w: %w", ErrOutputsTooLarge, err)
	e.once.report(onFailed, ev)
	return e.reject("outputs too large", ev.Err)
}

func (e ending) conflict(info dedupe.ClaimInfo) ([]*message.Message, error) {
	ev := e.event()
	ev.CommittedAt, ev.HandledBy, ev.Err = info.CommittedAt, info.Group, dedupe.ErrConflict
	e.once.report(onConflict, ev)
	return e.reject("conflict", fmt.Errorf("%w: %s was handled at %v with another content", dedupe.ErrConflict, e.key, info.CommittedAt))
}

func (e ending) leaseLost(ev Event, err error) ([]*message.Message, error) {
	ev.After, ev.Err = spread(e.once.cfg.Delay), err
	e.once.report(onLeaseLost, ev)
	e.once.logger.Error("The claim was lost while the handler ran, so its result is not recorded: the event comes again, and what the handler has done besides may be done twice",
		err, e.fields())
	return e.delay(ev.After, fmt.Errorf("%w: %w", dedupe.ErrRetryLater, err))
}

// notSetUp lets the message wait: it is fine, and must not be acknowledged, poisoned or
// counted for a fault of the service.
func (e ending) notSetUp(err error) ([]*message.Message, error) {
	text := "No event is handled, and messages are given back, until the set-up of the service is mended"
	if errors.Is(err, ErrClosed) {
		text = "Messages that come after Close are not handled but given back"
	}
	e.once.faults.note("set-up of handler "+e.key.Handler, text, err, e.fields())
	return e.later(e.once.cfg.Delay, err)
}
