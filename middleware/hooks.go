package middleware

import (
	"context"
	"time"

	"github.com/onceward/watermill-idempotent/internal/hook"
)

// Hooks receive what happens, for metrics and alerts. Every field may be nil. They are
// called from the goroutines that handle messages, several at once, and must not block.
// One that panics is logged.
// Each time that a message comes, exactly one of them receives how that ended; OnTakeover
// is called besides, before the run. Keys don't belong into metric labels.
type Hooks struct {
	// OnHandled: the handler succeeded, and that is recorded.
	OnHandled func(Event)
	// OnSkipped: the event was handled before, so the handler did not run. Outputs
	// is the number of recorded messages that are published again.
	OnSkipped func(Event)
	// OnForeignSkip: skipped, too, but what has handled it is another consumer group,
	// Event.HandledBy: two services with one Namespace, mostly, each of which loses what
	// the other handles. Where a group is not known, it is OnSkipped.
	OnForeignSkip func(Event)
	// OnFailed: the handler failed, or panicked, and nothing is recorded. Err says
	// why.
	OnFailed func(Event)
	// OnRefused: the handler did not run, and does not for this message: it has no key
	// (Err matches eventkey.ErrNoKey) or a broken one, no handler's name, it is inside of
	// the handler already, its record can't be read.
	OnRefused func(Event)
	// OnDelayed: the message can't be handled now, or its handler gave it back without
	// an error; Err matches dedupe.ErrRetryLater, and what it wraps says why: the store is
	// away, another process handles it, the service is not set up right. It comes again
	// after Event.After, where that is known. Duration is above zero where the handler ran,
	// and nobody knows whether that is recorded.
	OnDelayed func(Event)
	// OnConflict: another event was handled under this key.
	OnConflict func(Event)
	// OnTakeover: the claim of an earlier run ran out. That run ended without a word,
	// and what it did may be there. Stores that can't know it don't report it.
	OnTakeover func(Event)
	// OnLeaseLost: the claim was lost while the handler ran, and its result is
	// refused. The message comes again after Event.After.
	OnLeaseLost func(Event)
	// OnPassed: a message without a key goes through unprotected.
	OnPassed func(Event)
}

// Event is what hooks get. What does not apply is zero.
type Event struct {
	// Namespace is that of the record; Group the consumer group that the message was read
	// by, where that is known.
	Namespace, Group, Topic, Handler string
	// Key is the idempotency key; of an event that comes from another topic's PoisonQueue
	// it is the idempotent ID, under which that is recorded. MessageUUID is the message's.
	Key, MessageUUID string
	// Duration is how long the handler ran.
	Duration time.Duration
	// Outputs is the number of messages returned.
	Outputs int
	// CommittedAt is, of a skipped or conflicting message, when the event was handled.
	CommittedAt time.Time
	// HandledBy is, of a skipped or conflicting message, the consumer group that has
	// handled the event, where that is known.
	HandledBy string
	// After is the delay of a delayed message.
	After time.Duration
	Err   error

	// context is behind a pointer, so that an Event that is printed does not look into it.
	context *context.Context
}

// Context is that of the message when it came to the middleware, for its values, such as a
// span. It may have ended.
func (e Event) Context() context.Context {
	if e.context == nil {
		return context.Background()
	}
	return *e.context
}

// report calls the hooks of one kind.
func (o *Once) report(pick func(Hooks) func(Event), ev Event) {
	hook.Call(o.logger, o.cfg.Hooks, pick, ev)
}

func onHandled(h Hooks) func(Event)     { return h.OnHandled }
func onSkipped(h Hooks) func(Event)     { return h.OnSkipped }
func onForeignSkip(h Hooks) func(Event) { return h.OnForeignSkip }
func onFailed(h Hooks) func(Event)      { return h.OnFailed }
func onRefused(h Hooks) func(Event)     { return h.OnRefused }
func onDelayed(h Hooks) func(Event)     { return h.OnDelayed }
func onConflict(h Hooks) func(Event)    { return h.OnConflict }
func onTakeover(h Hooks) func(Event)    { return h.OnTakeover }
func onLeaseLost(h Hooks) func(Event)   { return h.OnLeaseLost }
func onPassed(h Hooks) func(Event)      { return h.OnPassed }
