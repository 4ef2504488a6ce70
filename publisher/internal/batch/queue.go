package batch

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// A batch is one transaction: large enough to be fast, small enough not to hold
	// up other clients of the server.
	batchMessages = 256
	batchBytes    = 4 << 20

	// Senders is how many a queue has at once: they keep the server busy while replies
	// are on their way. One that is late, since its connection is stalled, does not
	// count, so that it does not block the queue.
	Senders    = 3
	maxSenders = 8
	lateAfter  = 100 * time.Millisecond
)

// Queue has the calls of one stream that wait to be sent. An idle queue has no
// goroutine. Callers that come while all senders are out share the next batch; nobody
// waits for company.
type Queue struct {
	runner   *Runner
	stream   Stream
	observer Observer
	worked   atomic.Int64 // when an append last succeeded, in nanoseconds since the runner's start

	mu      sync.Mutex
	calls   []*Call
	senders []*sender
}

// NewQueue makes a queue.
func NewQueue(r *Runner, stream Stream, observer Observer) *Queue {
	return &Queue{runner: r, stream: stream, observer: observer}
}

// Send sends the items of a call and waits for them, or for ctx. It hands one result an
// item to receive. The call was begun at the Runner.
func (q *Queue) Send(ctx context.Context, c *Call, receive func(i int, r Result)) {
	c.ctx, c.observer = ctx, q.observer
	for i := range c.Items {
		c.Items[i].call = c
	}
	if ctx.Err() == nil {
		switch s := q.enqueue(c); {
		case s != nil && ctx.Done() == nil && q.runner.config.Bounded:
			// A caller that can't give up sends by itself: two goroutines would only
			// wake each other up.
			s.runFor(c)
		case s != nil:
			go s.run()
		}
		select {
		case <-c.finished:
		case <-ctx.Done():
			q.dequeue(c)
		case <-q.runner.gone:
			c.leave(ErrClosed, receive)
			return
		}
	}
	c.leave(context.Cause(ctx), receive)
}

// Idle reports whether nothing is queued or being sent.
func (q *Queue) Idle() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.calls) == 0 && len(q.senders) == 0
}

// enqueue queues a call. Where that takes another sender, it returns it: the caller
// must have it run.
func (q *Queue) enqueue(c *Call) *sender {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.calls = append(q.calls, c)
	if len(q.senders) >= Senders {
		inTime, late := 0, time.Now().Add(-lateAfter)
		for _, s := range q.senders {
			if s.since.After(late) {
				inTime++
			}
		}
		if inTime >= Senders || len(q.senders) >= maxSenders {
			return nil
		}
	}
	s := &sender{queue: q, since: time.Now()}
	q.senders = append(q.senders, s)
	q.runner.running.Add(1) // the caller's Begin keeps the group above zero
	return s
}

// take returns the calls of the next batch, nil when there are none; then the
// sender has ended. A call that fills a batch is taken alone.
func (q *Queue) take(s *sender) []*Call {
	q.mu.Lock()
	defer q.mu.Unlock()
	messages, bytes, n := 0, 0, 0
	for ; n < len(q.calls); n++ {
		c := q.calls[n]
		messages += len(c.Items)
		bytes += c.bytes()
		if n > 0 && (messages > batchMessages || bytes > batchBytes) {
			break
		}
	}
	if n == 0 {
		q.remove(s)
		return nil
	}
	batch := slices.Clone(q.calls[:n])
	q.calls = slices.Delete(q.calls, 0, n)
	s.since = time.Now()
	return batch
}

// dequeue takes out a call that nobody waits for any more, if it is still queued.
func (q *Queue) dequeue(c *Call) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if i := slices.Index(q.calls, c); i >= 0 {
		q.calls = slices.Delete(q.calls, i, i+1)
	}
}

// endIfEmpty ends a sender if nothing is queued.
func (q *Queue) endIfEmpty(s *sender) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.calls) > 0 {
		return false
	}
	q.remove(s)
	return true
}

// remove takes a sender out. The caller holds q.mu.
func (q *Queue) remove(s *sender) {
	q.senders = slices.DeleteFunc(q.senders, func(other *sender) bool { return other == s })
	q.runner.running.Done()
}

// succeeded notes that an append got through.
func (q *Queue) succeeded() {
	q.worked.Store(int64(q.runner.elapsed()))
	if away := &q.runner.away; away.Load() && away.Swap(false) {
		q.observer.Recovered()
	}
}

// failing reports an outage, once, unless another sender has got through since the
// time asked.
func (q *Queue) failing(asked time.Duration, err error) {
	if int64(asked) > q.worked.Load() && !q.runner.away.Swap(true) {
		q.observer.Outage(err)
	}
}
