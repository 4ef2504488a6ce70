package publisher

import (
	"errors"
	"fmt"
	"slices"

	"github.com/onceward/watermill-idempotent/eventkey"
	marks "github.com/onceward/watermill-idempotent/internal/permanent"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Errors on which callers branch. Every error of [Publisher.Publish] and
// [Publisher.Send] matches one of them, or wraps what the server said, or code of yours: a
// marshaller, say, or a hook that panicked.
var (
	// ErrNoKey means that the message has no key (the same value as eventkey.ErrNoKey).
	// Give it one; another try does not help.
	ErrNoKey = eventkey.ErrNoKey
	// ErrInvalidMessage means that the message can't be published as it is (the same value as
	// eventkey.ErrInvalidMessage): it is nil, its key or fingerprint can't be made, its
	// metadata has a reserved name, or its topic is empty or reserved. Another try does not
	// help.
	ErrInvalidMessage = eventkey.ErrInvalidMessage
	// ErrClosed means that the publisher was closed. Unless the error matches
	// ErrOutcomeUnknown, too, the message was not sent. Watermill's Router closes every
	// publisher that it is given: give it [Publisher.Shared] handles.
	ErrClosed = batch.ErrClosed
	// ErrNotSent means that the message is not in the stream by this call. Publish it
	// again.
	ErrNotSent = batch.ErrNotSent
	// ErrOutcomeUnknown means that the message was sent, and nobody can say yet whether it
	// is in the stream. Publish it again under the same key: that is safe.
	ErrOutcomeUnknown = batch.ErrOutcomeUnknown
	// ErrConflict means that the key belongs to an event with other content, which stays.
	// The error is a *[ConflictError]. Another try does not help.
	ErrConflict = errors.New("key is already used for another content")
	// ErrLatchUnconfirmed means that the latch of the key was not written by this library,
	// so it is no proof that the message is in the stream. Nothing was added.
	ErrLatchUnconfirmed = appender.ErrLatchUnconfirmed
	// ErrNotReplicated means that the message is in the stream of the primary, but fewer
	// than MinReplicas replicas confirmed it in time. Publish it again: a
	// duplicate waits for the replicas, too.
	ErrNotReplicated = appender.ErrNotReplicated
	// ErrTooLarge means that the encoded message is above Config.MaxPayload.
	ErrTooLarge = errors.New("message is too large")
	// ErrModeUnsupported means that the server can't do what the mode or the topic's layout
	// asks for, or the user may not. Nothing was sent.
	ErrModeUnsupported = appender.ErrModeUnsupported
	// ErrLayout means that the topic's layout record can't be obeyed by this publisher.
	ErrLayout = appender.ErrLayout
	// ErrWrongType means that the topic, or its layout record, is a key of another type.
	// Nothing was sent; an operator must find out whose it is.
	ErrWrongType = appender.ErrWrongType
	// ErrProducers means that a topic has seen more than 64 producer IDs from this
	// publisher, each of which costs the server memory and time.
	ErrProducers = errors.New("too many producer IDs on one topic")
	// ErrProducerID means that Config.Producer gave an ID that is empty, has a slash, is
	// over 256 bytes or not UTF-8.
	ErrProducerID = errors.New("invalid producer ID")
)

// becauseOf is the error of a message that was not sent because of that of another
// one: as permanent as that.
func becauseOf(cause error) error {
	err := batch.NotSent(batch.ErrOther)
	if IsPermanent(cause) {
		return permanent(err)
	}
	return err
}

// ConflictError says that a key was published with two contents. The first one
// stays in the stream. It matches [ErrConflict].
type ConflictError struct {
	Topic, Key string
	// EntryID is the entry of the original.
	EntryID string
	// MessageUUID is that of the message that was refused.
	MessageUUID string
	// Field is the path of the first JSON field that differs, in the order of the
	// names; empty when the payloads are not both JSON or the original is gone.
	Field string
}

func (e *ConflictError) Error() string {
	where := "content"
	if e.Field != "" {
		where = "field " + e.Field
	}
	return fmt.Sprintf("%v: key %q, %s differs from entry %s; another event needs another key, and a copy of a consumed "+
		"message has that one's in its metadata", ErrConflict, e.Key, where, e.EntryID)
}

// Unwrap makes the error match [ErrConflict].
func (e *ConflictError) Unwrap() error { return ErrConflict }

// Permanent is true: see [IsPermanent].
func (e *ConflictError) Permanent() bool { return true }

// PublishError is what Publish and Send return when not all messages of a call
// succeeded. Repeating the whole call is safe: what is in the stream stays there
// once. It matches (errors.Is, errors.As) the errors of all its messages.
type PublishError struct {
	Topic string
	// Receipts has the result of every message of the call, in its order.
	Receipts []Receipt
}

func (e *PublishError) Error() string {
	failed := 0
	var cause Receipt
	for _, r := range e.Receipts {
		if r.Err == nil {
			continue
		}
		failed++
		// What failed only because of another message explains nothing.
		if cause.Err == nil || errors.Is(cause.Err, batch.ErrOther) && !errors.Is(r.Err, batch.ErrOther) {
			cause = r
		}
	}
	text := fmt.Sprintf("publish to %q: message %s: %v", e.Topic, cause.MessageUUID, cause.Err)
	if len(e.Receipts) > 1 {
		text += fmt.Sprintf(" (%d of %d messages failed)", failed, len(e.Receipts))
	}
	return text
}

// Permanent is [IsPermanent] of the error, for package middleware and for filters of one's
// own, which know it by this method: each failed message is at fault.
func (e *PublishError) Permanent() bool {
	return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !IsPermanent(err) })
}

// Unwrap returns the errors of the messages that failed.
func (e *PublishError) Unwrap() []error {
	var errs []error
	for _, r := range e.Receipts {
		if r.Err != nil {
			errs = append(errs, r.Err)
		}
	}
	return errs
}

// permanentError marks a fault of the message.
type permanentError struct{ error }

func (e permanentError) Unwrap() error { return e.error }
func (permanentError) Permanent() bool { return true }

func permanent(err error) error { return permanentError{err} }

// IsPermanent reports that the fault is in the message, so that publishing it again
// can't succeed, whatever changes around it: an HTTP handler answers 4xx rather than
// 503, a Retry middleware gives up. It is false for what an operator can mend, such as
// a missing right, a mode that the server can't do or a publisher that is closed for a
// restart: the event must not be dropped for that. Of a call with several messages it
// is true when repeating the call can't succeed: each failed message is at fault, or was
// not sent because of one that is.
func IsPermanent(err error) bool {
	return marks.Is(err, ErrNoKey, ErrInvalidMessage, ErrConflict, ErrTooLarge, ErrProducerID)
}
