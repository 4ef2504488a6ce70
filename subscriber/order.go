package subscriber

import (
	"cmp"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Order says what waits for a message that was not acknowledged.
type Order uint8

const (
	// OrderNone means that nothing waits. Entries are handed out in the order of the stream;
	// one that is redelivered comes when its time has come.
	OrderNone Order = iota
	// OrderKey means that entries of the same key (Config.OrderBy) are handed out one after the
	// other, the next when the one before is done. Others go on.
	OrderKey
	// OrderStream means that all entries are handed out one after the other.
	//
	// Under OrderKey and OrderStream one subscription of the group is active, since
	// Redis gives the entries of one key to any consumer that asks. Others stand by,
	// until that one has ended or has given no sign of life for Config.MinIdle, and
	// take its entries over first. A consumer that reads the group without an order
	// counts as active, too.
	OrderStream
)

var orderNames = [...]string{"none", "key", "stream"}

// String is for logs.
func (o Order) String() string {
	if int(o) < len(orderNames) {
		return orderNames[o]
	}
	return fmt.Sprintf("Order(%d)", uint8(o))
}

// Start is the place in a stream where reading begins: [Beginning], [Latest], or what
// [AfterID] and [FromTime] return.
type Start string

const (
	// Beginning means all that the stream still has. It is the default.
	Beginning Start = ""
	// Latest means what is added after the group was made.
	Latest Start = "$"
)

// AfterID starts with the first entry after the one with this ID, as in Redis.
func AfterID(entryID string) Start { return Start(entryID) }

// FromTime starts with the first entry that was added at or after t, by the clock of
// the server that made the entry IDs, to the millisecond.
func FromTime(t time.Time) Start {
	ms := t.UnixMilli()
	if ms <= 0 {
		return Beginning
	}
	return Start(streamid.ID{MS: uint64(ms)}.Before().String())
}

// String is for logs.
func (s Start) String() string {
	switch s {
	case Beginning:
		return "beginning"
	case Latest:
		return "latest"
	}
	return "after " + string(s)
}

func (s Start) validate() error {
	if s == Beginning || s == Latest || s == "0" {
		return nil
	}
	_, err := streamid.Parse(string(s))
	return err
}

// argument is for XGROUP CREATE.
func (s Start) argument() string {
	return cmp.Or(string(s), "0")
}
