package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// attempt is one run of the handler under a claim, and the record of its success.
type attempt struct {
	*received
	once    *Once
	end     ending
	claim   dedupe.Claim
	handled eventkey.Handled
	asked   asked // what the handler asks for
	ev      Event
}

func newAttempt(r *run, claim dedupe.Claim) *attempt {
	return &attempt{
		received: &r.received, once: r.once, end: r.end, claim: claim, asked: asked{Delivery: r.delivery}, ev: r.event(),
		handled: eventkey.Handled{
			Namespace: r.key.Namespace, Handler: r.key.Handler, Topic: r.key.Topic, Key: r.eventKey, ID: r.key.Event,
			Metadata: r.msg.Metadata,
		},
	}
}

// execute runs the handler and records its success.
func (a *attempt) execute(fn handlerFunc) ([]*message.Message, error) {
	ctx := eventkey.WithHandled(a.claim.Context(), a.handled)
	if a.delivery != nil {
		ctx = delivery.With(ctx, &a.asked)
	}
	came := keep(a.msg)
	began := time.Now()

	// A panic passes through, and so does runtime.Goexit; both leave the claim rolled
	// back and the message as it came.
	finished := false
	defer func() {
		if !finished {
			a.msg.SetContext(a.own)
			came.restore(a.msg, false)
			a.rollback()
			a.ev.Duration = time.Since(began)
			a.end.noteFailure(a.ev, errPanicked)
		}
	}()
	a.once.suspectRetention(a.received)
	if a.claim.Info().TookOver {
		a.once.report(onTakeover, a.ev)
	}
	a.msg.SetContext(ctx)
	produced, err := fn(ctx)
	finished = true
	a.msg.SetContext(a.own)
	if err == nil {
		produced = apart(produced)
	}
	poisoned := came.restore(a.msg, err != nil)
	a.ev.Duration = time.Since(began)
	return a.judge(ctx, produced, err, poisoned)
}

// judge decides what a run was that has ended: only a success is recorded.
func (a *attempt) judge(ctx context.Context, produced []*message.Message, err error, poisoned bool) ([]*message.Message, error) {
	switch lost := context.Cause(a.claim.Context()); {
	case errors.Is(lost, dedupe.ErrLeaseLost):
		a.rollback()
		return a.end.leaseLost(a.ev, lost)
	case err != nil:
		a.rollback()
		if a.asked.delay() && errors.Is(err, dedupe.ErrRetryLater) {
			return a.end.givenBack(a.ev, err)
		}
		return a.end.failed(a.ev, err)
	case isNacked(a.msg) || a.asked.delay() || a.asked.reject():
		// No error, but no success: what is given back is to come again, or has gone to
		// the dead letters.
		a.rollback()
		return a.end.givenBack(a.ev, nil)
	case poisoned:
		// The queue has the message now, so it is to be acknowledged; but it is no
		// success, and what comes back from the queue must run.
		a.rollback()
		a.ev.Err = errPoisoned
		a.once.report(onFailed, a.ev)
		return produced, nil
	}

	out, recorded, err := a.prepare(ctx, produced)
	if err != nil {
		a.rollback()
		return a.end.failed(a.ev, err)
	}
	size := 0
	for _, b := range recorded {
		size += len(b)
	}
	if size > a.once.cfg.MaxOutputBytes {
		a.rollback()
		return a.end.tooLarge(a.ev, fmt.Errorf("%d messages of %d bytes, limit %d", len(out), size, a.once.cfg.MaxOutputBytes))
	}
	return a.record(out, recorded)
}

// record makes the record of a success, and returns what the Router is to publish. The
// effect is there already: nothing but the lease and StoreTimeout ends the attempt.
func (a *attempt) record(out []*message.Message, recorded [][]byte) ([]*message.Message, error) {
	commit, cancel := context.WithTimeout(context.WithoutCancel(a.own), a.once.cfg.StoreTimeout)
	defer cancel()
	err := a.claim.Commit(commit, recorded)
	if err != nil {
		err = fmt.Errorf("record %s: %w", a.key, err)
	}
	switch {
	case errors.Is(err, dedupe.ErrLeaseLost):
		return a.end.leaseLost(a.ev, err)
	case errors.Is(err, dedupe.ErrAborted):
		return a.end.failed(a.ev, fmt.Errorf("middleware: %w", err))
	case errors.Is(err, dedupe.ErrTooLarge):
		a.rollback()
		return a.end.tooLarge(a.ev, err)
	case errors.Is(err, dedupe.ErrRefused):
		// No outage: waiting would run the handler again and again, for nothing.
		a.rollback()
		a.once.faults.storeFault(faultRecord, err, a.fields())
		return a.end.failed(a.ev, fmt.Errorf("middleware: %w", err))
	case err != nil:
		// Nobody knows. If it is recorded, the redelivery is skipped and gets the
		// outputs; else the handler runs again.
		a.once.faults.storeFault(faultRecord, err, a.fields())
		return a.end.laterAfter(a.ev, a.once.cfg.Delay, fmt.Errorf("%w: %w", ErrStoreUnavailable, err))
	}
	a.once.faults.over(faultRecord)
	a.ev.Outputs = len(out)
	a.once.report(onHandled, a.ev)
	a.once.settleLater(a.received, a.claim, len(out))
	return out, nil
}

func (a *attempt) rollback() { a.once.rollback(a.received, a.claim) }
