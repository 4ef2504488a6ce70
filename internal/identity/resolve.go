// Package identity finds what a message is published or handled under: whose key it has,
// which attempt it is, and the idempotent ID made of both. Package eventkey has what users
// make keys of; here are the rules by which publisher and middleware apply it.
package identity

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/childkey"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Resolved is what [Resolve] finds.
type Resolved struct {
	// Key is the idempotency key, a valid one (see [eventkey.CheckKey]).
	Key string
	// IdempotentID is Key with attempt and poison origin, see [IdempotentID].
	IdempotentID string
	// Child reports that Key comes from the message being handled. A handler that
	// runs again may build such a message differently, so a difference between two
	// of them is no conflict.
	Child bool
	// Attempt and Origin are the ones in IdempotentID: those of the message, unless
	// they equal those of the message being handled and so count as inherited.
	Attempt Attempt
	Origin  Origin
	// Claim is to be ended by who publishes the message; nil unless Key is the child
	// key of rule 4.
	Claim *childkey.Claim
}

// Resolve finds the key that a message is to be published under. The first of
// these rules that applies decides:
//
//  1. The message's own key, in [eventkey.MetadataKey]. A key equal to that of the message
//     being handled was inherited by Copy() and is not the message's own, unless
//     the message is the handled one going on: it has a later attempt, was poisoned
//     where the handled one was not, or is a dead letter that a handler of dead
//     letters publishes to the topic where it comes from.
//  2. The topic's source, or the publisher's where the topic has none. Either may
//     be nil.
//  3. The child key in [eventkey.MetadataChildKey].
//  4. A child key made of what is being handled (see [eventkey.HandledFrom]) according to
//     the message's context, else ctx. Only one message of each topic and event
//     name can have it; the same message published again has it again, and so has
//     another one where the first was not published (see [childkey.Claim]).
//  5. The UUID of a message that Watermill's PoisonQueue moves away, where the rules
//     before have none that can be used: a message may be poisoned for that very
//     reason, and would come back for ever if it could not be moved.
//
// A message that no rule has a key for is an error that matches [eventkey.ErrNoKey]; every other
// error is [eventkey.ErrInvalidMessage], see [KeyOf].
func Resolve(ctx context.Context, topic string, msg *message.Message, topicSource, publisherSource eventkey.Source) (Resolved, error) {
	if msg == nil {
		return Resolved{}, invalid("the message for topic %q is nil", topic)
	}
	run := msg.Context()
	handled, inHandler := eventkey.HandledFrom(run)
	if !inHandler {
		run = ctx
		handled, inHandler = eventkey.HandledFrom(run)
	}
	isNew := inHandler && !goesOn(handled, topic, msg.Metadata)

	origin := OriginOf(msg.Metadata)
	r := Resolved{Attempt: AttemptOf(msg.Metadata), Origin: origin}
	if isNew {
		// What Copy() took along says nothing about the new message. Left in, a
		// handler run again on the next attempt would publish its messages twice.
		r.Origin, r.Attempt = Origin{}, r.Attempt.without(AttemptOf(handled.Metadata))
	}

	var err error
	if own, isSet := msg.Metadata[eventkey.MetadataKey]; isSet && (!isNew || own != handled.Key) {
		r.Key, err = own, checkKeyOf(own, eventkey.MetadataKey, topic, msg)
	} else {
		err = r.derive(run, topic, msg, cmp.Or(topicSource, publisherSource))
	}
	if err != nil && origin.Poisoned && msg.UUID != "" {
		r.Key, r.Child = "poisoned:"+msg.UUID, false
		err = eventkey.CheckKey(r.Key)
	}
	if err != nil {
		return Resolved{}, err
	}
	r.IdempotentID = IdempotentID(r.Key, r.Attempt, r.Origin)
	return r, nil
}

// derive applies the rules for a message that has no key of its own. run is the context
// that may have what is being handled.
func (r *Resolved) derive(run context.Context, topic string, msg *message.Message, source eventkey.Source) error {
	var missing error
	if source == nil {
		missing = &eventkey.NoKeyError{Field: eventkey.MetadataKey, Topic: topic, UUID: msg.UUID,
			Reason: "is not set on the message, and neither the topic nor the publisher has a key source"}
	} else {
		key, err := KeyOf(source, topic, msg)
		if err == nil {
			r.Key = key
			return nil
		}
		if !errors.Is(err, eventkey.ErrNoKey) {
			return err
		}
		missing = err
	}

	if key := msg.Metadata.Get(eventkey.MetadataChildKey); key != "" {
		r.Key, r.Child = key, true
		return checkKeyOf(key, eventkey.MetadataChildKey, topic, msg)
	}
	handled, _ := eventkey.HandledFrom(run)
	if handled.Key == "" {
		return missing
	}
	name := msg.Metadata.Get(wmeta.CQRSName)
	if r.Claim = childkey.From(run).Take(topic, name, msg); r.Claim == nil {
		second := &eventkey.NoKeyError{Field: eventkey.MetadataKey, Topic: topic, UUID: msg.UUID, Reason: fmt.Sprintf(
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
