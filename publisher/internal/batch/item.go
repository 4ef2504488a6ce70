package batch

import (
	"context"
	"time"
)

// Entry is what is appended.
type Entry struct {
	// UUID, Metadata and Payload are the values of the default format; Fields, where it is
	// set, takes their place.
	UUID, Metadata, Payload string
	Fields                  []any
	Size                    int   // in bytes
	Trim                    []any // trimming clause of a decorated publisher; nil: the stream's

	// Print is the fingerprint where Printed, since it may be empty; else it is that of
	// the payload, made when needed.
	Print   []byte
	Printed bool
}

// Item is one message on its way, encoded. It shares nothing with the caller's
// message, which the caller may change as soon as the call has returned.
type Item struct {
	MessageUUID       string
	Key, IdempotentID string
	Producer          string // without shard
	Child             bool   // the key is a child key

	Entry

	// ProducerID and Mode are those that the item was last sent under; see
	// [Session.Address].
	ProducerID string
	Mode       uint8

	maybeSent bool // the reply of an earlier try was lost; the sender's own
	done      bool
	attempts  int32
	first     time.Time // when it was sent first; the sender's own
	call      *Call
	result    Result // once it is done

	// CallerData is not looked at here.
	CallerData any
}

// MaybeSent reports whether an earlier try of the item may have been written without a reply:
// then a duplicate may be the item itself. It is for the [Session] that appends it.
func (it *Item) MaybeSent() bool { return it.maybeSent }

// MarkMaybeSent notes that the item may have been written, and nobody knows. It is for the
// [Session] that appends it.
func (it *Item) MarkMaybeSent() { it.maybeSent = true }

// Verdict says what became of an item whose outcome is known.
type Verdict uint8

// The verdicts; package publisher says what each means to its user.
const (
	Unknown Verdict = iota
	Added
	Duplicate
	OriginalGone
)

// Outcome is what one append found out about one item.
type Outcome struct {
	Known   bool // false: the item must be sent again
	Verdict Verdict
	// LooksOwn means that the original looks like the item itself, so that it is its own
	// first try if the reply of that was lost.
	LooksOwn bool
	// Differs means that the original has other content, Field where, if that is known.
	Differs bool
	Field   string
	EntryID string
	Age     time.Duration // of the original
	Err     error
}

// Conflicts reports that the outcome is a conflict: the original has other content. Under a
// child key that is none: a handler that ran again may well produce a different message,
// and the first one was published and stays.
func (it *Item) Conflicts(o *Outcome) bool { return o.Differs && !it.Child }

// Result is what became of an item, and how it was sent.
type Result struct {
	Outcome
	ProducerID string
	Mode       uint8
	Resent     bool
	Attempts   int
	Duration   time.Duration
}

// Stream is what batches are appended to.
type Stream interface {
	// Ready sets the stream up where that is not done. It is called before each append.
	Ready(ctx context.Context) (Session, error)
}

// Session appends to a stream that was set up.
type Session interface {
	// Window is how long the stream recognises what it was sent.
	Window() time.Duration
	// Address sets ProducerID and Mode of an item that is about to be sent.
	Address(it *Item)
	// Append sends the items once, in order, and returns an outcome for each, with an error
	// unless all are known. Where it returns none, all may have been if the error is [Ambiguous].
	Append(ctx context.Context, items []*Item) ([]Outcome, error)
}

// Observer receives what happens to the items of a queue. Done is called with the lock
// of the call held; all may be called from several goroutines at once.
type Observer interface {
	// Done receives each item once. It may set the error of an item that conflicts.
	Done(it *Item, r *Result)
	// Retry receives that so many items are sent again after the try with that number.
	Retry(items, attempt int, err error)
	// Panicked receives what ended a batch.
	Panicked(err error, stack []byte)
	// Outage is called once when nothing gets through any more, Recovered when it does.
	Outage(err error)
	Recovered()
}
