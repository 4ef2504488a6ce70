package batch

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Call is one Publish or Send. Its items go out in order. mu guards what the waiting
// caller and the sender of the items both look at.
type Call struct {
	Items []Item

	begun    time.Time
	ctx      context.Context //nolint:containedctx // the caller's: a sender takes the values, see Runner.context
	one      [1]Item         // room for the items of most calls
	oneOpen  [1]*Item        // and for the list of those that are sent
	observer Observer

	mu        sync.Mutex
	sent      int // Items[:sent] were handed to the stream
	left      int // items that are not done
	abandoned bool
	finished  chan struct{}
	added     map[string]struct{} // entries that the call has added, once hasAdded was asked
}

// NewCall makes a call of n items that has begun at that time.
func NewCall(n int, begun time.Time) *Call {
	c := &Call{begun: begun, left: n, finished: make(chan struct{})}
	if n == 1 {
		c.Items = c.one[:]
	} else {
		c.Items = make([]Item, n)
	}
	return c
}

// leave ends the caller's waiting, and hands each item's result to receive. The sender
// that may be sending the items goes on for itself; what it finds out then reaches the
// observer only.
func (c *Call) leave(cause error, receive func(i int, r Result)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.abandoned = true
	for i := range c.Items {
		it := &c.Items[i]
		if !it.done && i < c.sent {
			// The item is still the sender's, and not done.
			receive(i, it.resultOf(givenUp(true, cause)))
			continue
		}
		if !it.done {
			c.finish(it, givenUp(false, cause))
		}
		receive(i, it.result)
	}
}

// resultOf makes the result of an outcome.
func (it *Item) resultOf(o Outcome) Result {
	return Result{
		Outcome: o, ProducerID: it.ProducerID, Mode: it.Mode, Attempts: int(it.attempts),
		Resent: o.Known && it.maybeSent, Duration: time.Since(it.call.begun),
	}
}

// finish makes the result of an item final. The caller holds c.mu.
func (c *Call) finish(it *Item, o Outcome) {
	if it.done {
		return
	}
	it.done = true
	defer func() { // also when the observer panics: the caller waits for it
		if c.left--; c.left == 0 {
			close(c.finished)
		}
	}()
	it.result = it.resultOf(o)
	if c.added != nil && o.Verdict == Added {
		c.added[o.EntryID] = struct{}{}
	}
	c.observer.Done(it, &it.result)
}

// finishOpen finishes those of some items that are not done.
func (c *Call) finishOpen(items []Item, outcome func(*Item) Outcome) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range items {
		if it := &items[i]; !it.done {
			c.finish(it, outcome(it))
		}
	}
}

// hasAdded reports whether the call has added the entry before: then a second message
// with its UUID is a duplicate, not the first try of itself. It is asked for after lost
// replies only, and looks then. The caller holds c.mu.
func (c *Call) hasAdded(entryID string) bool {
	if c.added == nil {
		c.added = make(map[string]struct{})
		for i := range c.Items {
			if it := &c.Items[i]; it.done && it.result.Verdict == Added {
				c.added[it.result.EntryID] = struct{}{}
			}
		}
	}
	_, ok := c.added[entryID]
	return ok
}

// firstGap returns the error of the first item that is not in the stream. A conflict is no
// gap: its original is there.
func (c *Call) firstGap(start, end int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := start; i < end; i++ {
		it := &c.Items[i]
		if err := it.result.Err; err != nil && !it.Conflicts(&it.result.Outcome) {
			return err
		}
	}
	return nil
}

func (c *Call) bytes() int {
	n := 0
	for i := range c.Items {
		n += c.Items[i].Size
	}
	return n
}

// part is what a batch has of one call.
type part struct {
	call       *Call
	start, end int
}

func (p part) items() []Item { return p.call.Items[p.start:p.end] }

// appendOpen adds the items that are not done. The caller holds the call's mu.
func (p part) appendOpen(list []*Item) []*Item {
	items := p.items()
	for i := range items {
		if !items[i].done {
			list = append(list, &items[i])
		}
	}
	return list
}

// prepare adds the items that go out now to list, and notes how. Those of a caller who is
// gone stay behind: what was never sent is done already, and the outcome of the others
// remains unknown.
func (p part) prepare(session Session, window time.Duration, list []*Item) []*Item {
	c := p.call
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.abandoned {
		for _, it := range p.appendOpen(nil) {
			c.finish(it, Outcome{Err: ErrOutcomeUnknown})
		}
		return list
	}
	c.sent = max(c.sent, p.end)
	before := len(list)
	list = p.appendOpen(list)
	for i := before; i < len(list); i++ {
		it := list[i]
		// A resend must come well before the server forgets the first try.
		if it.maybeSent && time.Since(it.first) > window*9/10 {
			c.finish(it, Outcome{Err: fmt.Errorf("%w: %w", ErrOutcomeUnknown, errWindowPassed)})
			list = slices.Delete(list, i, i+1)
			i--
			continue
		}
		if it.attempts == 0 {
			it.first = time.Now()
		}
		session.Address(it)
		it.attempts++
	}
	return list
}

// takeIn takes in the outcomes of items of one call. claimed has the entries that items
// of this append were found to have added before.
func (c *Call) takeIn(items []*Item, outcomes []Outcome, window time.Duration, claimed *[]string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, it := range items {
		o := outcomes[i]
		if !o.Known {
			continue
		}
		if it.maybeSent {
			c.resolve(it, &o, window, claimed)
		}
		c.finish(it, o)
	}
}

// resolve completes the outcome of an item whose earlier reply was lost. The caller holds
// c.mu.
func (c *Call) resolve(it *Item, o *Outcome, window time.Duration, claimed *[]string) {
	switch {
	case o.LooksOwn && !slices.Contains(*claimed, o.EntryID) && !c.hasAdded(o.EntryID):
		*claimed = append(*claimed, o.EntryID)
		o.Verdict, o.Age = Added, 0
	case o.Verdict == Added && time.Since(it.first) > window:
		// It was sent in time, but on its way it may have waited until the server had
		// forgotten the first try.
		late := fmt.Errorf("%w: %w", ErrOutcomeUnknown, errAddedLate)
		if o.Err != nil {
			late = fmt.Errorf("%w: %w", late, o.Err)
		}
		o.Err = late
	}
}

// givenUp is the outcome of an item that is given up.
func givenUp(maybeSent bool, err error) Outcome {
	if maybeSent {
		return Outcome{Err: fmt.Errorf("%w: %w", ErrOutcomeUnknown, err)}
	}
	return Outcome{Err: NotSent(err)}
}

// fail ends the open items of a part. Those that may have been written are unknown, the
// others were not sent.
func (p part) fail(err error) {
	p.call.finishOpen(p.items(), func(it *Item) Outcome { return givenUp(it.maybeSent, err) })
}

// endIfAbandoned ends a part that nobody waits for any more, and reports whether it was
// one.
func (p part) endIfAbandoned() bool {
	p.call.mu.Lock()
	abandoned := p.call.abandoned
	p.call.mu.Unlock()
	if abandoned {
		p.fail(errGivenUp)
	}
	return abandoned
}
