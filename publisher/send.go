package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

var (
	errGivenUp    = errors.New("the caller has given up")
	errRetryEnded = errors.New("no try succeeded within Config.RetryFor")

	errWindowPassed = errors.New("the window has nearly passed since the first try, and another could be added again")
	errAddedLate    = errors.New("the window has passed between the first try and the one that added it: it may be in the stream twice")
	errContended    = errors.New("others kept changing the topic's layout record")
	errSlotMoves    = errors.New("the topic's slot is on its way to another node of the cluster, and the topic can't be set up before it is there")
	errNoConnection = errors.New("the client had no free connection")

	// errStale: the stream is not there, or the layout is not the known one. Nothing
	// was written; set up and send again.
	errStale = errors.New("stream or layout is not as it was set up")
)

// outageAfter is how long nothing must have succeeded until it is an outage: a reply that
// was lost is none.
const outageAfter = 100 * time.Millisecond

// sendParts sends the parts in one transaction, and again under the same IDs until
// all items are done. A group of parts that fails is halved: what one caller's
// messages did to the connection, or were refused for, must not fail the others'.
func (t *topic) sendParts(parts []part) {
	e := t.engine
	deadline := e.deadline(parts)
	if !time.Now().Before(deadline) { // it has waited for those before it
		t.fail(parts, fmt.Errorf("%w: %w", errRetryEnded, errNoConnection))
		return
	}
	ctx, cancel := e.batchContext(parts[0].call, deadline)
	defer cancel()
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 2 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 250 * time.Millisecond,
	}
	pause.Reset()
	stale, failures := false, 0
	var reason error      // the last one that says more than that time was up
	var failing time.Time // since when
	groups := [][]part{parts}
	for attempt := 1; len(groups) > 0; attempt++ {
		group := slices.DeleteFunc(groups[0], t.isGivenUp)
		groups = groups[1:]
		if len(group) == 0 {
			continue
		}
		asked := time.Since(e.start)
		err := t.try(ctx, group)
		if err == nil {
			t.worked.Store(int64(time.Since(e.start)))
			e.sending()
			stale, failures = false, 0
			continue
		}
		if isAny(err, context.DeadlineExceeded, context.Canceled) {
			err = cmp.Or(reason, fmt.Errorf("%w: %w", errNoConnection, err))
		}
		isFinal := classify(err) == server.Final
		if !isFinal {
			reason = err
		}
		if isFinal && len(group) == 1 {
			t.fail(group, err)
			continue
		}
		e.onRetry(RetryEvent{Topic: t.name, Messages: countOpen(group), Attempt: attempt, Err: err})
		e.logger.Debug("Publishing again", watermill.LogFields{"topic": t.name, "attempt": attempt, "error": err.Error()})
		if errors.Is(err, errStale) && !stale {
			stale = true // a deleted stream is set up at once; waiting is for what stays wrong
			groups = append([][]part{group}, groups...)
			continue
		}
		// The others first: one that kills its connection must not keep them.
		if half := len(group) / 2; half > 0 {
			groups = append(groups, group[:half:half], group[half:])
		} else {
			groups = append(groups, group)
		}
		if failures == 0 {
			failing = time.Now()
		}
		// One failure may be the group's own, two in a row are the server's.
		if failures++; isFinal || failures == 1 && len(groups) > 1 {
			continue
		}
		// Another flight may have got through since this one asked.
		if failures > 1 && time.Since(failing) > outageAfter && int64(asked) > t.worked.Load() {
			e.trying(t.name, err)
		}
		wait := pause.NextBackOff()
		if time.Until(deadline) < wait {
			t.fail(slices.Concat(groups...), fmt.Errorf("%w: %w", errRetryEnded, err))
			return
		}
		if !e.sleep(wait) {
			t.fail(slices.Concat(groups...), fmt.Errorf("%w: %w", ErrClosed, err))
			return
		}
	}
}

// deadline is when a batch is given up: the first one of a call counts from the beginning
// of the call, which may have waited for other batches.
func (e *engine) deadline(parts []part) time.Time {
	var from time.Time
	for _, p := range parts {
		began := time.Now()
		if p.start == 0 {
			began = p.call.begun
		}
		if began.After(from) {
			from = began
		}
	}
	return from.Add(e.cfg.RetryFor)
}

// batchContext is that of a batch's commands: with the values of the call's context, of the
// first one's where several share the batch, for hooks of the client that trace. It ends
// at the deadline, which bounds how long a try waits for a connection, and when Close
// gives up; but not with the caller's, since others' messages may be in the batch.
func (e *engine) batchContext(c *call, deadline time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(c.ctx), deadline)
	stop := context.AfterFunc(e.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}

