package middleware

import (
	"bytes"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// poisonMarks are what a PoisonQueue writes.
var poisonMarks = [...]string{wmeta.PoisonedReason, wmeta.PoisonedTopic, wmeta.PoisonedHandler, wmeta.PoisonedSubscriber}

// original is a message as it came to its handler. The handler may do with it what it
// likes, such as change it and return it; around us it is the event again. Retry's next
// try, a PoisonQueue, and a redelivery, which with some subscribers is a copy of the
// message, would take a changed one for another event.
type original struct {
	uuid                  string
	payload, wasPayload   []byte           // what the message has, which others may hold as well, and a copy
	metadata, wasMetadata message.Metadata // the same
}

// keep notes what the message is. It also hides one of the marks of a PoisonQueue for the
// time of the run: a message that comes back from a poison queue has them all, and
// failing again for the same reason would change none of them.
func keep(msg *message.Message) original {
	o := original{
		uuid: msg.UUID, payload: msg.Payload, wasPayload: bytes.Clone(msg.Payload),
		metadata: msg.Metadata, wasMetadata: maps.Clone(msg.Metadata),
	}
	delete(msg.Metadata, wmeta.PoisonedSubscriber)
	return o
}

// restore makes the message what it was, and reports whether a PoisonQueue inside of ours
// has moved it away meanwhile. What is left are the marks of that PoisonQueue, for
// another Once around, and after a failure the delay that a DelayOnError inside has
// asked the subscriber for.
func (o *original) restore(msg *message.Message, failed bool) (poisoned bool) {
	var stay []string
	if poisoned = o.isPoisoned(msg.Metadata); poisoned {
		stay = append(stay, poisonMarks[:]...)
	}
	if failed {
		stay = append(stay, wmeta.DelayedUntil, wmeta.DelayedFor)
	}
	if isNacked(msg) {
		return poisoned // its subscriber may be reading it by now
	}
	for _, name := range stay {
		if value, ok := msg.Metadata[name]; ok {
			if o.wasMetadata == nil {
				o.wasMetadata = make(message.Metadata)
			}
			o.wasMetadata[name] = value
		}
	}
	// Only what differs is written: a goroutine that the handler has left behind may be
	// reading.
	if msg.UUID != o.uuid {
		msg.UUID = o.uuid
	}
	if !bytes.Equal(o.payload, o.wasPayload) {
		copy(o.payload, o.wasPayload)
	}
	if !bytes.Equal(msg.Payload, o.payload) {
		msg.Payload = o.payload
	}
	if o.metadata == nil {
		o.metadata = o.wasMetadata
	} else if !maps.Equal(o.metadata, o.wasMetadata) {
		clear(o.metadata)
		maps.Copy(o.metadata, o.wasMetadata)
	}
	if !maps.Equal(msg.Metadata, o.metadata) || (msg.Metadata == nil) != (o.metadata == nil) {
		msg.Metadata = o.metadata
	}
	return poisoned
}

// isPoisoned reports whether a PoisonQueue has written its marks. A handler may have taken
// old ones off.
func (o *original) isPoisoned(now message.Metadata) bool {
	for _, mark := range poisonMarks {
		was, had := o.wasMetadata[mark]
		if value, has := now[mark]; has && (!had || value != was || mark == wmeta.PoisonedSubscriber) {
			return true
		}
	}
	return false
}

// apart copies the messages that a handler has returned: one may be the very message that
// it was given, or share payload or metadata with it.
func apart(produced []*message.Message) []*message.Message {
	list := make([]*message.Message, len(produced))
	for i, p := range produced {
		if p == nil {
			continue
		}
		m := message.NewMessage(p.UUID, bytes.Clone(p.Payload))
		maps.Copy(m.Metadata, p.Metadata)
		m.SetContext(p.Context())
		list[i] = m
	}
	return list
}
