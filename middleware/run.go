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
	"github.com/onceward/watermill-idempotent/internal/identity"
)

// run is the handling of one message by one handler.
type run struct {
	once *Once
	msg  *message.Message
	key  dedupe.Key // of the record
	// eventKey is the event's idempotency key; mostly it is that of the record, too.
	eventKey string
	// own is the message's context as it came, and as it leaves.
	own      context.Context //nolint:containedctx // of the message
	delivery delivery.Delivery
	info     delivery.Info // of the delivery; zero without one
	// asError: nobody looks whether the message was nacked, so what is not an error
	// elsewhere is one here.
	asError   bool
	noOutputs bool
	// instantAck: acknowledged before it came here, so the acknowledgement says nothing.
	instantAck bool
}

type handlerFunc = func(ctx context.Context) ([]*message.Message, error)

func (o *Once) newRun(ctx context.Context, msg *message.Message, handler string) *run {
	instantAck := isAcked(msg)
	if instantAck {
		// With the acknowledgement its subscriber has ended the context, and nothing else
		// will bring the message again.
		ctx = context.WithoutCancel(ctx)
	}
	r := &run{once: o, msg: msg, own: ctx, delivery: delivery.From(ctx), instantAck: instantAck}
	if r.delivery != nil {
		r.info = r.delivery.Info()
	}
	r.key = dedupe.Key{Namespace: o.cfg.Namespace, Topic: topicOf(ctx, r.info), Handler: handler}
	if r.key.Namespace == "" {
		r.key.Namespace = r.info.Group
	}
	return r
}

// scope is what a message is inside of, on its context.
type scope struct {
	key   dedupe.Key
	outer *scope
}

type scopeKey struct{}

// do claims, runs, records and returns. Each way out tells the hooks once.
func (r *run) do(fn handlerFunc) ([]*message.Message, error) {
	if err := r.setUpFault(); err != nil {
		return r.notSetUp(err)
	}
	if r.key.Handler == "" {
		return r.refused(fmt.Errorf("middleware: message %s: %w: it does not come from a Router", r.msg.UUID, ErrNoHandler))
	}
	key, err := r.once.keyOf(r.key.Topic, r.msg)
	switch {
	case errors.Is(err, eventkey.ErrNoKey) && r.once.cfg.PassWithoutKey:
		r.once.tell(onPassed, r.event())
		return fn(r.own)
	case err != nil:
		return r.refused(fmt.Errorf("middleware: handler %s: %w", r.key.Handler, err))
	}
	r.eventKey, r.key.Event = key, r.once.recordKey(r.key.Topic, key, r.msg)
	outer, _ := r.own.Value(scopeKey{}).(*scope)
	for s := outer; s != nil; s = s.outer {
		if s.key == r.key {
			return r.refused(fmt.Errorf("middleware: %s: %w: wrap the handler once, by Consumer or Handler, or use Middleware alone", r.key, ErrNested))
		}
	}
	print, err := identity.Sum(r.once.cfg.Fingerprint, r.msg)
	if err != nil {
		return r.refused(fmt.Errorf("middleware: %s: fingerprint: %w", r.key, err))
	}
	if err := r.failedBefore(); err != nil {
		return r.triedInVain(err)
	}
	if r.asError && outer != nil && errors.Is(r.own.Err(), context.DeadlineExceeded) {
		return r.tooLate()
	}

	ctx, cancel := context.WithCancelCause(context.WithValue(r.own, scopeKey{}, &scope{r.key, outer}))
	defer cancel(nil)
	claim, err := r.claim(ctx, cancel, print)
	if err != nil {
		return r.noClaim(err)
	}
	r.once.faults.over(faultClaim)
	switch claim.State() {
	case dedupe.Done:
		return r.replay(claim)
	case dedupe.Conflict:
		return r.conflict(claim.Info())
	case dedupe.InProgress:
		after := r.once.cfg.Delay
		if left := claim.Info().RetryAfter; left > 0 {
			after = min(after, max(left, r.once.cfg.Delay/10))
		}
		return r.later(after, fmt.Errorf("%s is being handled by another", r.key))
	case dedupe.Claimed:
		return r.execute(claim, fn)
	}
	return r.refused(fmt.Errorf("middleware: %s: the store's claim is %v", r.key, claim.State()))
}

// errStoreTimeout ends the context of a claim that takes too long.
var errStoreTimeout = errors.New("the store did not answer in time")

// claim asks the store, for a bounded time. The context that it asks with is the one
// that the handler runs under, so the bound must not be a deadline.
func (r *run) claim(ctx context.Context, cancel context.CancelCauseFunc, print []byte) (dedupe.Claim, error) {
	cfg := &r.once.cfg
	timer := time.AfterFunc(cfg.StoreTimeout+cfg.Wait, func() { cancel(errStoreTimeout) })
	claim, err := cfg.Store.Claim(ctx, r.key, dedupe.Options{
		Token: dedupe.NewToken(), Lease: cfg.Lease, Retention: cfg.Retention, Wait: cfg.Wait, Fingerprint: print, Group: r.info.Group,
	})
	if !timer.Stop() && err == nil { // it came, but its context has ended
		r.rollback(claim)
		err = errStoreTimeout
	}
	return claim, err
}

// noClaim is for a store that gave none.
func (r *run) noClaim(err error) ([]*message.Message, error) {
	err = fmt.Errorf("claim %s: %w", r.key, err)
	switch {
	case errors.Is(err, dedupe.ErrInvalid), errors.Is(err, dedupe.ErrCorrupt):
		return r.refused(fmt.Errorf("middleware: %w", err))
	case errors.Is(r.own.Err(), context.Canceled):
		return r.interrupted(err)
	case r.own.Err() != nil: // a Timeout around us: the handler has not failed, it did not run
		return r.later(r.once.cfg.Delay, err)
	}
	// Without the store nobody knows whether the handler may run.
	r.once.faults.storeFault(faultClaim, err, r.fields())
	return r.later(r.once.cfg.Delay, err)
}

func (r *run) event() Event {
	return Event{
		Namespace: r.key.Namespace, Group: r.info.Group, Topic: r.key.Topic, Handler: r.key.Handler,
		Key: r.key.Event, MessageUUID: r.msg.UUID,
	}
}

func (r *run) fields() watermill.LogFields {
	return watermill.LogFields{
		"namespace": r.key.Namespace, "topic": r.key.Topic, "handler": r.key.Handler,
		"key": r.key.Event, "message_uuid": r.msg.UUID,
	}
}
