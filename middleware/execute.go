package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// execute runs the handler and records its success.
func (r *run) execute(claim dedupe.Claim, fn handlerFunc) ([]*message.Message, error) {
	handled := eventkey.Handled{
		Namespace: r.key.Namespace, Handler: r.key.Handler, Topic: r.key.Topic, Key: r.eventKey, ID: r.key.Event,
		Metadata: r.msg.Metadata,
	}
	ctx := eventkey.WithHandled(claim.Context(), handled)
	asked := askedOf(r.delivery)
	if asked != nil {
		ctx = delivery.With(ctx, asked)
	}
	came := keep(r.msg)
	began := time.Now()
	ev := r.event()

	// A panic passes through, and so does runtime.Goexit; both leave the claim rolled
	// back and the message as it came.
	finished := false
	defer func() {
		if !finished {
			r.msg.SetContext(r.own)
			came.restore(r.msg, false)
			r.rollback(claim)
			ev.Took = time.Since(began)
			r.noteFailure(ev, errPanicked)
		}
	}()
	r.suspectRetention()
	if claim.Info().TookOver {
		r.once.tell(onTakeOver, ev)
	}
	r.msg.SetContext(ctx)
	produced, err := fn(ctx)
	finished = true
	r.msg.SetContext(r.own)
	if err == nil {
		produced = apart(produced)
	}
	poisoned := came.restore(r.msg, err != nil)
	ev.Took = time.Since(began)

	switch lost := context.Cause(claim.Context()); {
	case errors.Is(lost, dedupe.ErrLeaseLost):
		r.rollback(claim)
		return r.leaseLost(ev, lost)
	case err != nil:
		r.rollback(claim)
		if asked.delay() && errors.Is(err, dedupe.ErrRetryLater) {
			return r.givenBack(ev, err)
		}
		return r.failed(ev, err)
	case isNacked(r.msg) || asked.delay() || asked.reject():
		// No error, but no success: what is given back is to come again, or has gone to
		// the dead letters.
		r.rollback(claim)
		return r.givenBack(ev, nil)
	case poisoned:
		// The queue has the message now, so it is to be acknowledged; but it is no
		// success, and what comes back from the queue must run.
		r.rollback(claim)
		ev.Err = errPoisoned
		r.once.tell(onFailed, ev)
		return produced, nil
	}

	out, recorded, err := r.prepare(ctx, produced)
	if err != nil {
		r.rollback(claim)
		return r.failed(ev, err)
	}
	size := 0
	for _, b := range recorded {
		size += len(b)
	}
	if size > r.once.cfg.MaxOutputBytes {
		r.rollback(claim)
		return r.tooLarge(ev, fmt.Errorf("%d messages of %d bytes, limit %d", len(out), size, r.once.cfg.MaxOutputBytes))
	}
	return r.record(claim, ev, out, recorded)
}

// record makes the record of a success, and returns what the Router is to publish. The
// effect is there already: nothing but the lease and StoreTimeout ends the attempt.
func (r *run) record(claim dedupe.Claim, ev Event, out []*message.Message, recorded [][]byte) ([]*message.Message, error) {
	commit, cancel := context.WithTimeout(context.WithoutCancel(r.own), r.once.cfg.StoreTimeout)
	defer cancel()
	err := claim.Commit(commit, recorded)
	if err != nil {
		err = fmt.Errorf("record %s: %w", r.key, err)
	}
	switch {
	case errors.Is(err, dedupe.ErrLeaseLost):
		return r.leaseLost(ev, err)
	case errors.Is(err, dedupe.ErrAborted):
		return r.failed(ev, fmt.Errorf("middleware: %w", err))
	case errors.Is(err, dedupe.ErrTooLarge):
		r.rollback(claim)
		return r.tooLarge(ev, err)
	case errors.Is(err, dedupe.ErrRefused):
		// No outage: waiting would run the handler again and again, for nothing.
		r.rollback(claim)
		r.once.faults.storeFault(faultRecord, err, r.fields())
		return r.failed(ev, fmt.Errorf("middleware: %w", err))
	case err != nil:
		// Nobody knows. If it is recorded, the redelivery is skipped and gets the
		// outputs; else the handler runs again.
		r.once.faults.storeFault(faultRecord, err, r.fields())
		return r.laterAfter(ev, r.once.cfg.Delay, err)
	}
	r.once.faults.over(faultRecord)
	ev.Outputs = len(out)
	r.once.tell(onHandled, ev)
	r.published(claim, len(out))
	return out, nil
}

// rollback gives a claim up, whatever has become of the message's context.
func (r *run) rollback(claim dedupe.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.own), r.once.cfg.StoreTimeout)
	defer cancel()
	if err := claim.Rollback(ctx); err != nil {
		r.once.logger.Error("The claim of an event that was not handled could not be given up: the event waits until the claim ends (its lease, or the database session), and is handled then",
			err, r.fields().Add(watermill.LogFields{"lease": r.once.cfg.Lease.String()}))
	}
}
