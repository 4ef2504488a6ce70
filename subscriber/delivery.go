package subscriber

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// Reasons of dead letters, in their metadata field _dead_reason. Handlers may give
// others.
const (
	ReasonMaxDeliveries = ledger.ReasonMaxDeliveries
	ReasonUndecodable   = ledger.ReasonUndecodable
	ReasonRejected      = ledger.ReasonRejected
)

// Delivery tells about the delivery of a message, and changes what happens when it is
// settled. It is only good until then.
type Delivery struct{ d delivery.Delivery }

// DeliveryOf returns the delivery of a message that a [Subscriber] of this package
// handed out, on its context; false for any other message. A copy of a message has no
// context and so no delivery.
func DeliveryOf(msg *message.Message) (Delivery, bool) {
	d := delivery.From(msg.Context())
	return Delivery{d}, d != nil
}

// EntryID is the ID of the stream entry.
func (d Delivery) EntryID() string { return d.d.Info().EntryID }

// Count is the number of this delivery among those that count: 1 for the first. A
// process that died after it had handed out an entry for the first time leaves no
// trace of that; every later time it does.
func (d Delivery) Count() int { return d.d.Info().Count }

// Redelivered tells that the entry was handed out before, as far as is known.
func (d Delivery) Redelivered() bool { return d.d.Info().Redelivered }

// Age is how long ago the entry was added, by the clocks of the server and of this
// process.
func (d Delivery) Age() time.Duration { return max(time.Since(d.d.Info().AddedAt), 0) }

// Delay asks for redelivery after the time given instead of what settling the message
// would do: acknowledged or not, it comes again, and this delivery does not count, unless
// a failure was noted before (see Failed). After a shutdown or a crash it may come earlier, but not before the rest of it or
// Config.MinIdle has passed, whichever is shorter.
func (d Delivery) Delay(after time.Duration) { d.d.Delay(after) }

// Reject sends the message to the dead letters when it is settled, acknowledged or
// not. An empty reason is "rejected".
func (d Delivery) Reject(reason string, err error) { d.d.Reject(reason, err) }

// Failed notes why the handler failed: a message that is not acknowledged has no
// error. It is in the dead letter if this was the last delivery. A delivery that has
// failed counts, also when a delay is asked for afterwards. [NoteFailure] does it for
// every handler of a Router.
func (d Delivery) Failed(err error) { d.d.Failed(err) }

// DeadLetterTopic is the stream that entries of a topic go to which can't be decoded,
// were rejected, or were handed out Config.MaxDeliveries times: {orders}.dead for
// orders. It lies in the topic's slot of a Redis Cluster. A message read from it has
// the payload and metadata of the original, and in metadata _dead_reason, _dead_error,
// _dead_count, _dead_group, _dead_origin (stream and entry ID) and _dead_at.
func DeadLetterTopic(topic string) string { return rediskey.DeadLetter(topic) }
