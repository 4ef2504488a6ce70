package eventkey

import (
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Metadata of a dead letter of package subscriber. Package internal/wire defines the
// names; a test there pins that the two agree.
const (
	deadOrigin = "_dead_origin" // stream and entry ID, "orders 1700000000000-0"
	deadGroup  = "_dead_group"
	deadAt     = "_dead_at"
)

// originMarks say where a message was given up, and why.
var originMarks = [...]string{
	wmeta.PoisonedReason, wmeta.PoisonedTopic, wmeta.PoisonedHandler, wmeta.PoisonedSubscriber,
	deadOrigin, deadGroup, deadAt, "_dead_reason", "_dead_error", "_dead_count",
}

// Attempt tells the deliberate publishes of an event after its first one apart. A
// retry of a publish is not an attempt: it must find the first one. The parts are
// kept apart because each is written by somebody who does not know of the others; a
// sum would let one requeue hide behind one replay.
type Attempt struct {
	// Raised is the count of [NextAttempt].
	Raised uint64
	// Requeued is the count of Watermill's Requeuer.
	Requeued uint64
	// DeadLetter names the dead letter of package subscriber that the message was
	// copied from, by a digest of 43 bytes of its group, its origin and its time. It is
	// empty where there was none. A copy that fails again becomes another dead letter,
	// with another name.
	DeadLetter string
}

// AttemptOf reads the attempt that a message is. A counter that is missing or is
// no number counts as 0, as it does for Watermill's Requeuer.
func AttemptOf(msg *message.Message) Attempt {
	a := Attempt{Raised: counter(msg, MetadataAttempt), Requeued: counter(msg, wmeta.RequeuerRetries)}
	if origin := msg.Metadata.Get(deadOrigin); origin != "" {
		// One entry may be given up twice by one group, if that was made again.
		a.DeadLetter = digest(Join(msg.Metadata.Get(deadGroup), origin, msg.Metadata.Get(deadAt)))
	}
	return a
}

// after tells whether a is a later attempt than b, by one of its parts.
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

// deadStream is the stream whose dead letter the message is, or was.
func deadStream(msg *message.Message) string {
	origin := msg.Metadata.Get(deadOrigin)
	return origin[:max(strings.LastIndexByte(origin, ' '), 0)] // an entry ID has no space
}

func counter(msg *message.Message, name string) uint64 {
	value := msg.Metadata.Get(name)
	if value == "" { // nearly always; an error would cost an allocation
		return 0
	}
	n, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// NextAttempt marks a message as a deliberate publish of an event that was
// published before, such as a replay from an archive: it keeps its key and is not
// taken for a duplicate of its earlier attempt. A handler that already succeeded with
// the key still skips it.
//
// A dead letter of package subscriber needs no such mark to be published to its topic
// again: it has its own, see [Attempt]. Each dead letter can be copied back once; one
// copied back a second time is a duplicate of the first copy, unless it is marked.
//
// Call it once for each deliberate publish, before the first try, so that retries
// of that publish are still recognised.
func NextAttempt(msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	msg.Metadata.Set(MetadataAttempt, strconv.FormatUint(counter(msg, MetadataAttempt)+1, 10))
}

// Origin is the place where Watermill's PoisonQueue took a message out of its
// topic. Two handlers that both give up on one event send it to the same poison
// topic; the origin tells the two messages apart.
type Origin struct {
	// Poisoned tells whether the message went through a PoisonQueue at all.
	Poisoned bool
	// Topic and Handler that failed.
	Topic, Handler string
}

// OriginOf reads the poison origin of a message.
func OriginOf(msg *message.Message) Origin {
	topic, hasTopic := msg.Metadata[wmeta.PoisonedTopic]
	handler, hasHandler := msg.Metadata[wmeta.PoisonedHandler]
	_, hasReason := msg.Metadata[wmeta.PoisonedReason]
	return Origin{Poisoned: hasTopic || hasHandler || hasReason, Topic: topic, Handler: handler}
}

// maxPlainID is the length, in bytes, up to which an idempotent ID is readable.
// Redis keeps each ID of the window in memory.
const maxPlainID = 128

var originEscapes = setOf("%:@")

// IdempotentID is what a server compares in order to recognise a repeated
// publish: an injective encoding of key, attempt and poison origin.
//
// The first publish of a key has the key itself for its ID, so that it can be
// found by reading. Everything else begins with a tilde: "~1.0:pay:1001" is the
// first deliberate republish of pay:1001, "~0.2@orders@charge:pay:1001" its second
// requeue after the handler charge gave up on it in topic orders, "~0.0!" and a digest
// begin that of a dead letter that was copied back, and an encoding above 128 bytes is
// replaced by "~sha256:" and its digest.
func IdempotentID(key string, a Attempt, o Origin) string {
	id := key
	// A key that begins with a tilde could be taken for one of the other forms.
	if a != (Attempt{}) || o.Poisoned || key != "" && key[0] == '~' {
		b := make([]byte, 0, maxPlainID)
		b = append(b, '~')
		b = strconv.AppendUint(b, a.Raised, 10)
		b = append(b, '.')
		b = strconv.AppendUint(b, a.Requeued, 10)
		if a.DeadLetter != "" {
			b = appendEscaped(append(b, '!'), a.DeadLetter, &originEscapes)
		}
		if o.Poisoned {
			b = appendEscaped(append(b, '@'), o.Topic, &originEscapes)
			b = appendEscaped(append(b, '@'), o.Handler, &originEscapes)
		}
		id = string(append(append(b, ':'), key...))
	}
	if len(id) > maxPlainID {
		return "~sha256:" + digest(id)
	}
	return id
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}
