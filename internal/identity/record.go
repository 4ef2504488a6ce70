package identity

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// RecordKey is the key that the handling of a message is recorded under: its event's. On a
// topic of dead letters, and on a poison topic, the message is on its way, to the
// Requeuer for one, and whoever sends it on must see each such move of the event: there it
// is the idempotent ID, with attempt and origin, and for a dead letter with the group and
// the entry that it was. The marks alone don't say so: they stay on the message when it is
// back on its own topic, and on what is copied from it.
func RecordKey(topic, key string, md message.Metadata, poisonTopics []string) string {
	stream := DeadStream(md)
	switch {
	case stream != "" && topic == rediskey.DeadLetter(stream):
		key = eventkey.Join(key, md[wmeta.DeadGroup], md[wmeta.DeadOrigin])
	case !slices.Contains(poisonTopics, topic):
		return key
	}
	return IdempotentID(key, AttemptOf(md), OriginOf(md))
}
