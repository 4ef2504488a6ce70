package middleware

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// keyOf finds the key of a consumed message: the one that it brings, else what the
// source finds.
func (o *Once) keyOf(topic string, msg *message.Message) (key string, err error) {
	if own, set := msg.Metadata[eventkey.MetadataKey]; set && own != "" {
		return own, keyFault(eventkey.CheckKey(own), topic, msg)
	}
	if o.cfg.Key == nil {
		return "", &eventkey.NoKeyError{Field: eventkey.MetadataKey, Topic: topic, UUID: msg.UUID,
			Reason: "is not set on the message, and Config.Key is nil"}
	}
	defer func() {
		if p := recover(); p != nil {
			key, err = "", keyFault(fmt.Errorf("the key source panicked: %v", p), topic, msg)
		}
	}()
	if key, err = o.cfg.Key.Key(topic, msg); err != nil {
		return "", err
	}
	return key, keyFault(eventkey.CheckKey(key), topic, msg)
}

func keyFault(err error, topic string, msg *message.Message) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("key of message %s in topic %q: %w", msg.UUID, topic, err)
}
