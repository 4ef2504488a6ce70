package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Forget says which records of the handling middleware a replay removes first.
//
// Only a record that is older than its dead letter is removed. A newer one says that the event
// was handled after it had been given up: perhaps by this very replay, if that is repeated
// after its program died. Such a letter is published and the record stays, see [Outcome].HandledAt.
type Forget struct {
	// Store has the records.
	Store dedupe.Admin
	// Namespace is middleware.Config.Namespace. Empty means the letter's consumer group, as it
	// does there.
	Namespace string
	// Handlers are the names of handlers as the middleware knows them: those in Watermill's
	// Router, of CQRS' processors too. At least one.
	Handlers []string
	// Key is middleware.Config.Key, for messages that bring no key of their own.
	Key eventkey.Source
	// PoisonTopics is middleware.Config.PoisonTopics.
	PoisonTopics []string
	// Newer also removes records that are newer than their letters. An interrupted replay of
	// this kind must not be repeated: it may run handlers again that it has run.
	Newer bool
}

func (f *Forget) validate(faults *invalid.Faults) {
	faults.AddIf(f.Store == nil, "Forget.Store is nil")
	faults.AddIf(len(f.Handlers) == 0, "Forget.Handlers is empty: name the handlers, as in the Router")
	if f.Key != nil {
		if err := eventkey.Validate(f.Key); err != nil {
			faults.Add("Forget.Key: %w", err)
		}
	}
}

// keys are those of the records that would make handlers skip msg.
func (f *Forget) keys(topic string, letter Letter, msg *message.Message) ([]dedupe.Key, error) {
	event := letter.Key
	if event == "" {
		if f.Key == nil {
			return nil, fmt.Errorf("forget: %w", &eventkey.NoKeyError{Field: eventkey.MetadataKey, Topic: topic, UUID: letter.MessageUUID,
				Reason: "is not set on the dead letter, and Forget.Key is nil"})
		}
		var err error
		if event, err = identity.KeyOf(f.Key, topic, msg); err != nil {
			return nil, fmt.Errorf("forget: %w", err)
		}
	}
	namespace := f.Namespace
	if namespace == "" {
		namespace = letter.Group
	}
	keys := make([]dedupe.Key, len(f.Handlers))
	for i, handler := range f.Handlers {
		keys[i] = dedupe.Key{Namespace: namespace, Topic: topic, Handler: handler,
			Event: identity.RecordKey(topic, event, msg.Metadata, f.PoisonTopics)}
		if err := keys[i].Validate(); err != nil {
			return nil, fmt.Errorf("forget: %w", err)
		}
	}
	return keys, nil
}

// run removes the records of a letter. handledAt is the time of the newest that stays, since
// it is newer than the letter.
func (f *Forget) run(ctx context.Context, topic string, letter Letter, msg *message.Message, dry bool) (forgotten []dedupe.Key, handledAt time.Time, err error) {
	keys, err := f.keys(topic, letter, msg)
	if err != nil {
		return nil, handledAt, err
	}
	id, _ := streamid.Parse(letter.ID)
	died := time.UnixMilli(int64(id.MS)) //nolint:gosec // milliseconds of a time
	for _, k := range keys {
		switch record, err := f.Store.Lookup(ctx, k); {
		case errors.Is(err, dedupe.ErrNotFound):
			continue
		case err != nil:
			return forgotten, handledAt, fmt.Errorf("look up the record %s: %w", k, err)
		case record.State != dedupe.StateDone:
			continue // somebody is handling it now; a claim can't be forgotten
		case record.CommittedAt.After(died) && !f.Newer:
			if record.CommittedAt.After(handledAt) {
				handledAt = record.CommittedAt
			}
			continue
		}
		if !dry {
			if err := f.Store.Forget(ctx, k); err != nil {
				return forgotten, handledAt, fmt.Errorf("forget the record %s: %w", k, err)
			}
		}
		forgotten = append(forgotten, k)
	}
	return forgotten, handledAt, nil
}
