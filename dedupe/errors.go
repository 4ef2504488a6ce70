package dedupe

import (
	"errors"

	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// Errors of handling. Stores and the middleware wrap them with what they know.
var (
	// ErrConflict means that the event's key was used for an event with another fingerprint,
	// which is the one that was handled. The key is chosen too coarsely. Another try
	// does not help.
	ErrConflict = errors.New("key was used for another event")
	// ErrLeaseLost means that the claim is no longer held, so the result of the run is refused;
	// another process may be running the handler, or have run it. Deliver the message
	// again.
	ErrLeaseLost = storeutil.ErrLeaseLost
	// ErrRetryLater means that nothing is wrong with the message; it can't be handled now, since
	// another process is handling it or the store is unavailable. Deliver it again
	// after a while, and don't count it as failed.
	ErrRetryLater = errors.New("message can't be handled now")
	// ErrAborted means that nothing was recorded, by the fault of the run: the database has ended
	// or refused its transaction, as a deadlock's victim, for a constraint that is
	// checked at the end, or for a failed statement whose error the handler swallowed.
	// The run counts as failed. A session that was lost is no such fault.
	ErrAborted = errors.New("transaction was aborted")
	// ErrRefused means that an operator must mend the store first: a right is missing, or the table.
	// The error says what to do. Nothing was recorded, and another try does not help before.
	ErrRefused = errors.New("store refuses the record")
	// ErrTooLarge means that the record, with its outputs, is larger than the store takes.
	// Nothing was recorded, and another try does not help.
	ErrTooLarge = errors.New("record is too large for the store")
	// ErrClosed means that the store was closed.
	ErrClosed = errors.New("store is closed")
	// ErrCorrupt means that the record in the store can't be read. It is left as it is, and the
	// handler does not run; Forget it to let the handler run.
	ErrCorrupt = storeutil.ErrCorrupt
	// ErrInvalid means that the caller asked for what makes no sense, such as an empty
	// namespace. Another try does not help.
	ErrInvalid = errors.New("invalid claim")
	// ErrNotFound means that Lookup found no record.
	ErrNotFound = errors.New("no record")
	// ErrFull means that a bounded store holds nothing but claims.
	ErrFull = errors.New("store is full of claims")
)
