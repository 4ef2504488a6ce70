package batch

import (
	"fmt"
	"runtime"
	"runtime/debug"
	"time"
)

// sender sends batches of a queue, one after the other, until that is empty.
type sender struct {
	queue *Queue
	since time.Time // when it took its batch; guarded by the queue
}

func (s *sender) run() {
	for s.runOnce() {
		// Let the callers that were just served queue their next: the batches of a busy
		// topic get larger.
		runtime.Gosched()
	}
}

// runOnce sends a batch. It is false when there is none: the sender has ended.
func (s *sender) runOnce() bool {
	batch := s.queue.take(s)
	s.send(batch)
	return len(batch) > 0
}

// runFor sends a call in the goroutine of its caller, if the batch is that call: for
// those of others the caller would have to stay longer than for the own.
func (s *sender) runFor(c *Call) {
	batch := s.queue.take(s)
	if len(batch) == 0 {
		return // another sender has taken the call
	}
	if len(batch) != 1 || batch[0] != c {
		go func() {
			s.send(batch)
			s.run()
		}()
		return
	}
	s.send(batch)
	if !s.queue.endIfEmpty(s) {
		go s.run()
	}
}

func (s *sender) send(batch []*Call) {
	defer s.rescue(batch)
	switch len(batch) {
	case 0:
	case 1:
		s.sendCall(batch[0])
	default:
		parts := make([]part, len(batch))
		for i, c := range batch {
			parts[i] = part{call: c, end: len(c.Items)}
		}
		s.queue.deliver(parts)
	}
}

// sendCall sends one call in as many batches as it takes, in order. When a batch
// is not in the stream, nothing behind it is sent: it would be out of order.
func (s *sender) sendCall(c *Call) {
	for start := 0; start < len(c.Items); {
		end, bytes := start, 0
		for end < len(c.Items) && end-start < batchMessages {
			if bytes += c.Items[end].Size; bytes > batchBytes && end > start {
				break
			}
			end++
		}
		s.queue.deliver([]part{{c, start, end}})
		if err := c.firstGap(start, end); err != nil {
			c.finishOpen(c.Items[end:], func(*Item) Outcome { return givenUp(false, ErrOther) })
			return
		}
		start = end
	}
}

// rescue ends the calls of a batch whose sending panicked, in a hook of the client or a
// logger for example: nobody else would recover in a goroutine of ours, and the process
// would end. The sender goes on with the next batch.
func (s *sender) rescue(batch []*Call) {
	p := recover()
	if p == nil {
		return
	}
	stack := debug.Stack()
	err := fmt.Errorf("%w: %v", ErrPanicked, p)
	for _, c := range batch {
		for i := range c.Items {
			c.failItem(i, err)
		}
	}
	defer func() { _ = recover() }() // of the observer, which may be what panicked
	s.queue.observer.Panicked(err, stack)
}

// failItem ends an item that is open. What was handed to the stream may be in it, wherever
// it panicked.
func (c *Call) failItem(i int, err error) {
	defer func() { _ = recover() }() // of the observer, again
	c.finishOpen(c.Items[i:i+1], func(it *Item) Outcome { return givenUp(it.attempts > 0, err) })
}
