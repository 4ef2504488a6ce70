package subscriber

import (
	"errors"

	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// Errors of [Subscriber.Subscribe] on which callers branch. All others wrap what the
// server said.
var (
	// ErrClosed means that the subscriber was closed.
	ErrClosed = errors.New("subscriber is closed")
	// ErrWrongType means that the key of the topic holds something else than a stream.
	ErrWrongType = group.ErrWrongType
	// ErrUnsupported means that the server can't do what Config asks for.
	ErrUnsupported = group.ErrUnsupported
)

// Causes of the end of a message's context, see context.Cause.
var (
	// ErrSettled means that the message was acknowledged or not acknowledged.
	ErrSettled = errors.New("message is settled")
	// ErrOwnershipLost means that the entry may belong to another consumer by now, or does: it
	// was not renewed in time, for want of a connection or since the process stood
	// still. What the handler does from here on, another one may do as well; its
	// acknowledgement will be refused unless the entry turns out to be still ours.
	ErrOwnershipLost = ledger.ErrOwnershipLost
	// ErrClosing means that the subscription ended and Config.CloseTimeout has nearly passed.
	// A message that is not acknowledged before it has may be delivered again.
	ErrClosing = ledger.ErrClosing
)

// What log lines at ERROR give as the cause where no call has failed.
var (
	errSmallPool    = errors.New("each subscription keeps one connection busy; raise PoolSize to the number wanted")
	errSlowHandlers = errors.New("CloseTimeout has nearly passed; the contexts of the messages end")
	errDeleted      = errors.New("somebody has deleted the stream or destroyed the group")
	errStreamAnew   = errors.New("the stream was deleted, and its IDs begin again below those that were read")
	errNotAlone     = errors.New("an ordered consumer needs the group for itself")
	errSilent       = errors.New("their consumers gave no sign of life for MinIdle")
	errNoReason     = errors.New("the handler's error is not known")
	errNoReplies    = errors.New("no answer of Redis within CloseTimeout and five seconds")
	errTrimmed      = errors.New("the entries were deleted or trimmed")
)

// causeOfFailure is what the log gives as the reason of a handler's failure.
func causeOfFailure(failure error) error {
	if failure == nil {
		return errNoReason
	}
	return failure
}
