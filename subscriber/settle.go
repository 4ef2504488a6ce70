package subscriber

import (
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// ask is the delay that DelayOnError wants, by the metadata of a message that was not
// acknowledged. What the message came with is no wish: it may be another service's, that
// of the message which this one is a copy of.
type ask struct {
	until, length string
	after         time.Duration
	ok            bool
}

func askedDelay(md message.Metadata) (a ask) {
	a.until, a.length = md[wmeta.DelayedUntil], md[wmeta.DelayedFor]
	if d, err := time.ParseDuration(a.length); err == nil && a.until != "" {
		a.after, a.ok = max(d, 0), true
	}
	return a
}

// respelled is the same time in other words. Watermill writes whole seconds: what a second
// wish within one says must not look as though nothing had been set since the hand-out.
func respelled(until string) string {
	t, err := time.Parse(time.RFC3339, until)
	if err != nil {
		return until
	}
	return t.Format("2006-01-02T15:04:05.000Z07:00")
}

// settled takes in what became of a delivery, and returns what that means. lost tells
// that the entry is gone from the stream, so that it can't come again.
func (b *book) settled(e *entry, acked bool, a ask) (ev SettleEvent, again *RedeliverEvent, lost bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ev = SettleEvent{
		Topic: b.topic, Group: b.cfg.Group, EntryID: e.name,
		Count: e.count, Took: time.Duration(b.now() - e.outAt),
	}
	b.land(e)
	if e.suspect {
		b.cautious = false // it does no harm
		// The next suspect waits until the server knows what became of this one: were it to
		// kill the process before, this one would be suspected again, and in the end be
		// convicted.
		b.urgent = true
	}
	wasSuspect := e.suspect
	e.suspect = false
	// uncount takes back a delivery that does not count. The entry stays a suspect: beside
	// the one that kills the process it would be convicted as well.
	uncount := func() {
		e.count--
		e.suspect = wasSuspect
	}
	e.again = true
	redeliver := func(after time.Duration, delayed bool) (SettleEvent, *RedeliverEvent, bool) {
		b.wait(e, after)
		return ev, &RedeliverEvent{Topic: b.topic, Group: b.cfg.Group, EntryID: e.name, Count: e.count, After: after, Delayed: delayed, Err: e.failure}, false
	}
	if isHandled := acked && e.reason == "" && !e.delayed; e.deleted && !isHandled {
		ev.Settlement = Interrupted
		b.done(e)
		return ev, nil, !e.gone
	}
	switch {
	case e.reason != "":
		ev.Settlement = Rejected
		b.bury(e)
		return ev, nil, false
	case e.delayed && (!e.counts || e.over):
		ev.Settlement = Delayed
		uncount()
		return redeliver(e.delay, true)
	case acked && !e.delayed:
		ev.Settlement = Acked
		b.acked(e)
		return ev, nil, false
	case e.gone:
		ev.Settlement = Interrupted
		b.done(e)
		return ev, nil, false
	case e.over:
		ev.Settlement = Interrupted
		uncount()
		return redeliver(b.cfg.RedeliverAfter, false)
	}
	ev.Settlement = Nacked
	if b.cfg.MaxDeliveries > 0 && e.count >= b.cfg.MaxDeliveries {
		e.reason = ReasonMaxDeliveries
		b.bury(e)
		return ev, nil, false
	}
	if e.delayed { // by a later step than the one that failed
		return redeliver(e.delay, true)
	}
	if a.ok && (a.until != e.delayUntil || a.length != e.delayFor) {
		e.delayUntil, e.delayFor = respelled(a.until), a.length
		return redeliver(a.after, true)
	}
	return redeliver(b.backoff(e.count), false)
}

// acked queues an acknowledgement. The next entry of its key may go at once:
// acknowledgements reach the server in the order in which they were given, so that
// what a crash leaves pending is still in order.
func (b *book) acked(e *entry) {
	b.unload(e)
	if b.cfg.FanOut || e.deleted && !e.gone {
		b.done(e)
		return
	}
	e.state = stateSettling
	if e.lane != nil {
		b.pass(e)
		notify(b.wake)
	}
	b.acks = append(b.acks, e)
	if n := len(b.acks); n == 1 || n == ackBatch || b.urgent {
		notify(b.work)
	}
}

// jobs are what the settler has to tell the server.
type jobs struct{ restores, acks, marks, graves []*entry }

// pressing tells that there is something that does not wait for dead letters.
func (j jobs) pressing() bool { return len(j.restores)+len(j.acks)+len(j.marks) > 0 }

func (j jobs) none() bool { return !j.pressing() && len(j.graves) == 0 }

func (b *book) takeJobs() jobs {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := jobs{b.restores, b.acks, b.marks, b.graves}
	b.restores, b.acks, b.marks, b.graves, b.urgent = nil, nil, nil, nil, false
	return j
}

// confirm forgets entries that the server has settled.
func (b *book) confirm(list []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, e := range list {
		b.done(e)
	}
}

// expire ends the contexts of messages whose ownership our clock says is over, and
// returns their entries.
func (b *book) expire() (ended []*entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := b.now()
	for _, e := range b.inFlight {
		// Without a context it is being prepared, and offered only if it is renewed.
		if e != nil && e.cancel != nil && !e.over && now >= e.until {
			e.end(ErrOwnershipLost)
			ended = append(ended, e)
		}
	}
	if len(ended) > 0 {
		notify(b.recall)
		notify(b.verify)
	}
	return ended
}

// verdict is the answer to a heartbeat: which of the entries are pending for another
// consumer, which for nobody, and which are no longer in the stream.
type verdict struct{ others, nobodys, deleted map[string]bool }

// renewed takes in the answer to a heartbeat. It returns the entries that ended here,
// with whether a handler had them, and the IDs of those that are lost.
func (b *book) renewed(list []*entry, sent instant, v verdict) (ended []OwnershipEvent, lost []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	until := b.leaseFrom(sent)
	for _, e := range list {
		other, nobodys, deleted := v.others[e.name], v.nobodys[e.name], v.deleted[e.name]
		switch {
		case e.state == stateDone:
		case !other && !nobodys && !deleted:
			b.own(e, until)
		case e.seen > sent:
			// What was read since then, or made pending again, is ours by now.
		case nobodys && !e.given:
			b.orphaned(e)
		case nobodys, other:
			ended = append(ended, b.taken(e)...)
		case deleted:
			lost = append(lost, b.vanished(e)...)
		}
	}
	notify(b.wake)
	notify(b.room)
	return ended, lost
}

// taken ends an entry that another consumer has.
func (b *book) taken(e *entry) (ended []OwnershipEvent) {
	b.yield()
	if e.state == stateSettling {
		return nil // the answer to its acknowledgement will tell
	}
	ev := OwnershipEvent{Topic: b.topic, Group: b.cfg.Group, EntryID: e.name, InFlight: e.state == stateOut}
	if e.state != stateOut {
		b.done(e)
		ended = append(ended, ev)
	} else {
		e.gone = true
		if !e.over {
			e.end(ErrOwnershipLost)
			ended = append(ended, ev)
		}
		notify(b.recall)
	}
	return ended
}

// vanished takes in that an entry is no longer in the stream. One whose message is here
// is handled all the same; else it returns the ID.
func (b *book) vanished(e *entry) (lost []string) {
	e.deleted, e.until, e.doubt = true, forever, false
	if e.msg == nil && e.state != stateOut && e.state != stateSettling {
		b.done(e)
		lost = []string{e.name}
	}
	return lost
}

func (b *book) isUrgent() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.urgent
}
