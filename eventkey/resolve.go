package eventkey

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Resolved is what [Resolve] finds.
type Resolved struct {
	// Key is the idempotency key, a valid one (see [CheckKey]).
	Key string
	// IdempotentID is Key with attempt and poison origin, see [IdempotentID].
	IdempotentID string
	// Child tells that Key comes from the message being handled. A handler that
	// runs again may build such a message differently, so a difference between two
	// of them is no conflict.
	Child bool
	// Attempt and Origin are the ones in IdempotentID: those of the message, unless
	// they equal those of the message being handled and so count as inherited.
	Attempt Attempt
	Origin  Origin
	// Claim is to be settled by who publishes the message; nil unless Key is the child
	// key of rule 4.
	Claim *Claim
}

// Resolve finds the key that a message is to be published under. The first of
// these rules that applies decides:
//
//  1. The message's own key, in [MetadataKey]. A key equal to that of the message
//     being handled was inherited by Copy() and is not the message's own, unless
//     the message is the handled one going on: it has a later attempt, was poisoned
//     where the handled one was not, or is a dead letter that a handler of dead
//     letters publishes to the topic where it comes from.
//  2. The topic's source, or the publisher's where the topic has none. Either may
//     be nil.
//  3. The child key in [MetadataChildKey].
//  4. A child key made of what is being handled (see [HandledFrom]) according to
//     the message's context, else ctx. Only one message of each topic and event
//     name can have it; the same message published again has it again, and so has
//     another one where the first was not published (see [Claim]).
//  5. The UUID of a message that Watermill's PoisonQueue moves away, where the rules
//     before have none that can be used: a message may be poisoned for that very
//     reason, and would come back for ever if it could not be moved.
//
// A message that no rule has a key for is an error that matches [ErrNoKey]; every other
// error is [ErrInvalidMessage], see [KeyOf].
func Resolve(ctx context.Context, topic string, msg *message.Message, topicSource, publisherSource Source) (Resolved, error) {
	if msg == nil {
		return Resolved{}, invalid("the message for topic %q is nil", topic)
	}
	attempt, origin := AttemptOf(msg), OriginOf(msg)
	handled, inHandler := HandledFrom(msg.Context())
	if !inHandler {
		handled, inHandler = HandledFrom(ctx)
	}
	goesOn := inHandler && handled.goesOn(topic, msg)

	r := Resolved{Attempt: attempt, Origin: origin}
	if inHandler && !goesOn {
		// What Copy() took along says nothing about the new message. Left in, a
		// handler run again on the next attempt would publish its messages twice.
		r.Origin, r.Attempt = Origin{}, attempt.without(handled.Attempt)
	}

	own, isSet := msg.Metadata[MetadataKey]
	if isSet && inHandler && own == handled.Key && !goesOn {
		isSet = false
	}
	var err error
	if isSet {
		r.Key, err = own, checkKeyOf(own, MetadataKey, topic, msg)
	} else {
		err = r.derive(topic, msg, topicSource, publisherSource, handled, inHandler)
	}
	if err != nil && origin.Poisoned && msg.UUID != "" {
		r.Key, r.Child = "poisoned:"+msg.UUID, false
		err = CheckKey(r.Key)
	}
	if err != nil {
		return Resolved{}, err
	}
	r.IdempotentID = IdempotentID(r.Key, r.Attempt, r.Origin)
	return r, nil
}

// derive applies the rules for a message that has no key of its own.
func (r *Resolved) derive(topic string, msg *message.Message, topicSource, publisherSource Source, handled Handled, inHandler bool) error {
	source := topicSource
	if source == nil {
		source = publisherSource
	}
	var missing error
	if source == nil {
		missing = &NoKeyError{Field: MetadataKey, Topic: topic, UUID: msg.UUID,
			Reason: "is not set on the message, and neither the topic nor the publisher has a key source"}
	} else {
		key, err := KeyOf(source, topic, msg)
		if err == nil {
			r.Key = key
			return nil
		}
		if !errors.Is(err, ErrNoKey) {
			return err
		}
		missing = err
	}

	if key := msg.Metadata.Get(MetadataChildKey); key != "" {
		r.Key, r.Child = key, true
		return checkKeyOf(key, MetadataChildKey, topic, msg)
	}
	if !inHandler || handled.Key == "" {
		return missing
	}
	name := msg.Metadata.Get(wmeta.CQRSName)
	if r.Claim = handled.published.claim(slotName{topic, name}, msg); r.Claim == nil {
		second := &NoKeyError{Field: MetadataKey, Topic: topic, UUID: msg.UUID, Reason: fmt.Sprintf(
			"is not set on the message, and the handler %q has already published a message named %q to this topic: "+
				"give each a key of its own, or return them from the handler", handled.Handler, name)}
		if source == nil {
			return second
		}
		return fmt.Errorf("%w; %w", missing, second)
	}
	r.Key, r.Child = Child(handled, topic, name, ByItself), true
	return nil
}
