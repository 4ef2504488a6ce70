package middleware

import (
	"time"

	"github.com/onceward/watermill-idempotent/internal/hook"
)

// Hooks are told what happens, for metrics and alerts. Every field may be nil. They are
// called from the goroutines that handle messages, several at once, and must not block.
// One that panics is logged.
// Keys don't belong into metric labels.
type Hooks struct {
	// OnHandled: the handler succeeded, and that is recorded.
	OnHandled func(Event)
	// OnSkipped: the event was handled before, so the handler did not run. Outputs
	// is the number of recorded messages that are published again.
	OnSkipped func(Event)
	// OnFailed: the handler failed, or panicked, and nothing is recorded. Err says
	// why.
	OnFailed func(Event)
	// OnDelayed: the message can't be handled now, or its handler gave it back without
	// an error; Err matches dedupe.ErrRetryLater, and what it wraps says why. It comes
	// again after Event.After, where that is known.
	OnDelayed func(Event)
	// OnConflict: another event was handled under this key.
	OnConflict func(Event)
	// OnTakeOver: the claim of an earlier run ran out. That run ended without a word,
	// and what it did may be there. Stores that can't know it don't tell.
	OnTakeOver func(Event)
	// OnLeaseLost: the claim was lost while the handler ran, and its result is
	// refused.
	OnLeaseLost func(Event)
	// OnPassed: a message without a key went through unprotected.
	OnPassed func(Event)
}

// Event is what hooks get. What does not apply is zero.
type Event struct {
	Namespace, Topic, Handler string
	// Key is the idempotency key; of an event that comes from another topic's PoisonQueue
	// it is the idempotent ID, under which that is recorded. MessageUUID is the message's.
	Key, MessageUUID string
	// Took is how long the handler ran.
	Took time.Duration
	// Outputs is the number of messages returned.
	Outputs int
	// CommittedAt is, of a skipped or conflicting message, when the event was handled.
	CommittedAt time.Time
	// After is the delay of a delayed message.
	After time.Duration
	Err   error
}

func (o *Once) tell(pick func(Hooks) func(Event), ev Event) {
	hook.Call(o.logger, o.cfg.Hooks, pick, ev)
}

func onHandled(h Hooks) func(Event)   { return h.OnHandled }
func onSkipped(h Hooks) func(Event)   { return h.OnSkipped }
func onFailed(h Hooks) func(Event)    { return h.OnFailed }
func onDelayed(h Hooks) func(Event)   { return h.OnDelayed }
func onConflict(h Hooks) func(Event)  { return h.OnConflict }
func onTakeOver(h Hooks) func(Event)  { return h.OnTakeOver }
func onLeaseLost(h Hooks) func(Event) { return h.OnLeaseLost }
func onPassed(h Hooks) func(Event)    { return h.OnPassed }