// try sends what is open in the parts, once, and finishes the items whose outcome
// is known. A nil error means that none is open any more.
func (t *topic) try(ctx context.Context, parts []part) error {
	st, err := t.ready(ctx)
	if err != nil {
		return t.explain(err)
	}
	size := 0
	for _, p := range parts {
		size += p.end - p.start
	}
	items := make([]*item, 0, size)
	from := make([]int, len(parts)+1)
	for i, p := range parts {
		items = t.board(st, p, items)
		from[i+1] = len(items)
	}
	if len(items) == 0 {
		return nil
	}
	outcomes, err := t.exec(ctx, st, items)
	for i, p := range parts {
		end := min(from[i+1], len(outcomes))
		t.finishKnown(p.call, items[from[i]:max(end, from[i])], outcomes[min(from[i], end):end])
	}
	if errors.Is(err, errStale) || server.MayBeAnother(err) {
		t.setup.forget(st)
	}
	return t.explain(err)
}

// finishKnown finishes the items whose outcome is known.
func (t *topic) finishKnown(c *call, items []*item, outcomes []outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, o := range outcomes {
		if o.known {
			c.finish(t.engine, items[i], func(r *Receipt) { t.report(r, items[i], o) })
		}
	}
}

// isGivenUp tells whether nobody waits for a part any more, and ends it then.
func (t *topic) isGivenUp(p part) bool {
	p.call.mu.Lock()
	abandoned := p.call.abandoned
	p.call.mu.Unlock()
	if abandoned {
		t.fail([]part{p}, errGivenUp)
	}
	return abandoned
}

// board adds the open items of a part to list and notes how they are sent. Those of a
// caller who is gone stay behind: what was never sent is done already, and the outcome
// of the others remains unknown.
func (t *topic) board(st *state, p part, list []*item) []*item {
	c := p.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned {
		for _, it := range p.appendOpen(nil) {
			c.finish(t.engine, it, func(r *Receipt) { describe(r, it); r.Err = ErrOutcomeUnknown })
		}
		return list
	}
	c.sent = max(c.sent, p.end)
	before := len(list)
	list = p.appendOpen(list)
	for i := before; i < len(list); i++ {
		it := list[i]
		// A resend must come well before the server forgets the first try.
		if it.lost && time.Since(it.sent1) > st.window.Duration*9/10 {
			c.finish(t.engine, it, func(r *Receipt) {
				describe(r, it)
				r.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, errWindowPassed)
			})
			list = slices.Delete(list, i, i+1)
			i--
			continue
		}
		if it.attempts == 0 {
			it.sent1 = time.Now()
		}
		it.mode = st.layout.Mode
		it.shardID = st.shardID(it.producer, shardOf(it.receipt.Key, st.layout.Shards))
		it.attempts++
	}
	return list
}

func countOpen(parts []part) int {
	n := 0
	for _, p := range parts {
		p.call.mu.Lock()
		n += len(p.appendOpen(nil))
		p.call.mu.Unlock()
	}
	return n
}

// fail ends the open items of parts. Those that may have been written are unknown,
// the others were not sent.
func (t *topic) fail(parts []part, err error) {
	for _, p := range parts {
		p.call.finishAll(t.engine, p.items(), func(it *item, r *Receipt) {
			describe(r, it)
			if it.lost {
				r.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
			} else {
				r.Err = notSent(err)
			}
		})
	}
}

// finishAll finishes those of a call's items that are not done.
func (c *call) finishAll(e *engine, items []item, set func(*item, *Receipt)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range items {
		c.finish(e, &items[i], func(r *Receipt) { set(&items[i], r) })
	}
}

// firstGap returns the error of the first item that is not in the stream. A
// conflict is no gap: its original is there.
func (c *call) firstGap(start, end int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := start; i < end; i++ {
		if err := c.items[i].receipt.Err; err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return nil
}

// sleep waits; it is false when Close has given up meanwhile.
func (e *engine) sleep(d time.Duration) bool {
	return wait.For(e.ctx, nil, d)
}

// trying tells the log, once, that an outage has begun.
func (e *engine) trying(topic string, err error) {
	if !e.away.Swap(true) {
		e.logger.Error("Redis is unavailable or refuses commands; publishing is tried again until RetryFor", err, watermill.LogFields{"topic": topic, "retry_for": e.cfg.RetryFor.String()})
	}
}

// sending tells the log that it is over.
func (e *engine) sending() {
	if e.away.Load() && e.away.Swap(false) {
		e.logger.Info("Publishing works again", nil)
	}
}
