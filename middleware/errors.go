package middleware

import (
	"errors"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
)

// Errors of handling, beside those of package dedupe. Where our own subscriber is in
// use, ErrOutputsTooLarge and dedupe.ErrConflict don't travel as errors: the message
// goes to the dead letters.
var (
	// ErrNested: the message entered this handler while it is inside of it already:
	// the handler is wrapped twice, or Middleware was added beside Handler.
	ErrNested = errors.New("message is inside this handler already")
	// ErrNoHandler: nobody knows the name of the handler. Outside of a Router, use
	// [Once.Run], which is given one.
	ErrNoHandler = errors.New("handler has no name")
	// ErrOutputsTooLarge: the handler returned more than Config.MaxOutputBytes, or than
	// the store takes. What it did besides has been done; running it again would do it
	// again.
	ErrOutputsTooLarge = errors.New("returned messages are too large to be recorded")
	// ErrUnexpectedOutputs: messages are recorded for a handler that returns none any
	// more, and so there is nowhere to publish them.
	ErrUnexpectedOutputs = errors.New("messages are recorded for a handler that returns none")
	// errPoisoned: a PoisonQueue inside of ours has moved the message away.
	errPoisoned = errors.New("message was poisoned inside the handler")
	// errGivenBack: the handler gave the message back, and returned no error.
	errGivenBack = errors.New("the handler gave the message back")
)

// permanentError marks an error that another try can't mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks it.
func (permanentError) Permanent() bool { return true }

// IsPermanent reports that handling the same message again can't succeed: the filter
// of a PoisonQueue, or Retry's ShouldRetry, may ask it. Errors of one's own count when
// they have a method Permanent() bool that says so.
func IsPermanent(err error) bool {
	var marked interface{ Permanent() bool }
	if errors.As(err, &marked) && marked.Permanent() {
		return true
	}
	for _, target := range []error{
		ErrNested, ErrNoHandler, ErrOutputsTooLarge, ErrUnexpectedOutputs,
		dedupe.ErrConflict, dedupe.ErrInvalid, eventkey.ErrNoKey, eventkey.ErrInvalidMessage,
	} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
