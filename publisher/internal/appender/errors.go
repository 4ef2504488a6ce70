package appender

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Errors that package publisher exports; there they are explained.
var (
	ErrLatchUnconfirmed = errors.New("latch was not written by this library and proves nothing")
	ErrNotReplicated    = errors.New("message is not confirmed by enough replicas")
	ErrModeUnsupported  = errors.New("mode can't be used with this server and user")
	ErrLayout           = layout.ErrInvalid
	ErrWrongType        = errors.New("topic is a key of another type than a stream")
)

var (
	errContended = errors.New("others kept changing the topic's layout record")
	errSlotMoves = errors.New("the topic's slot is on its way to another node of the cluster, and the topic can't be set up before it is there")

	// errStale means that the stream is not there, or the layout is not the known one.
	// Nothing was written; set up and send again.
	errStale = errors.New("stream or layout is not as it was set up")
)

// finalError marks what an operator can mend: not worth another try of ours, and no fault
// of the message.
type finalError struct{ error }

func (e finalError) Unwrap() error { return e.error }

// Permanent is false, also where what it wraps is the fault of a message.
func (finalError) Permanent() bool { return false }

// Final marks an error as one that an operator can mend and another try can't.
func Final(err error) error { return finalError{err} }

// IsFinal reports whether an error was marked by [Final].
func IsFinal(err error) bool {
	var marked finalError
	return errors.As(err, &marked)
}

// Classify says what an error of this package means for the items.
func Classify(err error) batch.Class {
	is := func(target error) bool { return errors.Is(err, target) }
	switch {
	case is(errStale):
		return batch.Stale
	case is(errContended), is(errSlotMoves):
		return batch.Refused
	case slices.ContainsFunc([]error{ErrModeUnsupported, ErrLayout, ErrWrongType, ErrLatchUnconfirmed}, is), IsFinal(err):
		return batch.Final
	case is(context.DeadlineExceeded), is(context.Canceled):
		return batch.Refused // while it waited for a connection: go-redis ends commands by time-outs of the network
	}
	switch server.Classify(err) {
	case server.Refused:
		return batch.Refused
	case server.Ambiguous:
		return batch.Ambiguous
	default:
		return batch.Final
	}
}

func isWrongType(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }
