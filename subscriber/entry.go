package subscriber

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// state is where an entry is on its way.
//
//	read, taken over ─► ready ─► out ─► settling ─► done
//	                      ▲       │
//	                      └ waiting ◄┘ not acknowledged
type state uint8

const (
	stateReady    state = iota // may go out when its turn comes
	stateParked                // behind another entry of its key
	stateOut                   // being prepared, offered, or with a handler
	stateWaiting               // to be redelivered
	stateSettling              // the server has yet to confirm its acknowledgement or burial
	stateDone                  // no longer held
)

// instant is a point in time by the local monotonic clock, counted from the book's
// beginning; forever is never reached.
type instant time.Duration

const forever = instant(1<<63 - 1)

// entry is one stream entry that a subscription holds. The book's lock guards it. It
// is the message's delivery.Delivery as well.
type entry struct {
	book *book
	id   server.ID
	name string // the ID as the server writes it
	lane *lane  // under OrderKey and OrderStream

	state  state
	queued bool             // it is in one of the book's queues
	msg    *message.Message // nil where only the ID is held
	size   int

	// until is when another consumer may take the entry, by our clock: before it is
	// so by the server's.
	until     instant
	gone      bool    // the server said that the entry is not ours
	deleted   bool    // it is no longer in the stream, and so nobody can take it
	tried     bool    // an acknowledgement was sent whose reply was lost
	given     bool    // it may have been given away: the reply was lost
	doubt     bool    // the group may be another one than the one it was read from
	seen      instant // when the server's last word came that it is ours
	restoring bool    // the settler is to make it pending again

	// count is the number of hand-outs that count, written the delivery count that
	// the server has. XREADGROUP writes 1 without a hand-out; every other value that
	// we write is count+1, so that only 1 is ambiguous.
	count, written int
	again          bool // it was handed out before
	marking        bool // the server has yet to learn the count
	overdue        bool // its time has come while marking
	found          bool // not read as new: handed back, taken over, or left by a lost reply
	suspect        bool // its last consumer died, maybe of it
	alone          bool // in flight as the only suspect

	due                  instant
	delayUntil, delayFor string // DelayOnError's metadata as the message last came with it

	slot    int
	outAt   instant
	cancel  context.CancelCauseFunc
	over    bool // its context ended before it was settled
	delayed bool
	delay   time.Duration
	counts  bool   // a failure was noted before the delay was asked for
	reason  string // why it is to become a dead letter; empty: it is not
	failure error
}

var _ delivery.Delivery = (*entry)(nil)

// Info implements delivery.Delivery.
func (e *entry) Info() delivery.Info {
	b := e.book
	b.mu.Lock()
	defer b.mu.Unlock()
	return delivery.Info{
		Stream: b.topic, EntryID: e.name, Group: b.cfg.Group, Consumer: b.consumer, FanOut: b.cfg.FanOut,
		Count: e.count, Redelivered: e.again, AddedAt: time.UnixMilli(int64(e.id.MS)),
	}
}

// Delay implements delivery.Delivery.
func (e *entry) Delay(d time.Duration) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	if e.state == stateOut {
		e.delayed, e.delay, e.counts = true, max(d, 0), e.failure != nil
	}
}

// Reject implements delivery.Delivery.
func (e *entry) Reject(reason string, err error) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	if e.state != stateOut {
		return
	}
	if reason == "" {
		reason = ReasonRejected
	}
	e.reason, e.failure = reason, err
}

// Failed implements delivery.Delivery.
func (e *entry) Failed(err error) {
	e.book.mu.Lock()
	defer e.book.mu.Unlock()
	if e.state == stateOut {
		e.failure = err
	}
}

// end ends the context of a message that is with a handler.
func (e *entry) end(cause error) {
	if e.over {
		return
	}
	e.over = true
	if e.cancel != nil {
		e.cancel(cause)
	}
}

// isLost tells that the entry is gone from the stream, and not handled.
func (e *entry) isLost() bool {
	isHandled := e.state == stateDone || e.state == stateSettling && e.reason == ""
	return e.deleted && !e.gone && !isHandled
}

// wanted is the delivery count that the server should have.
func (e *entry) wanted() int { return e.count + 1 }

// outCount is the delivery count that the server gets for the hand-out under way. The first
// one that counts leaves no trace, as long as the entry is with who has read it: after a
// delay or a lost lease it goes out beside others, and were the process to die of one of
// these, a single delivery allowed would have been this one.
func (e *entry) outCount() int {
	if e.count == 1 && !e.found {
		return 1
	}
	return e.wanted()
}
