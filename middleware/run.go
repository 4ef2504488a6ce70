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
	"github.com/onceward/watermill-idempotent/internal/wire"
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
	return &run{
		once: o, msg: msg, own: ctx, delivery: delivery.From(ctx), instantAck: instantAck,
		key: dedupe.Key{Namespace: o.cfg.Namespace, Topic: topicOf(ctx), Handler: handler},
	}
}

// scope is what a message is inside of, on its context.
type scope struct {
	key   dedupe.Key
	outer *scope
}

type scopeKey struct{}

// do claims, runs, records and returns.
func (r *run) do(fn handlerFunc) ([]*message.Message, error) {
	if r.key.Handler == "" {
		return nil, fmt.Errorf("middleware: message %s: %w: it does not come from a Router", r.msg.UUID, ErrNoHandler)
	}
	key, err := r.once.keyOf(r.key.Topic, r.msg)
	switch {
	case errors.Is(err, eventkey.ErrNoKey) && r.once.cfg.PassWithoutKey:
		r.once.tell(onPassed, r.event())
		return fn(r.own)
	case err != nil:
		return nil, fmt.Errorf("middleware: handler %s: %w", r.key.Handler, err)
	}
	r.eventKey, r.key.Event = key, r.once.recordKey(r.key.Topic, key, r.msg)
	outer, _ := r.own.Value(scopeKey{}).(*scope)
	for s := outer; s != nil; s = s.outer {
		if s.key == r.key {
			return nil, fmt.Errorf("middleware: %s: %w: wrap the handler once, by Consumer or Handler, or use Middleware alone", r.key, ErrNested)
		}
	}
	print, err := eventkey.Sum(r.once.cfg.Fingerprint, r.msg)
	if err != nil {
		return nil, fmt.Errorf("middleware: %s: fingerprint: %w", r.key, err)
	}

	ctx, cancel := context.WithCancelCause(context.WithValue(r.own, scopeKey{}, &scope{r.key, outer}))
	defer cancel(nil)
	claim, err := r.claim(ctx, cancel, print)
	if err != nil {
		return r.noClaim(err)
	}
	r.storeThere()
	switch claim.State() {
	case dedupe.Done:
		return r.replay(claim)
	case dedupe.Conflict:
		ev := r.event()
		ev.CommittedAt, ev.Err = claim.Info().CommittedAt, dedupe.ErrConflict
		r.once.tell(onConflict, ev)
		return r.reject("conflict", fmt.Errorf("%w: %s was handled at %v with another content", dedupe.ErrConflict, r.key, claim.Info().CommittedAt))
	case dedupe.InProgress:
		after := r.once.cfg.Delay
		if left := claim.Info().RetryAfter; left > 0 {
			after = min(after, max(left, r.once.cfg.Delay/10))
		}
		return r.later(after, fmt.Errorf("%s is being handled by another", r.key))
	case dedupe.Claimed:
		return r.execute(claim, fn)
	}
	return nil, fmt.Errorf("middleware: %s: the store's claim is %v", r.key, claim.State())
}

// errStoreTimeout ends the context of a claim that takes too long.
var errStoreTimeout = errors.New("the store did not answer in time")

