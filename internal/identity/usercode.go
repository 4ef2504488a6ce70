package identity

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/fault"
	"github.com/onceward/watermill-idempotent/internal/jsonpath"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

func invalid(format string, a ...any) error {
	return fault.As(eventkey.ErrInvalidMessage, fmt.Errorf(format, a...))
}

// KeyOf asks a source, which may be anybody's, for the key of a message. The key is a
// valid one (see [eventkey.CheckKey]); an error matches [eventkey.ErrNoKey] or
// [eventkey.ErrInvalidMessage]. A source that panics is the latter.
func KeyOf(s eventkey.Source, topic string, msg *message.Message) (key string, err error) {
	defer func() {
		if p := recover(); p != nil {
			key, err = "", invalid("the key source %T panicked on message %q for topic %q: %v", s, msg.UUID, topic, p)
		}
	}()
	key, err = s.Key(topic, msg)
	switch {
	case err == nil && eventkey.CheckKey(key) == nil:
		return key, nil
	case err == nil:
		return "", checkKeyOf(key, fmt.Sprintf("the key of source %T", s), topic, msg)
	case errors.Is(err, eventkey.ErrNoKey) && !isNamed(err):
		// A plain ErrNoKey doesn't name the message that it is about.
		return "", fmt.Errorf("message %q for topic %q: %w", msg.UUID, topic, err)
	case errors.Is(err, eventkey.ErrNoKey):
		return "", err
	}
	return "", fault.As(eventkey.ErrInvalidMessage, err)
}

// isNamed is a function of its own, so that a key that is found costs no allocation.
func isNamed(err error) bool {
	var named *eventkey.NoKeyError
	return errors.As(err, &named)
}

// checkKeyOf is CheckKey with the message in the error.
func checkKeyOf(key, field, topic string, msg *message.Message) error {
	if key == "" {
		return &eventkey.NoKeyError{Field: field, Topic: topic, UUID: msg.UUID}
	}
	if err := eventkey.CheckKey(key); err != nil {
		return fmt.Errorf("message %q for topic %q: %w", msg.UUID, topic, err)
	}
	return nil
}

// ValidateFingerprint returns the faults that a fingerprint reports of itself. Nil is valid
// and stands for [eventkey.Payload].
func ValidateFingerprint(f eventkey.Fingerprint) error { return fault.Validate(f) }

// Sum is the fingerprint f of a message, that of [eventkey.Payload] where f is nil. Every
// error is [eventkey.ErrInvalidMessage]; a fingerprint that panics is one. It does not see the
// context of a trace, which is another one in each try: one that takes all metadata would find
// a conflict in every retry.
func Sum(f eventkey.Fingerprint, msg *message.Message) (sum []byte, err error) {
	if f == nil {
		f = eventkey.Payload()
	}
	defer func() {
		if p := recover(); p != nil {
			sum, err = nil, invalid("the fingerprint %T panicked on message %q: %v", f, msg.UUID, p)
		}
	}()
	if sum, err = f.Sum(untraced(msg)); err != nil {
		return nil, invalid("fingerprint of message %q: %w", msg.UUID, err)
	}
	return sum, nil
}

// untraced is the message, or a copy of it without the context of a trace.
func untraced(msg *message.Message) *message.Message {
	if !wmeta.HasTrace(msg.Metadata) {
		return msg
	}
	bare := message.NewMessage(msg.UUID, msg.Payload)
	for name, value := range msg.Metadata {
		if !wmeta.IsTrace(name) {
			bare.Metadata[name] = value
		}
	}
	bare.SetContext(msg.Context())
	return bare
}

// FirstDifference names the first field, in sorted order, in which two payloads
// differ for the fingerprint: "$.amount", or "$" where they differ as a whole. It
// is empty where they don't differ, are not both JSON, or the fingerprint's method
// panics. [eventkey.Template] and [eventkey.JSONWithout] read what it returns, except for
// "$".
func FirstDifference(f eventkey.Fingerprint, a, b []byte) (field string) {
	defer func() {
		if recover() != nil {
			field = "" // that they differ is known without it
		}
	}()
	if d, ok := f.(interface{ FirstDifference(a, b []byte) string }); ok {
		return d.FirstDifference(a, b)
	}
	return jsonpath.FirstDifference(a, b, nil)
}
