package ledger

import (
	"context"
	"errors"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Reasons of dead letters. Handlers may give others.
const (
	ReasonMaxDeliveries = "max deliveries"
	ReasonUndecodable   = "undecodable"
	ReasonRejected      = "rejected"
)

// Causes of the end of a message's context; what they mean stands in package subscriber.
var (
	ErrOwnershipLost = errors.New("ownership of the entry is lost")
	ErrClosing       = errors.New("subscription ended before the message was settled")
)

// stage is where an entry is on its way.
//
//	read, taken over ─► ready ─► picked ─► committing ─► done
//	                      ▲          │
//	                      └ waiting ◄┘ not acknowledged
type stage uint8

const (
	ready      stage = iota // may go out when its turn comes
	parked                  // behind another entry of its key
	picked                  // being prepared, offered, or with a handler
	waiting                 // to be redelivered
	committing              // the server has yet to confirm its acknowledgement or dead letter
	done                    // no longer held
)

// Entry is one stream entry that a subscription holds. The ledger's lock guards it. It
// is the message's delivery.Delivery as well.
type Entry struct {
	core *core
	id   streamid.ID
	name string // the ID as the server writes it
	lane *lane  // under an order

	stage  stage
	queued bool             // it is in one of the queues
	msg    *message.Message // nil where only the ID is held
	size   int

	recovered bool // not read as new: handed back, taken over, or left by a lost reply
	suspicion suspicion
	owner     ownership
	counts    counts
	attempt   attempt
	due       Instant // when it waits: until then
	delay     Delay   // as the message last came with it
}

// ownership is what the server has said of whose an entry is.
type ownership struct {
	state ownerState
	// until is when another consumer may take the entry, by our clock: before it is
	// so by the server's.
	until     Instant
	seen      Instant // when the server's last word came that it is ours
	given     bool    // it may have been given away: the reply was lost
	acked     bool    // an acknowledgement was sent whose reply was lost
	restoring bool    // it is in todo.restores
}

type ownerState uint8

const (
	owned      ownerState = iota
	unverified            // the group may be another one than the one it was read from
	anothers              // the server said so: another consumer's
	deleted               // it is no longer in the stream, and so nobody can take it
)

// counts are those of an entry's deliveries. XREADGROUP writes 1 without a hand-out;
// every other value that we write is deliveries+1, so that only 1 is ambiguous.
type counts struct {
	deliveries  int  // those that count
	server      int  // the delivery count that the server has
	redelivered bool // it was handed out before
	writing     bool // the server has yet to learn the count
	overdue     bool // its time has come while writing
}

// attempt is one hand-out; the next one begins with a new one.
type attempt struct {
	worker  int
	at      Instant
	cancel  context.CancelCauseFunc
	ended   bool // its context ended before it was settled
	delayed bool
	delay   time.Duration
	failed  bool   // a failure was noted before the delay was asked for
	reason  string // why it is to become a dead letter; empty: it is not
	failure error
}

// Delay is what Watermill's DelayOnError writes into a message's metadata.
type Delay struct{ Until, For string }

// suspicion tells whether an entry may have killed the process that held it.
type suspicion uint8

const (
	unsuspected suspicion = iota
	suspected             // its last consumer died, maybe of it
	alone                 // the same, and in flight as the only suspect
	clearing              // it did no harm; other suspects wait until the server knows what became of it
)

func (s suspicion) isSuspect() bool   { return s == suspected || s == alone }
func (s suspicion) keepsOthers() bool { return s == alone || s == clearing }

// cleared is the suspicion of an entry that did no harm.
func (s suspicion) cleared() suspicion {
	if s.keepsOthers() {
		return clearing
	}
	return unsuspected
}

// rejoined is that of one that others need not wait for any more.
func (s suspicion) rejoined() suspicion {
	if s.isSuspect() {
		return suspected
	}
	return unsuspected
}

// Name is the ID as the server writes it.
func (e *Entry) Name() string { return e.name }

var _ delivery.Delivery = (*Entry)(nil)

// Info implements delivery.Delivery.
func (e *Entry) Info() delivery.Info {
	c := e.core
	c.mu.Lock()
	defer c.mu.Unlock()
	return delivery.Info{
		Stream: c.set.Topic, EntryID: e.name, Group: c.set.Group, Consumer: c.set.Consumer, FanOut: c.set.FanOut,
		Count: e.counts.deliveries, Redelivered: e.counts.redelivered, AddedAt: time.UnixMilli(int64(e.id.MS)),
	}
}

// Delay implements delivery.Delivery.
func (e *Entry) Delay(d time.Duration) {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	if e.stage == picked {
		e.attempt.delayed, e.attempt.delay, e.attempt.failed = true, max(d, 0), e.attempt.failure != nil
	}
}

// Reject implements delivery.Delivery.
func (e *Entry) Reject(reason string, err error) {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	if e.stage != picked {
		return
	}
	if reason == "" {
		reason = ReasonRejected
	}
	e.attempt.reason, e.attempt.failure = reason, err
}

// Failed implements delivery.Delivery.
func (e *Entry) Failed(err error) {
	e.core.mu.Lock()
	defer e.core.mu.Unlock()
	if e.stage == picked {
		e.attempt.failure = err
	}
}

// end ends the context of a message that is with a handler.
func (e *Entry) end(cause error) {
	if e.attempt.ended {
		return
	}
	e.attempt.ended = true
	if e.attempt.cancel != nil {
		e.attempt.cancel(cause)
	}
}

// confirm notes that the server has the entry pending for us. What is known to be another's
// stays so: only a read brings it back.
func (e *Entry) confirm(until, now Instant) {
	switch e.owner.state {
	case deleted:
		return // and nobody can take it
	case unverified:
		e.owner.state = owned
	}
	e.owner.until, e.owner.given, e.owner.seen = until, false, now
}

// unverify notes that the server has to say again whose it is.
func (e *Entry) unverify() {
	if e.owner.state == owned {
		e.owner.state = unverified
	}
}

// markDeleted marks the entry as no longer in the stream.
func (e *Entry) markDeleted() {
	if e.owner.state != anothers {
		e.owner.state = deleted
	}
	e.owner.until = Forever
}

// isHandled tells that the entry is not handed out again, and becomes no dead letter.
func (e *Entry) isHandled() bool {
	return e.stage == done || e.stage == committing && e.attempt.reason == ""
}

// isLost tells that the entry is gone from the stream, and not handled.
func (e *Entry) isLost() bool { return e.owner.state == deleted && !e.isHandled() }

// isFresh tells that it was read as new, and goes out for the first time.
func (e *Entry) isFresh() bool {
	return !e.counts.redelivered && e.counts.server == 1 && !e.suspicion.isSuspect()
}

// nextCount is the delivery count that the server should have.
func (e *Entry) nextCount() int { return e.counts.deliveries + 1 }

// outCount is the delivery count that the server gets for the hand-out under way. The first
// one that counts leaves no trace, as long as the entry is with who has read it: after a
// delay or a lost lease it goes out beside others, and were the process to die of one of
// these, a single delivery allowed would have been this one.
func (e *Entry) outCount() int {
	if e.counts.deliveries == 1 && !e.recovered {
		return 1
	}
	return e.nextCount()
}
