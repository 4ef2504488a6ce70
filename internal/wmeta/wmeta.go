// Package wmeta has the names of metadata that Watermill's components write: the packages
// that export them would bring their own dependencies along. A test compares the two.
package wmeta

// The names.
const (
	// CQRSName is where the marshalers of components/cqrs write the name of the event.
	CQRSName = "name"

	// DelayedUntil and DelayedFor are those of components/delay and of the middleware
	// DelayOnError: when a message is due, and how long it waits.
	DelayedUntil = "_watermill_delayed_until"
	DelayedFor   = "_watermill_delayed_for"

	// RequeuerRetries is how often components/requeuer has sent a message back.
	RequeuerRetries = "_watermill_requeuer_retries"

	// What the middleware PoisonQueue notes on a message.
	PoisonedReason     = "reason_poisoned"
	PoisonedTopic      = "topic_poisoned"
	PoisonedHandler    = "handler_poisoned"
	PoisonedSubscriber = "subscriber_poisoned"
)
