package publisher

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/cenkalti/backoff/v5"

	"github.com/onceward/watermill-idempotent/internal/server"
)

var (
	errBehindFailed = errors.New("an earlier message of the call failed, and order would be lost")
	errRetryEnded   = errors.New("no try succeeded within Config.RetryFor")

	// errStale: the stream is not there, or the layout is not the known one. Nothing
	// was written; set up and send again.
	errStale = errors.New("stream or layout is not as it was set up")
)

// sendParts sends the parts in one transaction, and again under the same IDs until
// all items are done. After a failure each part goes alone: what one caller's
// messages did to the connection, or were refused for, must not fail the others'.
func (t *topic) sendParts(parts []part) {
	e := t.engine
	deadline := time.Now().Add(e.cfg.RetryFor)
	pause := &backoff.ExponentialBackOff{
		InitialInterval: 2 * time.Millisecond, RandomizationFactor: 0.5, Multiplier: 2, MaxInterval: 250 * time.Millisecond,
	}
	pause.Reset()
	stale := false
	for attempt := 1; len(parts) > 0; attempt++ {
		group := parts
		if attempt > 1 {
			group = parts[:1]
		}
		err := t.try(group)
		if err == nil {
			parts = parts[len(group):]
			stale = false
			continue
		}
		if classify(err) == server.Final {
			if len(group) == 1 {
				t.fail(group, err)
				parts = parts[1:]
			}
			continue
		}
		e.onRetry(RetryEvent{Topic: t.name, Messages: countOpen(group), Attempt: attempt, Err: err})
		e.logger.Debug("Publishing again", watermill.LogFields{"topic": t.name, "attempt": attempt, "error": err.Error()})
		if errors.Is(err, errStale) && !stale {
			stale = true // a deleted stream is set up at once; waiting is for what stays wrong
			continue
		}
		// The next part first: one that kills its connection must not keep the others.
		parts = append(parts[1:len(parts):len(parts)], parts[0])
		wait := pause.NextBackOff()
		if time.Until(deadline) < wait {
			t.fail(parts, fmt.Errorf("%w: %w", errRetryEnded, err))
			return
		}
		if !e.sleep(wait) {
			t.fail(parts, fmt.Errorf("%w: %w", ErrClosed, err))
			return
		}
	}
}

// try sends what is open in the parts, once, and finishes the items whose outcome
// is known. A nil error means that none is open any more.
func (t *topic) try(parts []part) error {
	st, err := t.ready()
	if err != nil {
		return err
	}
	var items []*item
	from := make([]int, len(parts)+1)
	for i, p := range parts {
		items = append(items, t.board(p)...)
		from[i+1] = len(items)
	}
	if len(items) == 0 {
		return nil
	}
	outcomes, err := t.exec(st, items)
	for i, p := range parts {
		p.call.mu.Lock()
		for n := from[i]; n < from[i+1] && n < len(outcomes); n++ {
			if o := outcomes[n]; o.known {
				p.call.finish(t.engine, items[n], func(r *Receipt) { t.report(r, items[n], o) })
			}
		}
		p.call.mu.Unlock()
	}
	if errors.Is(err, errStale) {
		t.setup.forget(st)
	}
	return err
}

// board takes the open items of a part along and marks them as sent. The items of
// a caller who is gone stay behind: those never sent are done, and the outcome of
// the others remains unknown.
func (t *topic) board(p part) []*item {
	c := p.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned {
		for _, it := range p.items() {
			c.finish(t.engine, it, func(r *Receipt) { describe(r, it); r.Err = ErrOutcomeUnknown })
		}
		return nil
	}
	c.sent = max(c.sent, p.end)
	return p.open()
}

func (p part) open() []*item {
	return slices.DeleteFunc(slices.Clone(p.items()), func(it *item) bool { return it.done })
}

func countOpen(parts []part) int {
	n := 0
	for _, p := range parts {
		p.call.mu.Lock()
		n += len(p.open())
		p.call.mu.Unlock()
	}
	return n
}

// fail ends the open items of parts. Those that may have been written are unknown,
// the others were not sent.
func (t *topic) fail(parts []part, err error) {
	for _, p := range parts {
		p.call.mu.Lock()
		for _, it := range p.items() {
			p.call.finish(t.engine, it, func(r *Receipt) {
				describe(r, it)
				if it.lost {
					r.Err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)
				} else {
					r.Err = notSent(err)
				}
			})
		}
		p.call.mu.Unlock()
	}
}

// firstGap returns the error of the first item that is not in the stream. A
// conflict is no gap: its original is there.
func (c *call) firstGap(start, end int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, it := range c.items[start:end] {
		if err := it.receipt.Err; err != nil && !errors.Is(err, ErrConflict) {
			return err
		}
	}
	return nil
}

// sleep waits; it is false when Close has given up meanwhile.
func (e *engine) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-e.ctx.Done():
		return false
	}
}
