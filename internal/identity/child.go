package identity

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// ByItself is the index, for [Child], of a message that a handler publishes by
// itself instead of returning it.
const ByItself = -1

// maxChildKey is the length, in bytes, up to which a child key is readable. It
// leaves the idempotent ID readable as well.
const maxChildKey = maxPlainID

// Child is the key of a message that a handler produces for topic while it
// handles parent: the same one when the handler runs again, and another one for
// every other parent, handler, topic, event name and index. The event name is
// that of Watermill's CQRS component, or empty.
//
// index is the position of a returned message among all that were returned. A
// message that the handler publishes by itself has no stable position, since its
// order could differ in the next run; it has index [ByItself].
//
// Keys longer than 128 bytes are replaced by a digest.
func Child(parent eventkey.Handled, topic, eventName string, index int) string {
	id := parent.ID
	if id == "" {
		id = parent.Key
	}
	key := "child:" + eventkey.Join(parent.Namespace, parent.Topic, parent.Handler, id, topic, eventName, strconv.Itoa(index))
	if len(key) > maxChildKey {
		return "child:sha256:" + digest(key)
	}
	return key
}

// goesOn reports whether a message for topic is the handled one going on, rather than a
// new one that may have been made of its copy.
func goesOn(h eventkey.Handled, topic string, md message.Metadata) bool {
	if origin := OriginOf(md); origin.Poisoned && origin != OriginOf(h.Metadata) || AttemptOf(md).after(AttemptOf(h.Metadata)) {
		return true
	}
	// Where each attempt is an event of its own, dead letters are handled, and what is
	// published to the stream that one comes from goes back. On other topics the marks
	// are those of an earlier attempt.
	return h.ID != "" && h.ID != h.Key && topic != h.Topic && topic == DeadStream(md)
}

// originMarks are where a message was given up, and why.
var originMarks = [...]string{
	wmeta.PoisonedReason, wmeta.PoisonedTopic, wmeta.PoisonedHandler, wmeta.PoisonedSubscriber,
	wmeta.DeadOrigin, wmeta.DeadGroup, wmeta.DeadAt, wmeta.DeadReason, wmeta.DeadError, wmeta.DeadCount,
}

// StripInherited removes from the metadata of a message that is to be published to topic
// what Copy() took along from the handled one: its key, and the marks of its attempt, its
// origin and the dead letter that it was. Who publishes outside of the handled context
// needs it, since [Resolve] can't distinguish them there. It reports whether the message is
// the handled one going on, by the rules of Resolve; such a message keeps everything.
func StripInherited(h eventkey.Handled, topic string, md message.Metadata) (isGoingOn bool) {
	if goesOn(h, topic, md) {
		return true
	}
	if md[eventkey.MetadataKey] == h.Key {
		delete(md, eventkey.MetadataKey)
	}
	if own := AttemptOf(md).without(AttemptOf(h.Metadata)); own.Raised == 0 && own.Requeued == 0 {
		delete(md, eventkey.MetadataAttempt)
		delete(md, wmeta.RequeuerRetries)
	}
	for _, name := range originMarks {
		delete(md, name)
	}
	return false
}
