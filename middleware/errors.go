package middleware

import (
	"context"
	"errors"
	"slices"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/permanent"
)

// Errors of handling, beside those of package dedupe. Where our own subscriber is in
// use, ErrOutputsTooLarge and dedupe.ErrConflict don't travel as errors: the message
// goes to the dead letters.
var (
	// ErrNested means that the message entered this handler while it is inside of it already:
	// the handler is wrapped twice, or Middleware was added beside Handler.
	ErrNested = errors.New("message is inside this handler already")
	// ErrNoHandler means that nobody knows the name of the handler. Outside of a Router, use
	// [Once.Run], which is given one.
	ErrNoHandler = errors.New("handler has no name")
	// ErrOutputsTooLarge means that the handler returned more than Config.MaxOutputBytes, or than
	// the store takes. What it did besides has been done; running it again would do it
	// again.
	ErrOutputsTooLarge = errors.New("returned messages are too large to be recorded")
	// ErrUnexpectedOutputs means that messages are recorded for a handler that returns none any
	// more, and so there is nowhere to publish them.
	ErrUnexpectedOutputs = errors.New("messages are recorded for a handler that returns none")
	// ErrClosed means that the message came after [Once.Close].
	ErrClosed = errors.New("middleware is closed")
	// ErrNoNamespace means that Config.Namespace is empty, and no consumer group is known that
	// could stand for it: the subscriber is another library's, or fans out.
	ErrNoNamespace = errors.New("no namespace")
	// ErrSharedFanOut means a subscriber that fans out, with a store that processes share.
	ErrSharedFanOut = errors.New("instances that each get every event share a store")
	// ErrInProgress means that another process, or another delivery in this one, is handling the
	// event. Event.Err of Hooks.OnDelayed matches it, beside dedupe.ErrRetryLater.
	ErrInProgress = errors.New("event is being handled by another")
	// ErrStoreUnavailable means that the store gave no claim, or that nobody knows whether it has
	// made the record. Event.Err of Hooks.OnDelayed matches it, beside dedupe.ErrRetryLater.
	ErrStoreUnavailable = errors.New("store is unavailable")
	// errPanicked means that the handler panicked; the panic goes on.
	errPanicked = errors.New("the handler panicked")
	// errPoisoned means that a PoisonQueue inside of ours has moved the message away.
	errPoisoned = errors.New("message was poisoned inside the handler")
	// errGivenBack means that the handler gave the message back, and returned no error.
	errGivenBack = errors.New("the handler gave the message back")
)

// permanentError marks an error that another try can't mend.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }

// Permanent marks it.
func (permanentError) Permanent() bool { return true }

// endedError is a failure that stays as long as the context of the message does.
type endedError struct{ error }

func (e endedError) Unwrap() error { return e.error }

// IsPermanent reports that handling the same message again can't succeed. An error of one's
// own counts when it, or an error that it wraps or joins, has a method Permanent() bool that
// says so, as the errors of our publisher have: a conflict is one. Retry and PoisonQueue ask
// [ShouldRetry] and [ShouldPoison].
func IsPermanent(err error) bool {
	return permanent.Is(err,
		ErrNested, ErrNoHandler, ErrOutputsTooLarge, ErrUnexpectedOutputs,
		dedupe.ErrConflict, dedupe.ErrInvalid, eventkey.ErrNoKey, eventkey.ErrInvalidMessage,
	)
}

// ShouldRetry reports that another try on the spot may help. It is for Watermill's Retry:
//
//	ShouldRetry: func(p wmiddleware.RetryParams) bool { return middleware.ShouldRetry(p.Err) }
//
// It is false for what is permanent (see [IsPermanent]), what can't be handled now
// (dedupe.ErrRetryLater), what an operator has to mend (dedupe.ErrRefused,
// dedupe.ErrCorrupt), and where the context has ended.
func ShouldRetry(err error) bool {
	var ended endedError
	return err != nil && !IsPermanent(err) && !errors.As(err, &ended) &&
		!isAny(err, dedupe.ErrRetryLater, dedupe.ErrRefused, dedupe.ErrCorrupt, context.Canceled)
}

// ShouldPoison reports that something is wrong with the message, so that it may be moved
// away: the filter of Watermill's PoisonQueueWithFilter.
//
// It is false where the message is fine and has to come again: it can't be handled now
// (dedupe.ErrRetryLater; CQRS hooks and [Once.Run] return it), it was interrupted
// (context.Canceled), an operator has to mend the store (dedupe.ErrRefused,
// dedupe.ErrCorrupt), or the service is not set up right (ErrNested, ErrNoHandler,
// ErrUnexpectedOutputs).
func ShouldPoison(err error) bool {
	return err != nil && !isAny(err, dedupe.ErrRetryLater, dedupe.ErrRefused, dedupe.ErrCorrupt, context.Canceled,
		ErrNested, ErrNoHandler, ErrUnexpectedOutputs)
}

func isAny(err error, targets ...error) bool {
	return slices.ContainsFunc(targets, func(target error) bool { return errors.Is(err, target) })
}
