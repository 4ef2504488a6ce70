package middleware

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
)

// run is the handling of one message by one handler, up to what the claim says: then an
// attempt follows, or a replay.
type run struct {
	received
	once *Once
	end  ending
	// noOutputs: the handler can't return messages.
	noOutputs bool
}

type handlerFunc = func(ctx context.Context) ([]*message.Message, error)

func (o *Once) newRun(ctx context.Context, msg *message.Message, handler string) *run {
	r := &run{once: o}
	r.receive(ctx, msg, o.cfg.Namespace, handler)
	r.end = ending{&r.received, o}
	return r
}

// do claims, runs, records and returns. Each way out reports to the hooks once.
func (r *run) do(fn handlerFunc) ([]*message.Message, error) {
	if err := r.once.setUpFault(&r.received); err != nil {
		return r.end.notSetUp(err)
	}
	if r.key.Handler == "" {
		return r.end.refused(fmt.Errorf("middleware: message %s: %w: it does not come from a Router", r.msg.UUID, ErrNoHandler))
	}
	key, err := r.once.keyOf(r.key.Topic, r.msg)
	switch {
	case errors.Is(err, eventkey.ErrNoKey) && r.once.cfg.PassWithoutKey:
		r.once.report(onPassed, r.event())
		return fn(r.own)
	case err != nil:
		return r.end.refused(fmt.Errorf("middleware: handler %s: %w", r.key.Handler, err))
	}
	r.eventKey, r.key.Event = key, identity.RecordKey(r.key.Topic, key, r.msg.Metadata, r.once.cfg.PoisonTopics)
	if err := r.enter(); err != nil {
		return r.end.refused(err)
	}
	print, err := identity.Sum(r.once.cfg.Fingerprint, r.msg)
	if err != nil {
		return r.end.refused(fmt.Errorf("middleware: %s: fingerprint: %w", r.key, err))
	}
	if err := r.failedBefore(); err != nil {
		return r.end.triedInVain(err)
	}
	if r.asError && r.scope.outer != nil && errors.Is(r.own.Err(), context.DeadlineExceeded) {
		return r.end.tooLate()
	}

	ctx, cancel := storeutil.WithCancel(context.WithValue(r.own, scopeKey{}, &r.scope), time.Now().Add(r.once.cfg.claimTimeout()))
	defer cancel(nil)
	claim, err := r.claim(ctx, cancel, print)
	if err != nil {
		return r.noClaim(err)
	}
	r.once.faults.over(faultClaim)
	switch claim.State() {
	case dedupe.StateDone:
		return r.replay(claim)
	case dedupe.StateConflict:
		return r.end.conflict(claim.Info())
	case dedupe.StateInProgress:
		after := r.once.cfg.Delay
		if left := claim.Info().RetryAfter; left > 0 {
			after = min(after, max(left, r.once.cfg.Delay/10))
		}
		return r.end.later(after, fmt.Errorf("%s: %w", r.key, ErrInProgress))
	case dedupe.StateClaimed:
		return newAttempt(r, claim).execute(fn)
	}
	return r.end.refused(fmt.Errorf("middleware: %s: the store's claim is %v", r.key, claim.State()))
}

// errStoreTimeout ends the context of a claim that takes too long.
var errStoreTimeout = errors.New("the store did not answer in time")

// claim asks the store, for a bounded time. The context that it asks with is the one
// that the handler runs under, so the bound must not be a deadline.
func (r *run) claim(ctx context.Context, cancel context.CancelCauseFunc, print []byte) (dedupe.Claim, error) {
	cfg := &r.once.cfg
	timer := time.AfterFunc(cfg.claimTimeout(), func() { cancel(errStoreTimeout) })
	claim, err := cfg.Store.Claim(ctx, r.key, dedupe.ClaimOptions{
		Token: dedupe.NewToken(), Lease: cfg.Lease, Retention: cfg.Retention, Wait: cfg.Wait, Fingerprint: print, Group: r.info.Group,
	})
	if !timer.Stop() && err == nil { // it came, but its context has ended
		r.once.rollback(&r.received, claim)
		err = errStoreTimeout
	}
	return claim, err
}

// noClaim is for a store that gave none.
func (r *run) noClaim(err error) ([]*message.Message, error) {
	err = fmt.Errorf("claim %s: %w", r.key, err)
	switch {
	case errors.Is(err, dedupe.ErrInvalid), errors.Is(err, dedupe.ErrCorrupt):
		return r.end.refused(fmt.Errorf("middleware: %w", err))
	case errors.Is(r.own.Err(), context.Canceled):
		return r.end.interrupted(err)
	case r.own.Err() != nil: // a Timeout around us: the handler has not failed, it did not run
		return r.end.later(r.once.cfg.Delay, err)
	}
	// Without the store nobody knows whether the handler may run.
	r.once.faults.storeFault(faultClaim, err, r.fields())
	return r.end.later(r.once.cfg.Delay, fmt.Errorf("%w: %w", ErrStoreUnavailable, err))
}

// rollback gives a claim up, whatever has become of the message's context.
func (o *Once) rollback(in *received, claim dedupe.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(in.own), o.cfg.StoreTimeout)
	defer cancel()
	if err := claim.Rollback(ctx); err != nil {
		o.logger.Error("The claim of an event that was not handled could not be given up: the event waits until the claim ends (its lease, or the database session), and is handled then",
			err, in.fields().Add(watermill.LogFields{"lease": o.cfg.Lease.String()}))
	}
}
