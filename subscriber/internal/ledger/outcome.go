package ledger

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Outcomes is the face of a ledger for whoever waits for a message to be settled.
type Outcomes struct{ c *core }

// Settlement says how a delivery ended. What the values mean stands in package subscriber.
type Settlement uint8

// Settlements, in the order of package subscriber.
const (
	Acked Settlement = iota
	Nacked
	Delayed
	Rejected
	Interrupted
)

// Outcome is what became of a delivery.
type Outcome struct {
	Settlement Settlement
	Count      int           // the number of the delivery
	Duration   time.Duration // from hand-out to settling
	Redelivery *Redelivery   // nil: it does not come again
	Lost       bool          // the entry is gone from the stream, so that it can't come again
}

// Redelivery is when an entry comes again.
type Redelivery struct {
	Count   int // how many deliveries count so far
	After   time.Duration
	Delayed bool  // somebody asked for this delay
	Failure error // why the handler failed, where that is known
}

// request is the delay that DelayOnError asks for, by the metadata of a message that was not
// acknowledged. What the message came with is no request: it may be another service's, that
// of the message which this one is a copy of.
type request struct {
	Delay
	after time.Duration
	ok    bool
}

func requested(md message.Metadata) (r request) {
	r.Until, r.For = md[wmeta.DelayedUntil], md[wmeta.DelayedFor]
	if d, err := time.ParseDuration(r.For); err == nil && r.Until != "" {
		r.after, r.ok = max(d, 0), true
	}
	return r
}

// respelled is the same time in other words. Watermill writes whole seconds: what a second
// request within one says must not look as though nothing had been set since the hand-out.
func respelled(until string) string {
	t, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return until
	}
	return t.Format("2006-01-02T15:04:05.000Z07:00")
}

// Settle takes in what became of a delivery, and returns what that means. The metadata of a
// message that was not acknowledged is not looked at where a delay or the dead letters were
// asked for: whoever did so may still be writing.
func (o Outcomes) Settle(e *Entry, acked bool, msg *message.Message) Outcome {
	c := o.c
	c.mu.Lock()
	defer c.mu.Unlock()
	out := Outcome{Count: e.counts.deliveries, Duration: time.Duration(c.now() - e.attempt.at)}
	c.land(e)
	was := e.suspicion
	if was.isSuspect() {
		c.suspects.cautious = false // it does no harm
		// The next suspect waits until the server knows what became of this one: were it to
		// kill the process before, this one would be suspected again, and in the end be
		// convicted.
		c.todo.urgent = true
	}
	e.suspicion = was.cleared()
	e.counts.redelivered = true
	a := &e.attempt
	isHandled := acked && a.reason == "" && !a.delayed
	switch {
	case e.owner.state == deleted && !isHandled:
		out.Settlement, out.Lost = Interrupted, true
		c.done(e)
	case a.reason != "":
		out.Settlement = Rejected
		c.deadLetter(e, a.reason)
	case isHandled:
		out.Settlement = Acked
		o.acked(e)
	case e.owner.state == anothers:
		out.Settlement = Interrupted
		c.done(e)
	case a.delayed && (!a.failed || a.ended):
		out.Settlement = Delayed
		o.uncount(e, was)
		out.Redelivery = o.redeliver(e, a.delay, true)
	case a.ended:
		out.Settlement = Interrupted
		o.uncount(e, was)
		out.Redelivery = o.redeliver(e, c.set.RedeliverAfter, false)
	default:
		out.Settlement = Nacked
		out.Redelivery = o.failed(e, msg)
	}
	return out
}

// uncount takes back a delivery that does not count. The entry stays a suspect: beside
// the one that kills the process it would be convicted as well.
func (o Outcomes) uncount(e *Entry, was suspicion) {
	e.counts.deliveries--
	e.suspicion = was
}

// failed makes an entry wait whose delivery counts, or ends it if that was the last one.
func (o Outcomes) failed(e *Entry, msg *message.Message) *Redelivery {
	c := o.c
	switch {
	case c.set.MaxDeliveries > 0 && e.counts.deliveries >= c.set.MaxDeliveries:
		c.deadLetter(e, ReasonMaxDeliveries)
		return nil
	case e.attempt.delayed: // by a later step than the one that failed
		return o.redeliver(e, e.attempt.delay, true)
	}
	if r := requested(msg.Metadata); r.ok && r.Delay != e.delay {
		e.delay = Delay{Until: respelled(r.Until), For: r.For}
		return o.redeliver(e, r.after, true)
	}
	return o.redeliver(e, backoff(e.counts.deliveries, c.set.RedeliverAfter, c.set.RedeliverMax), false)
}

// redeliver makes an entry wait for its redelivery.
func (o Outcomes) redeliver(e *Entry, after time.Duration, isDelayed bool) *Redelivery {
	c := o.c
	e.stage = waiting
	c.unload(e)
	Notify(c.signals.Room) // of bytes
	e.due = c.now() + Instant(after)
	e.counts.redelivered = true
	if !c.set.FanOut && e.owner.state != anothers && e.owner.state != deleted && e.counts.server != e.nextCount() {
		e.counts.writing = true
		c.todo.counts = append(c.todo.counts, e)
		Notify(c.signals.Commit)
	} else {
		c.rejoin(e)
	}
	c.queues.waiting.add(e)
	Notify(c.signals.Wake)
	return &Redelivery{Count: e.counts.deliveries, After: after, Delayed: isDelayed, Failure: e.attempt.failure}
}

// acked queues an acknowledgement. The next entry of its key may go at once:
// acknowledgements reach the server in the order in which they were given, so that
// what a crash leaves pending is still in order.
func (o Outcomes) acked(e *Entry) {
	c := o.c
	c.unload(e)
	if c.set.FanOut || e.owner.state == deleted {
		c.done(e)
		return
	}
	e.stage = committing
	if e.lane != nil {
		c.pass(e)
		Notify(c.signals.Wake)
	}
	c.todo.acks = append(c.todo.acks, e)
	if n := len(c.todo.acks); n == 1 || n == ackBatch || c.todo.urgent {
		Notify(c.signals.Commit)
	}
}
