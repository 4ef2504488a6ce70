package dedupe

import (
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// MaxKeyBytes is the limit, in bytes, for all parts of a [Key] together. It leaves
// room for an event key of eventkey.MaxKeyBytes and for names of usual length, and is
// what a SQL primary key can hold.
const MaxKeyBytes = 2048

// Key names one event for one handler.
type Key struct {
	// Namespace is the service or consumer group. It is required: without it two
	// services with equal handler names would each skip what the other has handled.
	Namespace string
	// Topic and Handler may be empty, where there is but one.
	Topic, Handler string
	// Event is the idempotency key of the event, and required.
	Event string
}

// Validate reports what a store must refuse. The error matches [ErrInvalid].
func (k Key) Validate() error {
	switch {
	case k.Namespace == "":
		return fmt.Errorf("%w: the namespace is empty; it names the service or consumer group, since equal handler names in two services are two handlers", ErrInvalid)
	case k.Event == "":
		return fmt.Errorf("%w: the event's key is empty", ErrInvalid)
	}
	size := 0
	for _, part := range []string{k.Namespace, k.Topic, k.Handler, k.Event} {
		if !utf8.ValidString(part) {
			return fmt.Errorf("%w: key %s is not UTF-8", ErrInvalid, k)
		}
		size += len(part)
	}
	if size > MaxKeyBytes {
		return fmt.Errorf("%w: the key has %d bytes, more than %d", ErrInvalid, size, MaxKeyBytes)
	}
	return nil
}

// String joins the parts, escaped, so that different keys give different strings.
func (k Key) String() string { return eventkey.Join(k.Namespace, k.Topic, k.Handler, k.Event) }

// ParseKey is the inverse of [Key.String].
func ParseKey(s string) (Key, error) {
	parts, err := split(s)
	if err != nil {
		return Key{}, fmt.Errorf("key %q: %w", s, err)
	}
	if len(parts) != 4 {
		return Key{}, fmt.Errorf("key %q has %d parts, not 4", s, len(parts))
	}
	return Key{Namespace: parts[0], Topic: parts[1], Handler: parts[2], Event: parts[3]}, nil
}

// split undoes eventkey.Join.
func split(s string) ([]string, error) {
	var parts []string
	var part []byte
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case ':':
			parts, part = append(parts, string(part)), nil
		case '%':
			if i+2 >= len(s) {
				return nil, errors.New("an escape is cut off")
			}
			hi, okHi := unhex(s[i+1])
			lo, okLo := unhex(s[i+2])
			if !okHi || !okLo {
				return nil, fmt.Errorf("%q is no escape", s[i:i+3])
			}
			part = append(part, hi<<4|lo)
			i += 2
		default:
			part = append(part, s[i])
		}
	}
	return append(parts, string(part)), nil
}

func unhex(c byte) (byte, bool) {
	switch {
	case '0' <= c && c <= '9':
		return c - '0', true
	case 'A' <= c && c <= 'F':
		return c - 'A' + 10, true
	case 'a' <= c && c <= 'f':
		return c - 'a' + 10, true
	}
	return 0, false
}
