package storeutil

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// LeaseConfig configures a [Lease].
type LeaseConfig struct {
	// Duration of the lease, by the store's clock.
	Duration time.Duration
	// SentAt is when the request that got the lease was sent. The server's lease
	// began after that, so a local end reckoned from it comes first.
	SentAt time.Time
	// Renew extends the lease by Duration. An error that matches [ErrLeaseLost] says
	// that it is not ours any more; any other that nobody knows, and Renew is called
	// again. ctx ends when the lease does.
	Renew func(ctx context.Context) error
}

// Lease renews a claim while it is held, and ends it in time.
//
// It also ends by the local clock, at (sending of the last successful renewal) +
// Duration - margin, whether or not the server answers. A process that is cut off from
// the server never hears that it lost the claim; without the local end it would
// go on beside the one that took over:
//
//	A claims at 0 s for 30 s; the link breaks; A's renewals go unanswered;
//	A ends its handler at 27 s; the server lets B claim at 30 s.
//
// A process that is frozen beyond its lease finds that out when it runs again, before
// its result counts.
type Lease struct {
	cfg    LeaseConfig
	margin time.Duration
	cancel context.CancelCauseFunc
	caller context.Context //nolint:containedctx // for the values that renewals have

	mu    sync.Mutex
	end   time.Time   // by the local clock
	timer *time.Timer // begins the renewal, and from then on ends the lease
	over  bool        // no more renewals
	err   error
	steps []*context.CancelCauseFunc // they end the contexts of While when the lease is lost

	// Most claims end before they have to be renewed: only then there is a goroutine.
	stop context.CancelFunc // ends it, nil as long as there is none
	done chan struct{}      // closed when it has ended
}

// WithCancel is context.WithCancelCause for callers of Store.Claim, who end the context if the
// claim has not come by a time; zero, if they don't. The handler runs under it, so that it can't
// have a deadline for that. A lease that is made under this very context ends it, instead of
// one derived from it, which saves five allocations.
func WithCancel(parent context.Context, by time.Time) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(parent)
	return &cancelable{ctx, cancel, by}, cancel
}

type cancelable struct {
	context.Context //nolint:containedctx // it is one
	cancel          context.CancelCauseFunc
	by              time.Time
}

// EndsBy is when a step under ctx is not waited for any more: its deadline, or what
// [WithCancel] says; zero where neither is known. ctx may end before that.
func EndsBy(ctx context.Context) time.Time {
	by, _ := ctx.Deadline()
	if c, ok := ctx.(*cancelable); ok && !c.by.IsZero() && (by.IsZero() || c.by.Before(by)) {
		by = c.by
	}
	return by
}

// NewLease starts to renew. The context that it returns comes from ctx, or is ctx if that is
// [WithCancel]'s, and ends with the cause [ErrLeaseLost] when the lease is lost. Stop must be
// called.
func NewLease(ctx context.Context, cfg LeaseConfig) (*Lease, context.Context) {
	l := &Lease{cfg: cfg, margin: margin(cfg.Duration), caller: ctx}
	l.end = cfg.SentAt.Add(cfg.Duration - l.margin)
	if c, ok := ctx.(*cancelable); ok {
		l.cancel = c.cancel
	} else {
		ctx, l.cancel = context.WithCancelCause(ctx)
	}
	l.mu.Lock() // the timer may fire before it is assigned
	defer l.mu.Unlock()
	l.timer = time.AfterFunc(time.Until(cfg.SentAt.Add(l.every())), l.renew)
	return l, ctx
}

// every is how often the lease is renewed.
func (l *Lease) every() time.Duration { return l.cfg.Duration / 3 }

// margin is how much earlier than the server's lease a lease of this length ends
// here: a tenth, at most a second.
func margin(lease time.Duration) time.Duration { return min(lease/10, time.Second) }

// End is when the lease ends by the local clock unless it is renewed.
func (l *Lease) End() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// Err is nil while the lease is held, and an error that matches [ErrLeaseLost] when it
// was lost. It looks at the clock itself: the timer of a process that was frozen may not
// have fired yet.
func (l *Lease) Err() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err == nil && !l.over {
		l.checkClock()
	}
	return l.err
}

