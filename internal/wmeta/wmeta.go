// Package wmeta has the names of metadata that are not keys: those that Watermill's
// components write, since the packages that export them would bring their own dependencies
// along (a test compares the two), and those of our dead letters.
package wmeta

import "strconv"

// What Watermill's components write.
const (
	// CQRSName is where the marshalers of components/cqrs write the name of the event.
	CQRSName = "name"

	// DelayedUntil is when a message is due, by components/delay and the middleware
	// DelayOnError.
	DelayedUntil = "_watermill_delayed_until"
	// DelayedFor is how long it waits, by the same.
	DelayedFor = "_watermill_delayed_for"

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

// What the subscriber notes on a dead letter.
const (
	// DeadReason is why it is here: one of a few words, or a handler's own.
	DeadReason = DeadPrefix + "reason"
	// DeadError is the error of the handler or the decoder.
	DeadError = DeadPrefix + "error"
	// DeadCount is how often it was delivered.
	DeadCount = DeadPrefix + "count"
	// DeadGroup is the group that gave up on it.
	DeadGroup = DeadPrefix + "group"
	// DeadOrigin is its stream and entry ID: "orders 1700000000000-0".
	DeadOrigin = DeadPrefix + "origin"
	// DeadAt is when it was given up, in RFC 3339.
	DeadAt = DeadPrefix + "at"
)

// What a replay notes on the entry that it makes of a dead letter. None of it says which
// attempt that is.
const (
	// DeadReplays is how often the event was replayed, this time included.
	DeadReplays = DeadPrefix + "replays"
	// DeadReplayedAt is when, in RFC 3339.
	DeadReplayedAt = DeadPrefix + "replayed_at"
	// DeadReplayedBy is by whom.
	DeadReplayedBy = DeadPrefix + "replayed_by"
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
