package middleware

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// refused is for a message that the handler can't be run for.
func (r *run) refused(err error) ([]*message.Message, error) {
	ev := r.event()
	ev.Err = err
	r.once.tell(onRefused, ev)
	return nil, err
}

// failed is for a handler's error.
func (r *run) failed(ev Event, err error) ([]*message.Message, error) {
	switch {
	case errors.Is(err, dedupe.ErrRetryLater):
		return r.laterAfter(ev, r.once.cfg.Delay, err)
	case errors.Is(err, context.Canceled) && errors.Is(r.own.Err(), context.Canceled):
		return r.givenBack(ev, err)
	}
	r.noteFailure(ev, err)
	return nil, err
}

// noteFailure tells the hooks, our subscriber, and a later try of the same delivery.
func (r *run) noteFailure(ev Event, err error) {
	ev.Err = err
	r.once.tell(onFailed, ev)
	if r.delivery != nil {
		r.delivery.Failed(err)
	}
	if _, bounded := r.own.Deadline(); bounded {
		r.msg.SetContext(context.WithValue(r.own, failureKey{}, &failure{r.msg, err}))
	}
}

// failure is the mark, on a message's context, of a run that failed in this delivery. It
// is there for this:
//
//	Retry calls Timeout, which puts a context with a deadline onto the message, and never
//	takes it off; the handler fails, or is slower than the deadline; Timeout ends the
//	context; Retry tries again, under a context that has ended, so that nothing can be
//	claimed.
//
// That is no reason to deliver the message again uncounted: for a handler that is always
// too slow it would never end.
type failure struct {
	msg *message.Message // contexts travel with copies, and then this is another's failure
	err error
}

type failureKey struct{}

// failedBefore returns the failure of an earlier run in this delivery where its context
// has ended since, though the subscription goes on: nothing can run under it any more.
func (r *run) failedBefore() error {
	f, ok := r.own.Value(failureKey{}).(*failure)
	if !ok || f.msg != r.msg || r.own.Err() == nil {
		return nil
	}
	// Our subscriber has causes of its own for the end of a message's context.
	if cause := context.Cause(r.own); cause != context.Canceled && cause != context.DeadlineExceeded { //nolint:errorlint // not one that is wrapped
		return nil
	}
	return f.err
}

// triedInVain returns the failure again.
func (r *run) triedInVain(cause error) ([]*message.Message, error) {
	err := endedError{fmt.Errorf("middleware: %s: not run again, since the context of the message has ended after this failure: %w", r.key, cause)}
	if r.once.log.due("ended", r.key.Topic, r.key.Handler) {
		r.once.logger.Error("A handler that has failed can't be tried again, since a Timeout inside of Retry has ended the context of the message: the delivery counts as failed; "+
			"set Retry's ResetContextOnRetry, or put Timeout outside of Retry", cause, r.fields())
	}
	ev := r.event()
	ev.Err = err
	r.once.tell(onFailed, ev)
	if r.delivery != nil {
		r.delivery.Failed(cause)
	}
	return nil, err
}

// tooLate is for a Run inside of a handler whose time is up: the failure is that handler's,
// which would otherwise be delivered again uncounted, and be too slow each time.
func (r *run) tooLate() ([]*message.Message, error) {
	err := fmt.Errorf("%s: %w", r.key, r.own.Err())
	ev := r.event()
	ev.Err = fmt.Errorf("%w: %w", dedupe.ErrRetryLater, err)
	r.once.tell(onDelayed, ev)
	return nil, fmt.Errorf("middleware: %w", err)
}

// tooLarge is for messages that can't be recorded: running the handler again would only
// do again what it does besides.
func (r *run) tooLarge(ev Event, err error) ([]*message.Message, error) {
	ev.Err = fmt.Errorf("%w: %w", ErrOutputsTooLarge, err)
	r.once.tell(onFailed, ev)
	return r.reject("outputs too large", ev.Err)
}

func (r *run) conflict(info dedupe.Info) ([]*message.Message, error) {
	ev := r.event()
	ev.CommittedAt, ev.HandledBy, ev.Err = info.CommittedAt, info.Group, dedupe.ErrConflict
	r.once.tell(onConflict, ev)
	return r.reject("conflict", fmt.Errorf("%w: %s was handled at %v with another content", dedupe.ErrConflict, r.key, info.CommittedAt))
}

func (r *run) leaseLost(ev Event, err error) ([]*message.Message, error) {
	ev.After, ev.Err = spread(r.once.cfg.Delay), err
	r.once.tell(onLeaseLost, ev)
	r.once.logger.Error("The claim was lost while the handler ran, so its result is not recorded: the event comes again, and what the handler has done besides may be done twice",
		err, r.fields())
	return r.delay(ev.After, fmt.Errorf("%w: %w", dedupe.ErrRetryLater, err))
}