// While returns a context for a step that needs the claim, such as a commit. It ends with
// ctx, and when the lease is lost, then with the cause [ErrLeaseLost]. The lease is renewed
// meanwhile, unless it was stopped: then the context ends with the lease.
//
// A ctx that ends before the lease would is returned as it is. A claim that somebody else has
// before its lease is over is not noticed by it; the store refuses the step then.
func (l *Lease) While(ctx context.Context) (context.Context, context.CancelFunc) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if end, bounded := ctx.Deadline(); bounded && l.err == nil && end.Before(l.end) {
		return ctx, func() {}
	}
	if l.over {
		return context.WithDeadlineCause(ctx, l.end, errNotRenewed)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if l.err != nil {
		cancel(l.err)
	}
	l.steps = append(l.steps, &cancel)
	return ctx, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.steps = slices.DeleteFunc(l.steps, func(other *context.CancelCauseFunc) bool { return other == &cancel })
		cancel(nil)
	}
}

// Stop ends the renewal, waits for one that is on its way, and returns [Lease.Err].
// The lease itself runs on until End. The context ends only with Release.
func (l *Lease) Stop() error {
	l.mu.Lock()
	if !l.over && l.err == nil {
		l.checkClock()
	}
	l.over = true
	for _, cancel := range l.steps { // as While has it for a lease that was stopped
		time.AfterFunc(time.Until(l.end), func() { (*cancel)(errNotRenewed) })
	}
	l.timer.Stop()
	stop, done := l.stop, l.done
	l.mu.Unlock()
	if stop != nil {
		stop()
		<-done
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Release stops, and ends the context: with cause, or context.Canceled if it is nil.
func (l *Lease) Release(cause error) {
	_ = l.Stop() // Err has it
	l.cancel(cause)
}

// checkClock must be called with the lock.
func (l *Lease) checkClock() {
	if !time.Now().Before(l.end) {
		l.fail(errNotRenewed)
	}
}

var errNotRenewed = fmt.Errorf("%w: it could not be renewed in time", ErrLeaseLost)

// fail must be called with the lock.
func (l *Lease) fail(err error) {
	l.err = err
	l.timer.Stop()
	l.cancel(err)
	for _, cancel := range l.steps {
		(*cancel)(err)
	}
	if l.stop != nil {
		l.stop()
	}
}

func (l *Lease) expire() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.err != nil {
		return
	}
	// A renewal may have moved the end while the timer fired.
	if wait := time.Until(l.end); wait > 0 {
		l.timer.Reset(wait)
		return
	}
	l.checkClock()
}

// renew is the goroutine that renews, from when that is due for the first time.
func (l *Lease) renew() {
	l.mu.Lock()
	if !l.over && l.err == nil {
		l.checkClock() // the process may have been frozen
	}
	if l.over || l.err != nil {
		l.mu.Unlock()
		return
	}
	// Renewal outlives the caller's context: what ends the handler does not end the claim,
	// which is rolled back or committed after the handler has returned.
	ctx, stop := context.WithCancel(context.WithoutCancel(l.caller))
	defer stop()
	l.stop, l.done = stop, make(chan struct{})
	defer close(l.done)
	l.timer = time.AfterFunc(time.Until(l.end), l.expire)
	l.mu.Unlock()

	every, again := l.every(), l.cfg.Duration/20
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		sent := time.Now()
		// One try may hang; the next must still be in time.
		try, cancel := context.WithTimeout(ctx, max(every/2, time.Millisecond))
		err := l.cfg.Renew(try)
		cancel()
		if ctx.Err() != nil {
			return
		}
		switch {
		case err == nil:
			l.extend(sent)
			timer.Reset(max(time.Until(sent.Add(every)), 0))
		case errors.Is(err, ErrLeaseLost):
			l.mu.Lock()
			if !l.over && l.err == nil {
				l.fail(err)
			}
			l.mu.Unlock()
			return
		default:
			timer.Reset(again)
		}
	}
}

// extend moves the local end.
func (l *Lease) extend(sent time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.over || l.err != nil {
		return
	}
	// A process that was frozen between the reply and here must not revive a lease
	// that has run out meanwhile: its end was reported already, or is due.
	if end := sent.Add(l.cfg.Duration - l.margin); end.After(l.end) {
		l.end = end
	}
	l.timer.Reset(max(time.Until(l.end), 0))
}
