// Package wmeta has the names of metadata that are not keys: those that Watermill's
// components write, since the packages that export them would bring their own dependencies
// along (a test compares the two), and those of our dead letters.
package wmeta

import "strconv"

const (
	// CQRSName is where the marshalers of components/cqrs write the name of the event.
	CQRSName = "name"

	// DelayedUntil and DelayedFor are those of components/delay and of the middleware
	// DelayOnError: when a message is due, and how long it waits.
	DelayedUntil = "_watermill_delayed_until"
	DelayedFor   = "_watermill_delayed_for"

	// RequeuerRetries is how often components/requeuer has sent a message back.
	RequeuerRetries = "_watermill_requeuer_retries"

	// PoisonedReason and the next three are what the middleware PoisonQueue notes on a
	// message.
	PoisonedReason     = "reason_poisoned"
	PoisonedTopic      = "topic_poisoned"
	PoisonedHandler    = "handler_poisoned"
	PoisonedSubscriber = "subscriber_poisoned"
)

// DeadPrefix begins the names of all metadata of a dead letter. They are known to operators
// and stored on servers.
const DeadPrefix = "_dead_"

const (
	DeadReason = DeadPrefix + "reason" // why it is here: one of a few words, or a handler's own
	DeadError  = DeadPrefix + "error"  // what the handler or the decoder said
	DeadCount  = DeadPrefix + "count"  // how often it was delivered
	DeadGroup  = DeadPrefix + "group"  // the group that gave up on it
	DeadOrigin = DeadPrefix + "origin" // stream and entry ID, "orders 1700000000000-0"
	DeadAt     = DeadPrefix + "at"     // when, RFC 3339
)

// Counter reads a counter in metadata. One that is missing or is no number is 0, as it is
// for Watermill's Requeuer.
func Counter(metadata map[string]string, name string) uint64 {
	value := metadata[name]
	if value == "" { // nearly always; an error would cost an allocation
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
