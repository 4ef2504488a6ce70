package subscriber

import (
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Order says what waits for a message that was not acknowledged.
type Order uint8

const (
	// OrderNone: nothing waits. Entries are handed out in the order of the stream;
	// one that is redelivered comes when its time has come.
	OrderNone Order = iota
	// OrderKey: entries of the same key (Config.OrderBy) are handed out one after the
	// other, the next when the one before is done. Others go on.
	OrderKey
	// OrderStream: all entries are handed out one after the other.
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

// Start is the place in a stream where reading begins.
type Start struct {
	id string // what XGROUP CREATE takes; empty is Beginning
}

// Places to start from. Beginning is the default: all that the stream still has.
// Latest is what is added after the group was made.
var (
	Beginning = Start{}
	Latest    = Start{id: "$"}
)

// AfterID starts with the first entry behind the one with this ID, as in Redis.
func AfterID(entryID string) Start { return Start{id: entryID} }

// FromTime starts with the first entry that was added at or after t, by the clock of
// the server that made the entry IDs, to the millisecond.
func FromTime(t time.Time) Start {
	ms := t.UnixMilli()
	if ms <= 0 {
		return Beginning
	}
	return Start{id: fmt.Sprintf("%d-18446744073709551615", ms-1)}
}

// String is for logs.
func (s Start) String() string {
	switch s.id {
	case "":
		return "beginning"
	case "$":
		return "latest"
	}
	return "after " + s.id
}

func (s Start) validate() error {
	if s.id == "" || s.id == "$" || s.id == "0" {
		return nil
	}
	_, err := streamid.Parse(s.id)
	return err
}

// argument is for XGROUP CREATE.
func (s Start) argument() string {
	if s.id == "" {
		return "0"
	}
	return s.id
}
