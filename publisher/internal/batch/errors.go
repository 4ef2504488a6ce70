package batch

import (
	"errors"
	"fmt"
)

// Errors that package publisher exports; there they are explained.
var (
	ErrClosed         = errors.New("publisher is closed (a Watermill Router closes every publisher that it is given; give it Publisher.Shared())")
	ErrNotSent        = errors.New("message was not sent")
	ErrOutcomeUnknown = errors.New("outcome unknown: the message may be in the stream; publishing it again is safe")
)

var (
	// ErrOther is the reason of a message that was not sent because of another one of its
	// call.
	ErrOther = errors.New("another message of the call failed")
	// ErrPanicked is the reason where code that was called panicked.
	ErrPanicked = errors.New("publishing panicked")

	errGivenUp      = errors.New("the caller has given up")
	errRetryEnded   = errors.New("no try succeeded within Config.RetryFor")
	errWindowPassed = errors.New("the window has nearly passed since the first try, and another could be added again")
	errAddedLate    = errors.New("the window has passed between the first try and the one that added it: it may be in the stream twice")
	errNoConnection = errors.New("the client had no free connection")
)

// NotSent is the error of a message that this call did not send.
func NotSent(reason error) error { return fmt.Errorf("%w: %w", ErrNotSent, reason) }

// Class says what an error of a [Stream] or [Session] means for the items.
type Class uint8

const (
	// Refused means that nothing was written, and another try may succeed.
	Refused Class = iota
	// Stale is Refused where another try may succeed at once, since it sets up again.
	Stale
	// Ambiguous means that the items may have been written.
	Ambiguous
	// Final means that nothing was written, and another try won't help.
	Final
)
