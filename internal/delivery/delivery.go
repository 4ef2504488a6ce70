// Package delivery is the bond between our subscriber and our handling middleware:
// what the subscriber knows of a message's delivery, and what the middleware can ask
// it for. It travels on the message's context, so that the two need not know each
// other, and so that it reaches through the wrappers that Watermill's Router puts
// around a subscriber.
package delivery

import (
	"context"
	"time"
)

// Info is what is known of a delivery.
type Info struct {
	// Stream and EntryID name the entry, Group and Consumer who reads it. Both are
	// empty for a subscriber that fans out.
	Stream, EntryID, Group, Consumer string
	// FanOut means that every subscription gets the entry, whatever others do with it.
	FanOut bool
	// Count is the number of times that the entry was handed out and this counts:
	// 1 on the first delivery.
	Count int
	// Redelivered means that the entry was handed out before, as far as known.
	Redelivered bool
	// AddedAt is when the entry was added, by the server's clock.
	AddedAt time.Time
}

// Delivery is one delivery of a message. Its methods change what happens when the
// message is settled, acknowledged or not; after that they do nothing. They may be
// called from any goroutine.
type Delivery interface {
	Info() Info
	// Delay asks for redelivery after d. It does not count as a delivery, unless Failed
	// was called before. Any settling after it is a delay, an acknowledgement too.
	Delay(d time.Duration)
	// Reject sends the entry to the dead letters as soon as it is settled, however
	// it is settled. It goes before Delay.
	Reject(reason string, err error)
	// Failed notes that the handler ran and failed, and why, for the case that the entry
	// becomes a dead letter now. The delivery counts, whatever is asked for afterwards.
	Failed(err error)
}

type key struct{}

// With puts a delivery onto a context.
func With(ctx context.Context, d Delivery) context.Context {
	return context.WithValue(ctx, key{}, d)
}

// From returns the delivery on a context, nil if there is none: the message was not
// read by our subscriber.
func From(ctx context.Context) Delivery {
	d, _ := ctx.Value(key{}).(Delivery)
	return d
}
