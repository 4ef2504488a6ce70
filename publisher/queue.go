package publisher

import (
	"runtime"
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

	// Two flights a topic keep the server busy while replies are on their way. One
	// that is late, since its connection is stalled, does not count, so that it
	// does not block the topic.
	flights    = 3
	maxFlights = 8
	lateAfter  = 100 * time.Millisecond
)

// topic queues the calls of one stream and sends them in flights. An idle topic
// has no goroutine. Callers that come while all flights are out share the next
// batch; nobody waits for company.
type topic struct {
	engine *engine
	name   string
	key    any // name, as an argument of commands
	cfg    Topic
	maxlen int64

	mu        sync.Mutex
	queue     []*call
	flying    []*flight
	producers map[string]struct{}

	setup    setupState
	overflow overflow
	newest   atomic.Uint64 // when the newest known entry was added, by its ID in milliseconds
	large    atomic.Bool   // entries are large: don't have XINFO return some
	noEval   atomic.Bool   // the user may not run scripts
	worked   atomic.Int64  // when a batch was last done, in nanoseconds since the engine's start
}

// flight sends batches of a topic, one after the other, until the queue is empty.
type flight struct{ since time.Time }

func newTopic(e *engine, name string) *topic {
	t := &topic{engine: e, name: name, key: name, producers: make(map[string]struct{})}
	t.setup.busy = make(chan struct{}, 1)
	t.cfg, t.maxlen = e.cfg.forTopic(name)
	return t
}

// enqueue queues a call. Where that takes another flight, it returns it: the caller
// must have it flown.
func (t *topic) enqueue(c *call) *flight {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, c)
	if len(t.flying) >= flights {
		inTime, late := 0, time.Now().Add(-lateAfter)
		for _, f := range t.flying {
			if f.since.After(late) {
				inTime++
			}
		}
		if inTime >= flights || len(t.flying) >= maxFlights {
			return nil
		}
	}
	f := &flight{since: time.Now()}
	t.flying = append(t.flying, f)
	t.engine.running.Add(1) // the caller's begin keeps the group above zero
	return f
}

// fly sends batches until the queue is empty.
func (t *topic) fly(f *flight) {
	for t.flyOnce(f) {
		// Let the callers that were just served queue their next: the batches of a busy
		// topic get larger.
		runtime.Gosched()
	}
}

// flyFor sends a call in the goroutine of its caller, if the batch is that call: for
// those of others the caller would have to stay longer than for the own.
func (t *topic) flyFor(c *call, f *flight) {
	batch := t.take(f)
	if len(batch) == 0 {
		return // another flight has taken the call, and this one is over
	}
	if len(batch) != 1 || batch[0] != c {
		go func() {
			t.send(batch)
			t.fly(f)
		}()
		return
	}
	t.send(batch)
	if !t.land(f) {
		go t.fly(f)
	}
}

// flyOnce sends a batch. It is false when there is none: the flight is over.
func (t *topic) flyOnce(f *flight) bool {
	batch := t.take(f)
	t.send(batch)
	return len(batch) > 0
}

func (t *topic) send(batch []*call) {
	defer t.rescue(batch)
	switch len(batch) {
	case 0:
	case 1:
		t.sendCall(batch[0])
	default:
		t.sendParts(wholeCalls(batch))
	}
}

// take returns the calls of the next batch, nil when there are none; then the
// flight is over. A call that fills a batch is taken alone.
func (t *topic) take(f *flight) []*call {
	t.mu.Lock()
	defer t.mu.Unlock()
	messages, bytes, n := 0, 0, 0
	for ; n < len(t.queue); n++ {
		c := t.queue[n]
		messages += len(c.items)
		bytes += c.bytes()
		if n > 0 && (messages > batchMessages || bytes > batchBytes) {
			break
		}
	}
	if n == 0 {
		t.remove(f)
		return nil
	}
	batch := slices.Clone(t.queue[:n])
	t.queue = slices.Delete(t.queue, 0, n)
	f.since = time.Now()
	return batch
}

// dequeue takes out a call that nobody waits for any more, if it is still queued.
func (t *topic) dequeue(c *call) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if i := slices.Index(t.queue, c); i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	}
}

// land ends a flight if the queue is empty.
func (t *topic) land(f *flight) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) > 0 {
		return false
	}
	t.remove(f)
	return true
}

// remove takes a flight out. The caller holds t.mu.
func (t *topic) remove(f *flight) {
	t.flying = slices.DeleteFunc(t.flying, func(other *flight) bool { return other == f })
	t.engine.running.Done()
}

func (c *call) bytes() int {
	n := 0
	for i := range c.items {
		n += c.items[i].size
	}
	return n
}

// part is what a batch has of one call.
type part struct {
	call       *call
	start, end int
}

func (p part) items() []item { return p.call.items[p.start:p.end] }

// appendOpen adds the items that are not done. The caller holds the call's mu.
func (p part) appendOpen(list []*item) []*item {
	items := p.items()
	for i := range items {
		if !items[i].done {
			list = append(list, &items[i])
		}
	}
	return list
}

func wholeCalls(calls []*call) []part {
	parts := make([]part, len(calls))
	for i, c := range calls {
		parts[i] = part{call: c, end: len(c.items)}
	}
	return parts
}

// sendCall sends one call in as many batches as it takes, in order. When a batch
// is not in the stream, nothing behind it is sent: it would be out of order.
func (t *topic) sendCall(c *call) {
	for start := 0; start < len(c.items); {
		end, bytes := start, 0
		for end < len(c.items) && end-start < batchMessages {
			if bytes += c.items[end].size; bytes > batchBytes && end > start {
				break
			}
			end++
		}
		t.sendParts([]part{{c, start, end}})
		if err := c.firstGap(start, end); err != nil {
			c.finishAll(t.engine, c.items[end:], func(_ *item, r *Receipt) { r.Err = becauseOf(err) })
			return
		}
		start = end
	}
}
