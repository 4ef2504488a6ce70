// Package childkey remembers, for one run of a handler, which of the messages that it
// publishes by itself has the child key of a topic and event name: only one can have it.
package childkey

import (
	"context"
	"crypto/sha256"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Claims are the child keys of one run that have been given to messages.
type Claims struct {
	// Handled is what the run handles: package eventkey's.
	Handled any

	mu      sync.Mutex
	holders map[name]*holder // nil before the first
}

type name struct{ topic, event string }

// holder is the message that has a child key.
type holder struct {
	sameness
	// trying counts the publishes under way.
	trying int
	// may means that the message may be in the stream, is that it is.
	may, is bool
}

// sameness recognises a message that is published again. The payload always counts:
// neither one message object that is filled anew for each publish nor copies, which share
// the UUID of the message they were made from, may pass for a repetition, since the
// publisher would then drop all but the first.
type sameness struct {
	msg     *message.Message
	uuid    string
	payload [sha256.Size]byte
}

func (a sameness) same(b sameness) bool {
	return a.payload == b.payload && (a.msg == b.msg || a.uuid != "" && a.uuid == b.uuid)
}

type contextKey struct{}

// With puts the claims of a new run onto a context, and what it handles.
func With(ctx context.Context, handled any) context.Context {
	return context.WithValue(ctx, contextKey{}, &Claims{Handled: handled})
}

// From returns the claims of the run that a context is of, nil if it is of none.
func From(ctx context.Context) *Claims {
	c, _ := ctx.Value(contextKey{}).(*Claims)
	return c
}

// Take claims the child key of a topic and event name for a message. It is nil where
// another message has it.
func (c *Claims) Take(topic, event string, msg *message.Message) *Claim {
	n := name{topic, event}
	s := sameness{msg: msg, uuid: msg.UUID, payload: sha256.Sum256(msg.Payload)}
	c.mu.Lock()
	defer c.mu.Unlock()
	h := c.holders[n]
	switch {
	case h == nil:
		h = &holder{sameness: s}
		if c.holders == nil {
			c.holders = make(map[name]*holder)
		}
		c.holders[n] = h
	case h.same(s):
	case h.payload == s.payload && h.may && !h.is && h.trying == 0:
		h.sameness = s
	default:
		return nil
	}
	h.trying++
	return &Claim{claims: c, name: n, holder: h}
}

// Claim is a message's hold on a child key. Who publishes the message ends it, so that
// a handler can try again: a key whose message was not sent is free, and one whose message
// may have been goes to a message of the same payload, such as an EventBus makes of the
// same event.
type Claim struct {
	claims *Claims
	name   name
	holder *holder
}

// Outcome is what became of a message.
type Outcome uint8

const (
	// NotSent means that the message is not in the stream.
	NotSent Outcome = iota
	// MaybeSent means that nobody knows whether it is.
	MaybeSent
	// Sent means that it is in the stream.
	Sent
)

// End reports what became of the message. It may be called on nil, which is the claim
// of a message that has none.
func (c *Claim) End(o Outcome) {
	if c == nil {
		return
	}
	c.claims.mu.Lock()
	defer c.claims.mu.Unlock()
	h := c.holder
	h.trying--
	h.may = h.may || o == MaybeSent
	h.is = h.is || o == Sent
	if h.trying == 0 && !h.may && !h.is && c.claims.holders[c.name] == h {
		delete(c.claims.holders, c.name)
	}
}
