package publisher

import (
	"context"
	"fmt"
	"maps"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/hook"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Sending is what OnSend receives: a message whose publish begins. It is for a tracer, which
// needs the caller's context, hands that of a span on with the message, and ends the span with
// the message's receipt.
type Sending struct {
	Topic string
	// Message is the caller's: read it while the hook runs, and don't change it.
	Message *message.Message
	// Messages is how many the call has.
	Messages int

	ctx     *context.Context
	carried message.Metadata
	done    []func(Receipt)
}

// Context is the one that the message is published under: its own, or that of [Publisher.Send].
func (s *Sending) Context() context.Context { return *s.ctx }

// Carry sends metadata along with the message, in place of what the message has under that
// name; an empty value sends none. The caller's message stays as it is. Only the context of a
// trace can be carried, "traceparent", "tracestate" and "baggage", which nothing compares: other
// names panic. In mode IDMPAuto nothing is carried, since there the server compares all that is
// sent.
func (s *Sending) Carry(name, value string) {
	if !wmeta.IsTrace(name) {
		panic(fmt.Sprintf("publisher: Sending.Carry: metadata %q takes part in comparisons; only the context of a trace can be carried", name))
	}
	if s.carried == nil {
		s.carried = make(message.Metadata, 2)
	}
	s.carried[name] = value
}

// Done has f called with the message's receipt, once, when OnPublish has received it. It must
// not block.
func (s *Sending) Done(f func(Receipt)) { s.done = append(s.done, f) }

// carryOn returns the metadata with what is carried, and leaves md as it is. It is md itself
// where nothing is carried.
func (s *Sending) carryOn(md message.Metadata) message.Metadata {
	if s == nil || len(s.carried) == 0 {
		return md
	}
	sent := make(message.Metadata, len(md)+len(s.carried))
	maps.Copy(sent, md)
	maps.Copy(sent, s.carried)
	maps.DeleteFunc(sent, func(name, value string) bool { return value == "" && wmeta.IsTrace(name) })
	return sent
}

// sendings are those of a call, in the order of its messages; nil where no hook asks for them.
type sendings []*Sending

// at is that of a message; nil if it has none.
func (s sendings) at(i int) *Sending {
	if s == nil {
		return nil
	}
	return s[i]
}

// under says what the messages of a call are published under, as far as a tracer sees it.
type under func(*message.Message) context.Context

// itsOwn is for messages that are published under their own contexts.
func itsOwn(msg *message.Message) context.Context { return msg.Context() }

// onSend has the hooks see the messages of a call.
func (e *events) onSend(of under, msgs []*message.Message) sendings {
	asked := false
	for _, h := range e.hooks {
		asked = asked || h.OnSend != nil
	}
	if !asked {
		return nil
	}
	list := make(sendings, len(msgs))
	for i, msg := range msgs {
		if msg == nil {
			continue
		}
		own := of(msg)
		list[i] = &Sending{Topic: e.topic, Message: msg, Messages: len(msgs), ctx: &own}
		hook.Call(e.logger, e.hooks, func(h Hooks) func(*Sending) { return h.OnSend }, list[i])
	}
	return list
}

// published reports the outcome of a message.
func (e *events) published(s *Sending, r Receipt) {
	hook.Call(e.logger, e.hooks, func(h Hooks) func(Receipt) { return h.OnPublish }, r)
	if s != nil {
		hook.Call(e.logger, s.done, func(f func(Receipt)) func(Receipt) { return f }, r)
	}
}
