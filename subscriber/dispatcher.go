package subscriber

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// dispatcher hands messages out. It owns the channel, and is the only one to close it.
//
// Each of its workers hands out one message at a time and waits until it is settled. There
// are up to MaxInFlight of them; turn makes sure that messages go into the channel in the
// order in which they were picked. With one worker the message goes from what was read ahead
// to the handler and back without another goroutine in between.
type dispatcher struct {
	*shared
	decoder *decoder
	out     chan *message.Message
	abandon chan struct{} // closed: the workers wait for handlers no longer

	turn    sync.Mutex
	started int // workers, guarded by turn
	idle    atomic.Int32
	workers sync.WaitGroup
}

func newDispatcher(s *shared, d *decoder) *dispatcher {
	return &dispatcher{shared: s, decoder: d, out: make(chan *message.Message), abandon: make(chan struct{})}
}

func (d *dispatcher) start(ctx context.Context) {
	d.started = 1
	d.workers.Go(func() { d.work(ctx, 0) })
}

// work is one worker.
func (d *dispatcher) work(ctx context.Context, number int) {
	for {
		d.idle.Add(1)
		d.turn.Lock()
		d.idle.Add(-1)
		h := d.handOut(ctx, number)
		if h.entry != nil && d.idle.Load() == 0 && d.started < d.cfg.MaxInFlight {
			another := d.started
			d.workers.Go(func() { d.work(ctx, another) })
			d.started++
		}
		d.turn.Unlock()
		if h.entry == nil || !d.await(h) {
			return
		}
	}
}

// handout is a message that somebody has taken.
type handout struct {
	entry  *ledger.Entry
	msg    *message.Message
	cancel context.CancelCauseFunc
}

// handOut waits for the next entry and for somebody who takes its message. It returns
// none when the subscription ends.
func (d *dispatcher) handOut(ctx context.Context, worker int) handout {
	for {
		p := d.next(worker)
		e := p.Entry
		if e == nil {
			return handout{}
		}
		if p.Prepare {
			if p.Msg = d.prepare(ctx, e); p.Msg == nil {
				continue
			}
		}
		msgCtx, cancel := context.WithCancelCause(delivery.With(ctx, e))
		h := handout{entry: e, msg: p.Msg, cancel: cancel}
		if !d.ledger.Dispatch.Offer(e, cancel) {
			d.withdraw(h)
			continue
		}
		p.Msg.SetContext(msgCtx)
		if d.offer(h) {
			return h
		}
	}
}

// offer waits until somebody takes a message; it is false where that was withdrawn.
func (d *dispatcher) offer(h handout) (taken bool) {
	for {
		select {
		case d.out <- h.msg:
			return true
		case <-d.ledger.Signals.Recall:
			if !d.ledger.Dispatch.MayStay(h.entry) {
				d.withdraw(h)
				return false
			}
		}
	}
}

func (d *dispatcher) withdraw(h handout) {
	h.cancel(ErrOwnershipLost)
	if d.ledger.Dispatch.Withdraw(h.entry) {
		d.report.lostPending(h.entry.Name())
	}
}

// next waits for an entry that may go out.
func (d *dispatcher) next(worker int) ledger.Picked {
	for {
		p, until := d.ledger.Dispatch.Next(worker)
		if p.Entry != nil {
			return p
		}
		var due <-chan time.Time
		var timer *time.Timer
		if until != ledger.Forever {
			timer = time.NewTimer(time.Duration(until - d.ledger.Now()))
			due = timer.C
		}
		select {
		case <-d.stopping:
		case <-d.ledger.Signals.Wake:
		case <-due:
		}
		if timer != nil {
			timer.Stop()
		}
		if d.isEnding() {
			return ledger.Picked{}
		}
	}
}

// await waits until a message is settled. It is false when the subscription has given
// up waiting.
func (d *dispatcher) await(h handout) bool {
	acked := false
	select {
	case <-h.msg.Acked():
		acked = true
	case <-h.msg.Nacked():
	case <-d.abandon:
		return false
	}
	o := d.ledger.Outcomes.Settle(h.entry, acked, h.msg)
	h.cancel(ErrSettled)
	d.report.settled(h.entry.Name(), o)
	return true
}

// prepare fetches the message of an entry and writes its count: the hand-out that
// comes next. It returns nil when the entry can't go out now.
func (d *dispatcher) prepare(ctx context.Context, e *ledger.Entry) *message.Message {
	sent := d.ledger.Now()
	count, delay := d.ledger.Dispatch.OutCount(e)
	pairs, result, err := d.group.Prepare(ctx, e.Name(), count)
	d.did(doFetch, err)
	var isLost bool
	switch {
	case err != nil:
		isLost = d.ledger.Dispatch.Postpone(e, preparePause)
	case result == group.Nobodys:
		isLost = d.ledger.Dispatch.Question(e)
	case result == group.Anothers:
		if isLost = d.ledger.Dispatch.Drop(e, true); !isLost {
			d.report.ownershipLost(ledger.Ended{Name: e.Name()})
		}
	case result == group.Gone:
		isLost = true
		d.ledger.Dispatch.Drop(e, false)
	default:
		return d.prepared(e, pairs, delay, sent)
	}
	if isLost {
		d.report.lostPending(e.Name())
	}
	return nil
}

func (d *dispatcher) prepared(e *ledger.Entry, pairs []string, delay ledger.Delay, sent ledger.Instant) *message.Message {
	msg, err := d.decoder.decode(e.Name(), pairs)
	if err != nil {
		d.ledger.Dispatch.Undecodable(e, err)
		return nil
	}
	if delay.Until != "" {
		msg.Metadata.Set(wmeta.DelayedUntil, delay.Until)
		msg.Metadata.Set(wmeta.DelayedFor, delay.For)
	} else { // an entry that was taken over is seen for the first time
		delay = delayOf(msg)
	}
	d.ledger.Dispatch.Prepared(e, msg, group.Size(pairs), delay, sent)
	return msg
}

// drain ends the handing out: it waits for handlers up to CloseTimeout, and ends the contexts
// of their messages a moment before that.
func (d *dispatcher) drain() {
	d.ledger.Dispatch.Stop()
	grace := settleGrace(d.cfg.CloseTimeout)
	d.awaitIdle(d.cfg.CloseTimeout - grace)
	if ended := d.ledger.Dispatch.EndAll(); ended > 0 {
		d.report.error("Handlers did not finish in time; their messages will be redelivered", errSlowHandlers,
			watermill.LogFields{fieldEntries: ended})
		d.awaitIdle(grace)
	}
	close(d.abandon)
	d.workers.Wait()
}

// settleGrace is how long handlers get to settle their message after its context has
// ended, before CloseTimeout is over.
func settleGrace(closeTimeout time.Duration) time.Duration { return min(closeTimeout/4, time.Second) }

// awaitIdle waits until nothing is in flight.
func (d *dispatcher) awaitIdle(atMost time.Duration) {
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	for d.ledger.Dispatch.InFlight() > 0 {
		select {
		case <-d.ledger.Signals.Idle:
		case <-timer.C:
			return
		}
	}
}

// close closes the channel. Nothing is sent any more: the workers have ended.
func (d *dispatcher) close() { close(d.out) }
