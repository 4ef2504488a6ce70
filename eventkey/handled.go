package eventkey

import (
	"context"
	"crypto/sha256"
	"strconv"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Handled tells which event is being handled, and by whom.
type Handled struct {
	// Namespace is the service or consumer group, Handler the handler in it.
	// Equal handler names in two services are two handlers.
	Namespace, Handler string
	// Topic and Key are those of the message being handled.
	Topic, Key string
	// ID is what child keys are made of; empty stands for Key. It is another one where each
	// attempt counts as an event of its own, as for a handler on a poison topic.
	ID string
	// Attempt and Origin are those of the message being handled, as [AttemptOf]
	// and [OriginOf] read them. They tell a copy of it from the message going on.
	Attempt Attempt
	Origin  Origin

	published *published
}

type handledKey struct{}

// WithHandled puts onto a context what is being handled. Each run of a handler
// needs a call of its own: the context also remembers what this run published.
func WithHandled(ctx context.Context, h Handled) context.Context {
	h.published = &published{first: make(map[slotName]*taker)}
	return context.WithValue(ctx, handledKey{}, h)
}

// HandledFrom tells what is being handled, if anything is.
func HandledFrom(ctx context.Context) (Handled, bool) {
	if ctx == nil {
		return Handled{}, false
	}
	h, ok := ctx.Value(handledKey{}).(Handled)
	return h, ok
}

// goesOn tells whether a message for topic is the handled one going on, rather than a
// new one that may have been made of its copy.
func (h Handled) goesOn(topic string, msg *message.Message) bool {
	if origin := OriginOf(msg); origin.Poisoned && origin != h.Origin || AttemptOf(msg).after(h.Attempt) {
		return true
	}
	// Where each attempt is an event of its own, dead letters are handled, and what is
	// published to the stream that one comes from goes back. On other topics the marks
	// are those of an earlier attempt.
	return h.ID != "" && h.ID != h.Key && topic != h.Topic && topic == deadStream(msg)
}

// StripInherited takes off a message that is to be published to topic what Copy() took
// along from the handled one: its key, and the marks of its attempt, its origin and the
// dead letter that it was. Who publishes outside of the handled context needs it, since
// [Resolve] can't tell there. goesOn reports that the message is the handled one going
// on, by the rules of Resolve; such a message keeps everything.
func (h Handled) StripInherited(topic string, msg *message.Message) (goesOn bool) {
	if h.goesOn(topic, msg) {
		return true
	}
	if msg.Metadata.Get(MetadataKey) == h.Key {
		delete(msg.Metadata, MetadataKey)
	}
	if own := AttemptOf(msg).without(h.Attempt); own.Raised == 0 && own.Requeued == 0 {
		delete(msg.Metadata, MetadataAttempt)
		delete(msg.Metadata, wmeta.RequeuerRetries)
	}
	for _, name := range originMarks {
		delete(msg.Metadata, name)
	}
	return false
}

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
func Child(parent Handled, topic, eventName string, index int) string {
	id := parent.ID
	if id == "" {
		id = parent.Key
	}
	key := "child:" + Join(parent.Namespace, parent.Topic, parent.Handler, id, topic, eventName, strconv.Itoa(index))
	if len(key) > maxChildKey {
		return "child:sha256:" + digest(key)
	}
	return key
}

var uuidNamespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/onceward/watermill-idempotent"))

// StableUUID names a message after its key: a UUID of version 5, the same for the
// same key, in every process.
func StableUUID(key string) string { return uuid.NewSHA1(uuidNamespace, []byte(key)).String() }

// published remembers, for one run of a handler, which message took the child key
// of a topic and event name.
type published struct {
	mu    sync.Mutex
	first map[slotName]*taker
}

type slotName struct{ topic, eventName string }

// identity recognises a message that is published again. The payload always
// counts: neither one message object that is filled anew for each publish nor
// copies, which share the UUID of the message they were made from, may pass for a
// repetition, since the publisher would then drop all but the first.
type identity struct {
	msg     *message.Message
	uuid    string
	payload [sha256.Size]byte
}

func (a identity) same(b identity) bool {
	return a.payload == b.payload && (a.msg == b.msg || a.uuid != "" && a.uuid == b.uuid)
}

// taker is the message that took a child key.
type taker struct {
	identity
	// trying counts the publishes under way.
	trying int
	// may tells that the message may be in the stream, is that it is.
	may, is bool
}

// Claim is a message's hold on the child key that [Resolve] has given it by rule 4.
// Who publishes the message settles the claim, so that a handler can try again: a
// key whose message was not sent is free, and one whose message may have been goes
// to a message of the same payload, such as an EventBus makes of the same event.
type Claim struct {
	published *published
	name      slotName
	taker     *taker
}

// Outcome is what became of a message.
type Outcome uint8

// The outcomes.
const (
	NotSent   Outcome = iota // it is not in the stream
	MaybeSent                // nobody knows
	Sent                     // it is in the stream
)

// Settle tells what became of the message. It may be called on nil, which is the claim
// of a message that has none.
func (c *Claim) Settle(o Outcome) {
	if c == nil {
		return
	}
	c.published.mu.Lock()
	defer c.published.mu.Unlock()
	t := c.taker
	t.trying--
	t.may = t.may || o == MaybeSent
	t.is = t.is || o == Sent
	if t.trying == 0 && !t.may && !t.is && c.published.first[c.name] == t {
		delete(c.published.first, c.name)
	}
}

// claim is nil when msg can't have the child key of its topic and event name.
func (p *published) claim(name slotName, msg *message.Message) *Claim {
	id := identity{msg: msg, uuid: msg.UUID, payload: sha256.Sum256(msg.Payload)}
	p.mu.Lock()
	defer p.mu.Unlock()
	t := p.first[name]
	switch {
	case t == nil:
		t = &taker{identity: id}
		p.first[name] = t
	case t.same(id):
	case t.payload == id.payload && t.may && !t.is && t.trying == 0:
		t.identity = id
	default:
		return nil
	}
	t.trying++
	return &Claim{published: p, name: name, taker: t}
}
