package middleware

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
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
