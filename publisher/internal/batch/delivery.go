package batch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cenkalti/backoff/v5"
)

// outageAfter is how long nothing must have succeeded until it is an outage: a reply that
// was lost is none.
const outageAfter = 100 * time.Millisecond

// delivery sends the parts of a batch until all of their items are done.
type delivery struct {
	queue    *Queue
	ctx      context.Context //nolint:containedctx // of the batch, from the first append to the last
	deadline time.Time
	pause    backoff.ExponentialBackOff

	stale    bool      // the last failure was that the stream is not as it was set up
	failures int       // in a row
	since    time.Time // when the first of them was
	reason   error     // the last one that says more than that time was up
}

// deliver sends the parts in one transaction, and again under the same IDs until all
// items are done.
func (q *Queue) deliver(parts []part) {
	d := delivery{queue: q, deadline: q.runner.deadline(parts)}
	if !time.Now().Before(d.deadline) { // it has waited for those before it
		failAll(parts, fmt.Errorf("%w: %w", errRetryEnded, errNoConnection))
		return
	}
	var cancel context.CancelFunc
	d.ctx, cancel = q.runner.context(parts[0].call, d.deadline)
	defer cancel()
	d.pause = backoff.ExponentialBackOff{
		InitialInterval: 2 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 250 * time.Millisecond,
	}
	d.pause.Reset()
	d.run(parts)
}

// run sends groups of parts, at first one of all. A group that fails is halved: what one
// caller's messages did to the connection, or were refused for, must not fail the
// others'.
func (d *delivery) run(parts []part) {
	q := d.queue
	groups := [][]part{parts}
	for attempt := 1; len(groups) > 0; attempt++ {
		group := slices.DeleteFunc(groups[0], part.endIfAbandoned)
		groups = groups[1:]
		if len(group) == 0 {
			continue
		}
		asked := q.runner.elapsed()
		err := d.try(group)
		if err == nil {
			q.succeeded()
			d.stale, d.failures = false, 0
			continue
		}
		class, err := d.classify(err)
		if class == Final && len(group) == 1 {
			failAll(group, err)
			continue
		}
		q.observer.Retry(countOpen(group), attempt, err)
		if class == Stale && !d.stale {
			d.stale = true // a deleted stream is set up at once; waiting is for what stays wrong
			groups = append([][]part{group}, groups...)
			continue
		}
		// The others first: one that kills its connection must not keep them.
		if half := len(group) / 2; half > 0 {
			groups = append(groups, group[:half:half], group[half:])
		} else {
			groups = append(groups, group)
		}
		if d.failures++; d.failures == 1 {
			d.since = time.Now()
		}
		// One failure may be the group's own, two in a row are the server's.
		if class == Final || d.failures == 1 && len(groups) > 1 {
			continue
		}
		if d.failures > 1 && time.Since(d.since) > outageAfter {
			q.failing(asked, err)
		}
		if ended := d.wait(); ended != nil {
			failAll(slices.Concat(groups...), fmt.Errorf("%w: %w", ended, err))
			return
		}
	}
}

// classify says what an error means. Where it says only that time was up, the one before
// takes its place.
func (d *delivery) classify(err error) (Class, error) {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		err = cmp.Or(d.reason, fmt.Errorf("%w: %w", errNoConnection, err))
	}
	class := d.queue.runner.config.Classify(err)
	if class != Final {
		d.reason = err
	}
	return class, err
}

// wait pauses until the next try. The error says why there is none.
func (d *delivery) wait() error {
	pause := d.pause.NextBackOff()
	if time.Until(d.deadline) < pause {
		return errRetryEnded
	}
	if !d.queue.runner.sleep(pause) {
		return ErrClosed
	}
	return nil
}

// try sends what is open in the parts, once, and finishes the items whose outcome
// is known. A nil error means that none is open any more.
func (d *delivery) try(parts []part) error {
	session, err := d.queue.stream.Ready(d.ctx)
	if err != nil {
		return err
	}
	size := 0
	for _, p := range parts {
		size += p.end - p.start
	}
	window := session.Window()
	items := parts[0].call.oneOpen[:0]
	if size > 1 {
		items = make([]*Item, 0, size)
	}
	for _, p := range parts {
		items = p.prepare(session, window, items)
	}
	if len(items) == 0 {
		return nil
	}
	outcomes, err := session.Append(d.ctx, items)
	if len(outcomes) == 0 && d.queue.runner.config.Classify(err) == Ambiguous {
		for _, it := range items {
			it.maybeSent = true
		}
	}
	var claimed []string
	for items = items[:len(outcomes)]; len(items) > 0; {
		c, n := items[0].call, 1
		for n < len(items) && items[n].call == c {
			n++
		}
		c.takeIn(items[:n], outcomes[:n], window, &claimed)
		items, outcomes = items[n:], outcomes[n:]
	}
	return err
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

func failAll(parts []part, err error) {
	for _, p := range parts {
		p.fail(err)
	}
}
