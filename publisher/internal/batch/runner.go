// Package batch sends the items of calls to a stream in batches. It queues calls, sends
// them again while that helps, keeps one caller's fault from the others, and ends what
// nobody waits for. It knows no server: see [Stream].
package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/onceward/watermill-idempotent/internal/wait"
)

// Config is common to all queues of a [Runner].
type Config struct {
	// RetryFor bounds how long a batch is sent again.
	RetryFor time.Duration
	// Classify says what an error means.
	Classify func(error) Class
	// Bounded means that an append ends in time whatever its context.
	Bounded bool
}

// Runner is what the queues of a publisher have in common: how long they live, and
// whether the server is away.
type Runner struct {
	config Config
	start  time.Time
	away   atomic.Bool // an outage was reported

	// ctx belongs to the senders: a caller's context ends only the caller's waiting. It
	// ends when Close gives up waiting.
	ctx  context.Context //nolint:containedctx // the lifetime of the senders' goroutines, not of a call
	stop context.CancelFunc

	gone   chan struct{} // closed when Close returns without having waited for all
	giveUp sync.Once     // of gone: Close may be called twice

	mu      sync.Mutex
	closed  bool
	running sync.WaitGroup // calls and senders
}

// NewRunner makes a Runner.
func NewRunner(config Config) *Runner {
	r := &Runner{config: config, start: time.Now(), gone: make(chan struct{})}
	r.ctx, r.stop = context.WithCancel(context.Background())
	return r
}

// Begin registers a call; it is false once the Runner is closed. End is called when the
// call has returned.
func (r *Runner) Begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.running.Add(1)
	return true
}

// End is the counterpart of Begin.
func (r *Runner) End() { r.running.Done() }

// closeGrace is how long Close waits, after it has given up on retries, for
// commands that are waiting for a reply. It is above go-redis' default read
// time-out of three seconds.
const closeGrace = 5 * time.Second

// Close refuses further calls and waits for those that were begun.
func (r *Runner) Close() error {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	done := make(chan struct{})
	go func() {
		r.running.Wait()
		close(done)
	}()
	defer r.stop()
	select {
	case <-done:
		return nil
	case <-time.After(r.config.RetryFor):
	}
	r.stop()
	select {
	case <-done:
		return nil
	case <-time.After(closeGrace):
		r.giveUp.Do(func() { close(r.gone) })
		return errors.New("publisher closed while commands were waiting for a reply that does not come; does the client have a read time-out?")
	}
}

// sleep waits; it is false when Close has given up meanwhile.
func (r *Runner) sleep(d time.Duration) bool { return wait.For(r.ctx, nil, d) }

// elapsed is now, as a duration since the Runner was made.
func (r *Runner) elapsed() time.Duration { return time.Since(r.start) }

// deadline is when a batch is given up: the first one of a call counts from the beginning
// of the call, which may have waited for other batches.
func (r *Runner) deadline(parts []part) time.Time {
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
	return from.Add(r.config.RetryFor)
}

// context is that of a batch's commands: with the values of the call's context, of the
// first one's where several share the batch, for hooks of the client that trace. It ends
// at the deadline, which bounds how long a try waits for a connection, and when Close
// gives up; but not with the caller's, since others' messages may be in the batch.
func (r *Runner) context(c *Call, deadline time.Time) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithDeadline(context.WithoutCancel(c.ctx), deadline)
	stop := context.AfterFunc(r.ctx, cancel)
	return ctx, func() {
		stop()
		cancel()
	}
}
