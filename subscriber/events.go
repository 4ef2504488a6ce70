package subscriber

import (
	"time"

	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// Hooks receive what happens, for metrics and alerts. Every field may be nil. They
// are called from the goroutines that read and settle, several at once, and must not
// block. One that panics is logged. Entry IDs don't belong into metric labels.
type Hooks struct {
	// OnSettle gets every message that a handler was done with.
	OnSettle func(SettleEvent)
	// OnRedeliver gets every entry that waits to be handed out again.
	OnRedeliver func(RedeliverEvent)
	// OnDeadLetter gets every entry that became a dead letter.
	OnDeadLetter func(DeadLetterEvent)
	// OnLost gets entries that are gone from the stream without having been handled.
	OnLost func(LostEvent)
	// OnOwnershipLost gets entries that were taken over, or could not be renewed in
	// time, while this subscription held them.
	OnOwnershipLost func(OwnershipEvent)
	// OnTakeover tells that entries were taken over from other consumers.
	OnTakeover func(TakeoverEvent)
	// OnOutage tells that the server is out of reach or refuses, and when that is over.
	OnOutage func(OutageEvent)
}

// Settlement says how a delivery ended.
type Settlement uint8

const (
	// SettlementAcked means that the message was acknowledged.
	SettlementAcked Settlement = iota
	// SettlementNacked means that it was not, and the delivery counts.
	SettlementNacked
	// SettlementDelayed means that redelivery was asked for; the delivery does not count.
	SettlementDelayed
	// SettlementRejected means that the handler sent it to the dead letters.
	SettlementRejected
	// SettlementInterrupted means that it was not acknowledged, after its context had ended because
	// ownership was lost or the subscription ended, or its entry was gone from the
	// stream; the delivery does not count.
	SettlementInterrupted
)

// The numbers are those of the package that makes the settlements.
var _ = [1]struct{}{}[ledger.Settlement(SettlementInterrupted)-ledger.Interrupted]

var settlementNames = [...]string{"acked", "nacked", "delayed", "rejected", "interrupted"}

// String is for logs and metric labels.
func (s Settlement) String() string {
	if int(s) < len(settlementNames) {
		return settlementNames[s]
	}
	return "invalid"
}

// SettleEvent is what OnSettle gets.
type SettleEvent struct {
	Topic, Group, EntryID string
	Settlement            Settlement
	// Count is the number of the delivery; Duration the time from hand-out to settling.
	Count    int
	Duration time.Duration
}

// RedeliverEvent is what OnRedeliver gets.
type RedeliverEvent struct {
	Topic, Group, EntryID string
	// Count is how many deliveries count so far, After how long the entry waits.
	Count int
	After time.Duration
	// Delayed tells that somebody asked for this delay, by DelayOnError or Delay.
	Delayed bool
	// Err is why the handler failed, where that is known, see [Delivery.Failed].
	Err error
}

// DeadLetterEvent is what OnDeadLetter gets.
type DeadLetterEvent struct {
	Topic, Group, EntryID string
	// DeadLetterTopic and DeadLetterID tell where it is now; both are empty with
	// FanOut, where dead letters are dropped.
	DeadLetterTopic, DeadLetterID string
	// Reason is ReasonMaxDeliveries, ReasonUndecodable or a handler's own.
	Reason string
	Err    error
	Count  int
}

// LostReason says why an entry is lost.
type LostReason uint8

const (
	// LostPending means that it was deleted or trimmed after a consumer had read it and before
	// it was handled.
	LostPending LostReason = iota
	// LostUnread means that it was trimmed before the group had read it.
	LostUnread
	// LostStream means that the stream was deleted with the entries that had been read from it.
	LostStream
)

var lostNames = [...]string{"pending", "unread", "stream"}

// String is for logs and metric labels.
func (r LostReason) String() string {
	if int(r) < len(lostNames) {
		return lostNames[r]
	}
	return "invalid"
}

// LostEvent is what OnLost gets.
type LostEvent struct {
	Topic, Group string
	Reason       LostReason
	// Entries is how many, EntryIDs which ones where that is known.
	Entries  int64
	EntryIDs []string
}

// OwnershipEvent is what OnOwnershipLost gets.
type OwnershipEvent struct {
	Topic, Group, EntryID string
	// InFlight tells that the message was on its way to a handler or with it; its context
	// has ended.
	InFlight bool
	// Refused tells that the acknowledgement was refused: another consumer has, or
	// has had, the entry.
	Refused bool
}

// TakeoverEvent is what OnTakeover gets.
type TakeoverEvent struct {
	Topic, Group string
	// HandedBack is how many came from consumers that ended in an orderly way, Dead
	// how many from those that gave no sign of life.
	HandedBack, Dead int
}

// OutageEvent is what OnOutage gets.
type OutageEvent struct {
	Topic, Group string
	// Err is what happened; nil tells that the outage is over.
	Err error
	// Duration is how long it has lasted.
	Duration time.Duration
}
