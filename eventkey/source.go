package eventkey

import (
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/fault"
)

// Source finds the idempotency key of a message for a topic.
//
// It must be deterministic, safe for concurrent use, and leave the message as it
// is. A message that has no key is an error that matches [ErrNoKey]; every other
// error says that the message is faulty, and counts as [ErrInvalidMessage].
//
// A source that can be misconfigured has a method Validate() error as well; it
// is called by the constructor that the source is given to (see [Validate]).
type Source interface {
	Key(topic string, msg *message.Message) (string, error)
}

// Func is a [Source] made of a function.
type Func func(topic string, msg *message.Message) (string, error)

// Key implements [Source].
func (f Func) Key(topic string, msg *message.Message) (string, error) { return f(topic, msg) }

// Validate reports a nil function.
func (f Func) Validate() error {
	if f == nil {
		return errors.New("eventkey.Func is nil")
	}
	return nil
}

type metadataSource string

// Metadata takes the key from the metadata field of that name, as it is.
func Metadata(name string) Source { return metadataSource(name) }

func (name metadataSource) Key(topic string, msg *message.Message) (string, error) {
	key := msg.Metadata.Get(string(name))
	if key == "" {
		return "", noKey(string(name), topic, msg)
	}
	return key, nil
}

func (name metadataSource) Validate() error {
	if name == "" {
		return errors.New("eventkey.Metadata needs the name of a metadata field")
	}
	return nil
}

type uuidSource struct{}

// MessageUUID takes the message UUID for the key. That is right only where the
// UUID survives a retry: in an outbox or a forwarder, which store the message
// before they publish it. Where a retry makes a new message, it makes a new UUID,
// and nothing is ever recognised as a duplicate.
func MessageUUID() Source { return uuidSource{} }

func (uuidSource) Key(topic string, msg *message.Message) (string, error) {
	if msg.UUID == "" {
		return "", noKey("message UUID", topic, msg)
	}
	return msg.UUID, nil
}

type firstSource []Source

// First takes the key of the first source that has one: it goes on to the next
// after [ErrNoKey] only. Any other error ends the search, since a faulty message
// must not slip through under a weaker key.
func First(sources ...Source) Source { return firstSource(append([]Source(nil), sources...)) }

func (s firstSource) Key(topic string, msg *message.Message) (string, error) {
	var missing []string
	for _, source := range s {
		key, err := source.Key(topic, msg)
		if err == nil && key != "" {
			return key, nil
		}
		if err != nil && !errors.Is(err, ErrNoKey) {
			return "", err
		}
		var e *NoKeyError
		if errors.As(err, &e) && e.Reason == "" {
			missing = append(missing, e.Field)
		} else {
			missing = append(missing, fmt.Sprintf("the key of source %T", source))
		}
	}
	return "", noKey(strings.Join(missing, ", then "), topic, msg)
}

func (s firstSource) Validate() error {
	if len(s) == 0 {
		return errors.New("eventkey.First needs at least one source")
	}
	var faults []error
	for i, source := range s {
		if err := Validate(source); err != nil {
			faults = append(faults, fmt.Errorf("eventkey.First, source %d: %w", i+1, err))
		}
	}
	return errors.Join(faults...)
}

// Validate returns all faults of a source: that it is nil, and what its method
// Validate() error reports if it has one. Constructors call it, and so does a source that
// is made of others.
func Validate(s Source) error {
	if s == nil {
		return errors.New("the eventkey.Source is nil")
	}
	return fault.Validate(s)
}
