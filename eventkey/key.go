package eventkey

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/fault"
)

// Names of metadata fields. They are part of the format on the wire, except
// MetadataChildKey.
const (
	// MetadataKey is the idempotency key. Set it on a message to give the
	// message a key of its own; a publisher sets it in what it sends, so that
	// producer and consumer use the same one.
	MetadataKey = "idempotency_key"

	// MetadataProducer is for a producer ID of a message's own, where a publisher looks
	// for one there: publisher.Config.Producer = Metadata(MetadataProducer).
	MetadataProducer = "idempotency_producer"

	// MetadataAttempt counts deliberate republishing, see [NextAttempt].
	MetadataAttempt = "idempotency_attempt"

	// MetadataChildKey is the key of a message that a handler produced, for the case
	// that it has no other. It is never sent.
	MetadataChildKey = "idempotency_child_key"
)

// MaxKeyBytes is the length limit of a key, in bytes.
const MaxKeyBytes = 1024

// ErrNoKey means that a message has no idempotency key: a field that its key is
// made of is missing or empty, or no rule applies to it. The message has not
// been published. Errors that match it are mostly a [*NoKeyError].
var ErrNoKey = errors.New("no idempotency key")

// ErrInvalidMessage means that the message itself is at fault: its payload is not the JSON
// that a key or fingerprint needs, its key is too long, and the like. Another try can't
// help. Every error about a key or a fingerprint matches either it or [ErrNoKey];
// publisher.IsPermanent and middleware.IsPermanent know both.
var ErrInvalidMessage = errors.New("invalid message")

func invalid(format string, a ...any) error {
	return fault.As(ErrInvalidMessage, fmt.Errorf(format, a...))
}

// NoKeyError is an [ErrNoKey] that names what is missing, and on which message.
type NoKeyError struct {
	// Field is what was looked for, as a template writes it: "tenant" is the
	// metadata field tenant, "$.order_id" a field of the JSON payload.
	Field string
	// Topic and UUID are those of the message.
	Topic, UUID string
	// Reason replaces the usual "is missing or empty".
	Reason string

	inMetadata bool // a template has looked there, perhaps by mistake
}

// Error implements error.
func (e *NoKeyError) Error() string {
	reason := e.Reason
	if reason == "" {
		reason = "is missing or empty"
		if e.inMetadata {
			reason += " in the metadata (a field of the payload is written {$." + e.Field + "})"
		}
	}
	return fmt.Sprintf("%v: %s %s (message %q for topic %q)", ErrNoKey, e.Field, reason, e.UUID, e.Topic)
}

// Is makes a NoKeyError match [ErrNoKey].
func (e *NoKeyError) Is(target error) bool { return target == ErrNoKey }

func noKey(field, topic string, msg *message.Message) error {
	return &NoKeyError{Field: field, Topic: topic, UUID: msg.UUID}
}

// CheckKey reports whether key can serve as an idempotency key: nil if so. An empty one is
// [ErrNoKey]; one that is not valid UTF-8 or is longer than [MaxKeyBytes] is
// [ErrInvalidMessage].
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: the key is empty", ErrNoKey)
	case len(key) > MaxKeyBytes:
		return invalid("idempotency key is %d bytes long, at most %d are allowed: it begins with %q",
			len(key), MaxKeyBytes, key[:32])
	case !utf8.ValidString(key):
		return invalid("idempotency key %q is not valid UTF-8", key)
	}
	return nil
}
