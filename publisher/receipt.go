package publisher

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// Receipt is what became of one message.
type Receipt struct {
	Topic, MessageUUID string
	// Key is the event's key; IdempotentID what the server compares: the key, and
	// the attempt and poison origin where there are any.
	Key, IdempotentID string
	// ProducerID is the one on the wire, with its shard: "payment-service/3".
	ProducerID string
	Verdict    Verdict
	// EntryID is the entry of the event: the new one, or the original.
	EntryID string
	// Age is how old the original was, by the server's clock as last measured, or a
	// little more: that took a round trip. 0 unless the verdict is Duplicate or
	// OriginalGone.
	Age  time.Duration
	Mode Mode
	// Resent means that the reply of an earlier try was lost, and this call sent it again. An
	// Added with Resent was recognised by the UUID of the stored entry; a message that
	// has the UUID of the original in every retry, such as one made from the key, is
	// Added then, too. IDMPAuto derives the UUID from the content, so there a resend is
	// always a Duplicate.
	Resent bool
	// Attempts counts how often this call sent the message.
	Attempts int
	// Duration is how long it took from the call to this outcome.
	Duration time.Duration
	// Err is nil when the event has been added once, by this call or an earlier one.
	Err error
}

type contextKey int

const (
	receiptKey contextKey = iota
	collectorKey
)

// ReceiptOf returns what the last [Publisher.Publish] of msg did, also when that
// call returned an error. It is false for a message that was never published, and
// for one published by [Publisher.Send], which returns its receipts.
func ReceiptOf(msg *message.Message) (Receipt, bool) {
	if h, ok := msg.Context().Value(receiptKey).(*holder); ok && h.owner == msg {
		if r := h.receipt.Load(); r != nil {
			return *r, true
		}
	}
	return Receipt{}, false
}

// holder is a context with a place for a message's receipt. It names its owner: a
// message built on the context of another one inherits the holder.
type holder struct {
	context.Context //nolint:containedctx // it is one
	owner           *message.Message
	receipt         atomic.Pointer[Receipt]
}

func (h *holder) Value(key any) any {
	if key == receiptKey {
		return h
	}
	return h.Context.Value(key)
}

// keep puts the receipts where [ReceiptOf] and [CollectReceipts] find them. It runs in the
// goroutine of the caller: once the call has returned, the messages are not ours to touch.
func keep(msgs []*message.Message, receipts []Receipt) {
	for i, msg := range msgs {
		if msg != nil {
			holderOf(msg).receipt.Store(&receipts[i])
			collect(msg.Context(), receipts[i])
		}
	}
}

// holderOf returns the holder of msg, which it makes where there is none.
func holderOf(msg *message.Message) *holder {
	if h, ok := msg.Context().Value(receiptKey).(*holder); ok && h.owner == msg {
		return h
	}
	h := &holder{Context: msg.Context(), owner: msg}
	msg.SetContext(h)
	return h
}

// Receipts collects the receipts of all messages published under one context.
type Receipts struct {
	mu   sync.Mutex
	list []Receipt
}

// CollectReceipts returns a context that collects. It reaches through whatever
// passes the context on to the messages: EventBus.Publish, CommandBus.Send, a
// handler's messages. Not every verdict belongs to the caller's own message:
// look at Topic and Key.
func CollectReceipts(ctx context.Context) (context.Context, *Receipts) {
	r := new(Receipts)
	return context.WithValue(ctx, collectorKey, r), r
}

// All returns what was collected so far, in the order in which it became known.
func (r *Receipts) All() []Receipt {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Receipt(nil), r.list...)
}

func collect(ctx context.Context, receipts ...Receipt) {
	if r, ok := ctx.Value(collectorKey).(*Receipts); ok {
		r.mu.Lock()
		r.list = append(r.list, receipts...)
		r.mu.Unlock()
	}
}