// claim asks the store, for a bounded time. The context that it asks with is the one
// that the handler runs under, so the bound must not be a deadline.
func (r *run) claim(ctx context.Context, cancel context.CancelCauseFunc, print []byte) (dedupe.Claim, error) {
	cfg := &r.once.cfg
	timer := time.AfterFunc(cfg.StoreTimeout+cfg.Wait, func() { cancel(errStoreTimeout) })
	claim, err := cfg.Store.Claim(ctx, r.key, dedupe.Options{
		Token: dedupe.NewToken(), Lease: cfg.Lease, Retention: cfg.Retention, Wait: cfg.Wait, Fingerprint: print,
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
		return nil, fmt.Errorf("middleware: %w", err)
	case errors.Is(r.own.Err(), context.Canceled):
		return r.interrupted(err)
	case r.own.Err() != nil: // a Timeout around us: the handler has not failed, it did not run
		return r.later(r.once.cfg.Delay, err)
	}
	return r.storeAway(err)
}

// storeAway delays: without the store nobody knows whether the handler may run.
func (r *run) storeAway(err error) ([]*message.Message, error) {
	if !r.once.away.Swap(true) {
		r.once.logger.Error("Store is out of reach: messages wait until it is back", err, r.fields())
	}
	return r.later(r.once.cfg.Delay, err)
}

// storeThere notes that the store has answered.
func (r *run) storeThere() {
	if r.once.away.Load() && r.once.away.Swap(false) {
		r.once.logger.Info("Store is back", r.fields())
	}
}

// execute runs the handler and records its success.
func (r *run) execute(claim dedupe.Claim, fn handlerFunc) ([]*message.Message, error) {
	handled := eventkey.Handled{
		Namespace: r.key.Namespace, Handler: r.key.Handler, Topic: r.key.Topic, Key: r.eventKey, ID: r.key.Event,
		Attempt: eventkey.AttemptOf(r.msg), Origin: eventkey.OriginOf(r.msg),
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
		r.msg.SetContext(r.own)
		if !finished {
			came.restore(r.msg, false)
			r.rollback(claim)
			ev.Took, ev.Err = time.Since(began), errors.New("the handler panicked")
			r.once.tell(onFailed, ev)
		}
	}()
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

	out, recorded, err := r.prepare(ctx, produced, handled)
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

// record makes the record of a success, and returns what the Router is to publish.
func (r *run) record(claim dedupe.Claim, ev Event, out []*message.Message, recorded [][]byte) ([]*message.Message, error) {
	commit, cancel := context.WithTimeout(context.WithoutCancel(r.own), r.once.cfg.StoreTimeout)
	defer cancel()
	switch err := claim.Commit(commit, recorded); {
	case errors.Is(err, dedupe.ErrLeaseLost):
		return r.leaseLost(ev, err)
	case errors.Is(err, dedupe.ErrAborted):
		return r.failed(ev, fmt.Errorf("middleware: record %s: %w", r.key, err))
	case errors.Is(err, dedupe.ErrTooLarge):
		r.rollback(claim)
		return r.tooLarge(ev, err)
	case errors.Is(err, dedupe.ErrRefused):
		// No outage: waiting would run the handler again and again, for nothing.
		r.rollback(claim)
		return r.failed(ev, fmt.Errorf("middleware: record %s: %w", r.key, err))
	case err != nil:
		// Nobody knows. If it is recorded, the redelivery is skipped and gets the
		// outputs; else the handler runs again.
		ev.Err = fmt.Errorf("record %s: %w", r.key, err)
		r.once.tell(onFailed, ev)
		return r.storeAway(ev.Err)
	}
	ev.Outputs = len(out)
	r.once.tell(onHandled, ev)
	r.published(claim, len(out))
	return out, nil
}

// failed is for a handler's error.
func (r *run) failed(ev Event, err error) ([]*message.Message, error) {
	switch {
	case errors.Is(err, dedupe.ErrRetryLater):
		return r.later(r.once.cfg.Delay, err)
	case errors.Is(err, context.Canceled) && errors.Is(r.own.Err(), context.Canceled):
		return r.interrupted(err)
	}
	ev.Err = err
	r.once.tell(onFailed, ev)
	if r.delivery != nil {
		r.delivery.Failed(err)
	}
	return nil, err
}

// tooLarge is for messages that can't be recorded: running the handler again would only
// do again what it does besides.
func (r *run) tooLarge(ev Event, err error) ([]*message.Message, error) {
	ev.Err = fmt.Errorf("%w: %w", ErrOutputsTooLarge, err)
	r.once.tell(onFailed, ev)
	return r.reject("outputs too large", ev.Err)
}

func (r *run) leaseLost(ev Event, err error) ([]*message.Message, error) {
	ev.Err = err
	r.once.tell(onLeaseLost, ev)
	r.once.logger.Error("Claim was lost while the handler ran: its result is refused", err, r.fields())
	return r.later(r.once.cfg.Delay, err)
}

// replay returns what is recorded.
func (r *run) replay(claim dedupe.Claim) ([]*message.Message, error) {
	recorded := claim.Outputs()
	if r.noOutputs && len(recorded) > 0 {
		return nil, fmt.Errorf("middleware: %s: %w: %d of them; wrap it by Handler until they are published", r.key, ErrUnexpectedOutputs, len(recorded))
	}
	out := make([]*message.Message, len(recorded))
	for i, b := range recorded {
		msg, err := wire.DecodeOutput(b)
		if err != nil {
			return nil, fmt.Errorf("middleware: %s: %w: message %d: %w", r.key, dedupe.ErrCorrupt, i, err)
		}
		msg.SetContext(r.returned())
		out[i] = msg
	}
	ev := r.event()
	ev.CommittedAt, ev.Outputs = claim.Info().CommittedAt, len(out)
	r.once.tell(onSkipped, ev)
	r.once.suspectPoisonTopic(r)
	r.once.logger.Debug("Skipped: handled before", r.fields().Add(watermill.LogFields{"committed_at": ev.CommittedAt, "outputs": len(out)}))
	r.published(claim, len(out))
	return out, nil
}

// published settles the claim once the Router has published the outputs, which its
// acknowledgement tells.
func (r *run) published(claim dedupe.Claim, outputs int) {
	if outputs > 0 && !r.instantAck {
		r.once.settle.afterAck(r.msg, claim)
	}
}

// rollback gives a claim up, whatever has become of the message's context.
func (r *run) rollback(claim dedupe.Claim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.own), r.once.cfg.StoreTimeout)
	defer cancel()
	if err := claim.Rollback(ctx); err != nil {
		r.once.logger.Error("Claim could not be given up: it blocks the event until it runs out", err, r.fields())
	}
}

func (r *run) event() Event {
	return Event{Namespace: r.key.Namespace, Topic: r.key.Topic, Handler: r.key.Handler, Key: r.key.Event, MessageUUID: r.msg.UUID}
}

func (r *run) fields() watermill.LogFields {
	return watermill.LogFields{"topic": r.key.Topic, "handler": r.key.Handler, "key": r.key.Event, "message_uuid": r.msg.UUID}
}
