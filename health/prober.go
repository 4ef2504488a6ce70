package health

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/internal/redact"
)

// prober has the checks of liveness or of readiness, and their last answer.
type prober struct {
	checks   []*checker
	timeout  time.Duration
	cacheFor time.Duration
	hide     bool

	mu   sync.Mutex
	last *run // nil before the first probe
}

func newProber(cfg Config, checks []Check) *prober {
	p := &prober{timeout: cfg.Timeout, cacheFor: cfg.CacheFor, hide: cfg.HideErrors}
	for _, check := range checks {
		p.checks = append(p.checks, &checker{Check: check, onChange: cfg.OnChange})
	}
	return p
}

// run is one run of all checks.
type run struct {
	ended  chan struct{}
	answer Answer    // set before ended is closed
	at     time.Time // likewise: when it ended
}

// current is the run whose answer a probe gets that comes now.
func (p *prober) current() *run {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.last != nil {
		select {
		case <-p.last.ended:
			if time.Since(p.last.at) < p.cacheFor {
				return p.last
			}
		default:
			return p.last
		}
	}
	p.last = &run{ended: make(chan struct{})}
	// Not in a probe's goroutine, nor under its context: others wait for it, too.
	go p.check(p.last)
	return p.last
}

func (p *prober) check(r *run) {
	defer close(r.ended)
	ctx, cancel := context.WithTimeout(context.Background(), p.timeout)
	defer cancel()
	results := make([]Result, len(p.checks))
	var all sync.WaitGroup
	for i, c := range p.checks {
		all.Go(func() { results[i] = c.result(ctx, p.timeout, p.hide) })
	}
	all.Wait() // no longer than ctx: result does not wait for what heeds no context
	r.at = time.Now()
	r.answer = Answer{Status: StatusOK, CheckedAt: r.at.UTC(), Checks: results}
	for _, result := range results {
		if result.Status != StatusOK {
			r.answer.Status = StatusFailed
		}
	}
}

// checker runs one check, one run at a time.
type checker struct {
	Check

	onChange func(name string, err error)
	failed   bool // last time; runs come one after the other

	mu      sync.Mutex
	running time.Time // since when; zero while it does not
}

type outcome struct {
	warnings []string
	err      error
}

// result runs the check, and does not wait longer than ctx.
func (c *checker) result(ctx context.Context, timeout time.Duration, hide bool) Result {
	began := time.Now()
	out := c.outcome(ctx, timeout)
	failed := out.err != nil
	if failed != c.failed && c.onChange != nil {
		if err := c.report(out.err); err != nil {
			out.warnings = append(out.warnings, err.Error())
		}
	}
	c.failed = failed
	r := Result{Name: c.Name, Status: StatusOK, Milliseconds: time.Since(began).Milliseconds()}
	if failed {
		r.Status = StatusFailed
	}
	if hide {
		return r
	}
	if failed {
		r.Error = redact.Clean(out.err.Error())
	}
	for _, w := range out.warnings {
		r.Warnings = append(r.Warnings, redact.Clean(w))
	}
	return r
}

// report calls the user's hook, in a goroutine in which nobody else would recover.
func (c *checker) report(failure error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("OnChange panicked: %v", v)
		}
	}()
	c.onChange(c.Name, failure)
	return nil
}

func (c *checker) outcome(ctx context.Context, timeout time.Duration) outcome {
	c.mu.Lock()
	since := c.running
	if since.IsZero() {
		c.running = time.Now()
	}
	c.mu.Unlock()
	if !since.IsZero() {
		return outcome{err: fmt.Errorf("it has not answered since %s, and does not end with its context", since.UTC().Format(time.RFC3339))}
	}
	got := make(chan outcome, 1)
	go func() {
		out := c.run(ctx)
		c.mu.Lock()
		c.running = time.Time{}
		c.mu.Unlock()
		got <- out
	}()
	select {
	case out := <-got:
		return out
	case <-ctx.Done():
	}
	select {
	case out := <-got: // at the last moment
		return out
	default:
		return outcome{err: fmt.Errorf("it did not answer within %v", timeout)}
	}
}

// run calls the user's function, whose panic is a failure of the check and not of the
// process.
func (c *checker) run(ctx context.Context) (out outcome) {
	finished := false
	defer func() {
		switch v := recover(); {
		case v != nil:
			out = outcome{err: fmt.Errorf("the check panicked: %v", v)}
		case !finished: // runtime.Goexit
			out = outcome{err: errors.New("the check has ended its goroutine")}
		}
	}()
	out.warnings, out.err = c.Run(ctx)
	finished = true
	return out
}
