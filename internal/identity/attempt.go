package identity

import (
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Attempt distinguishes the deliberate publishes of an event after its first one. A
// retry of a publish is not an attempt: it must find the first one. The parts are
// kept apart because each is written by somebody who does not know of the others; a
// sum would let one requeue hide behind one replay.
type Attempt struct {
	// Raised is the count of [eventkey.NextAttempt].
	Raised uint64
	// Requeued is the count of Watermill's Requeuer.
	Requeued uint64
	// DeadLetter names the dead letter of package subscriber that the message was
	// copied from, by a digest of 43 bytes of its group, its origin and its time. It is
	// empty where there was none. A copy that fails again becomes another dead letter,
	// with another name.
	DeadLetter string
}

// AttemptOf reads from its metadata the attempt that a message is.
func AttemptOf(md message.Metadata) Attempt {
	a := Attempt{Raised: wmeta.Counter(md, eventkey.MetadataAttempt), Requeued: wmeta.Counter(md, wmeta.RequeuerRetries)}
	if origin := md[wmeta.DeadOrigin]; origin != "" {
		// One entry may be given up twice by one group, if that was made again.
		a.DeadLetter = digest(eventkey.Join(md[wmeta.DeadGroup], origin, md[wmeta.DeadAt]))
	}
	return a
}

// after reports whether a is a later attempt than b, by one of its parts.
func (a Attempt) after(b Attempt) bool {
	return a.Raised > b.Raised || a.Requeued > b.Requeued || a.DeadLetter != "" && a.DeadLetter != b.DeadLetter
}

// without is what a has that was not taken along from b.
func (a Attempt) without(b Attempt) Attempt {
	if a.DeadLetter == b.DeadLetter {
		a.DeadLetter, b.DeadLetter = "", ""
	}
	if a.Raised == b.Raised && a.Requeued == b.Requeued {
		a.Raised, a.Requeued = 0, 0
	}
	return a
}

// DeadStream is the stream whose dead letter a message is, or was.
func DeadStream(md message.Metadata) string {
	origin := md[wmeta.DeadOrigin]
	return origin[:max(strings.LastIndexByte(origin, ' '), 0)] // an entry ID has no space
}

// Origin is the place where Watermill's PoisonQueue took a message out of its
// topic. Two handlers that both give up on one event send it to the same poison
// topic; the origin distinguishes the two messages.
type Origin struct {
	// Poisoned reports whether the message went through a PoisonQueue at all.
	Poisoned bool
	// Topic and Handler that failed.
	Topic, Handler string
}

// OriginOf reads the poison origin of a message from its metadata.
func OriginOf(md message.Metadata) Origin {
	topic, hasTopic := md[wmeta.PoisonedTopic]
	handler, hasHandler := md[wmeta.PoisonedHandler]
	_, hasReason := md[wmeta.PoisonedReason]
	return Origin{Poisoned: hasTopic || hasHandler || hasReason, Topic: topic, Handler: handler}
}
