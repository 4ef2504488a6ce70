package middleware

import (
	"errors"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

// keyOf finds the key of a consumed message: the one that it brings, else what the
// source finds, else the child key that a handler's message has got: our publisher has
// made it the message's own, another one passes it on as it is.
func (o *Once) keyOf(topic string, msg *message.Message) (key string, err error) {
	if own, set := msg.Metadata[eventkey.MetadataKey]; set && own != "" {
		return own, keyFault(eventkey.CheckKey(own), topic, msg)
	}
	key, err = o.sourceKey(topic, msg)
	if child := msg.Metadata.Get(eventkey.MetadataChildKey); child != "" && errors.Is(err, eventkey.ErrNoKey) {
		key, err = child, nil
	}
	if err != nil {
		return "", err
	}
	return key, keyFault(eventkey.CheckKey(key), topic, msg)
}

// sourceKey asks Config.Key.
func (o *Once) sourceKey(topic string, msg *message.Message) (string, error) {
	if o.cfg.Key == nil {
		return "", &eventkey.NoKeyError{Field: eventkey.MetadataKey, Topic: topic, UUID: msg.UUID,
			Reason: "is not set on the message, and Config.Key is nil"}
	}
	return identity.KeyOf(o.cfg.Key, topic, msg)
}

func keyFault(err error, topic string, msg *message.Message) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("key of message %s in topic %q: %w", msg.UUID, topic, err)
}

// recordKey is the key that a message is recorded under: its event's. On a topic of
// dead letters, and on one of Config.PoisonTopics, the message is on its way, to the
// Requeuer for one, and whoever sends it on must see each such move of the event: there it
// is the idempotent ID, with attempt and origin, and for a dead letter with the group and
// the entry that it was. The marks alone don't say so: they stay on the message when it is
// back on its own topic, and on what is copied from it.
func (o *Once) recordKey(topic, key string, msg *message.Message) string {
	dead := msg.Metadata.Get(wire.FieldDeadOrigin)
	stream := identity.DeadStream(msg.Metadata)
	switch {
	case stream != "" && topic == rediskey.DeadLetter(stream):
		key = eventkey.Join(key, msg.Metadata.Get(wire.FieldDeadGroup), dead)
	case !slices.Contains(o.cfg.PoisonTopics, topic):
		return key
	}
	return identity.IdempotentID(key, identity.AttemptOf(msg.Metadata), identity.OriginOf(msg.Metadata))
}

// suspectPoisonTopic says, once, that a message with the marks of a PoisonQueue was
// skipped where that may be a poisoning nobody hears of.
func (o *Once) suspectPoisonTopic(r *run) {
	if at := identity.OriginOf(r.msg.Metadata).Topic; at == "" || at == r.key.Topic || r.key.Event != r.eventKey {
		return
	}
	if o.log.first("poison topic") {
		o.logger.Error("A poisoned message is skipped and acknowledged, since its event was handled here before", errors.New(
			"if this is a poison topic, name it in Config.PoisonTopics, or each further poisoning of an event is lost; logged once"), r.fields())
	}
}
