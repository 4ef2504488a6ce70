package subscriber

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// logEvery is how often an outage that goes on is logged.
const logEvery = 30 * time.Second

// What a subscription asks of the server. Each fails and is over by itself: where one
// right is missing the others go on, and must not tell that all is well.
const (
	doRead     = "read"
	doCommit   = "acknowledge"
	doRenew    = "renew"
	doTakeOver = "take over"
	doFetch    = "fetch"
	doLook     = "look after the group"
)

// outage remembers what the server does not do, for all goroutines of a subscription
// together, so that one fault makes few log lines.
type outage struct {
	report func(err error, lasted time.Duration) // logs and calls hooks
	// forgetAfter is when a failure is no longer true that was not repeated: what it was
	// about need not be done any more.
	forgetAfter time.Duration

	mu     sync.Mutex
	faults map[string]fault
	since  time.Time // of the outage: any fault
	logged time.Time
}

type fault struct {
	err         error
	since, last time.Time
}

// failed notes a failed command.
func (o *outage) failed(what string, err error) {
	now := time.Now()
	o.mu.Lock()
	o.forget(now)
	tell := now.Sub(o.logged) >= logEvery
	if len(o.faults) == 0 {
		o.faults, o.since, tell = make(map[string]fault), now, true
	}
	f, known := o.faults[what]
	if !known {
		f.since = now
	}
	f.err, f.last = err, now
	o.faults[what] = f
	if tell {
		o.logged = now
	}
	lasted := now.Sub(o.since)
	o.mu.Unlock()
	if tell {
		o.report(fmt.Errorf("%s: %w", what, err), lasted)
	}
}

// over notes that something was done. It is called after every read, so it is cheap
// while all is well.
func (o *outage) over(what string) {
	o.mu.Lock()
	if len(o.faults) == 0 {
		o.mu.Unlock()
		return
	}
	delete(o.faults, what)
	o.forget(time.Now())
	ended, lasted := len(o.faults) == 0, time.Since(o.since)
	o.mu.Unlock()
	if ended {
		o.report(nil, lasted)
	}
}

func (o *outage) forget(now time.Time) {
	for what, f := range o.faults {
		if now.Sub(f.last) > o.forgetAfter {
			delete(o.faults, what)
		}
	}
}

func (o *outage) health() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	var faults []error
	for what, f := range o.faults {
		if time.Since(f.last) > o.forgetAfter {
			continue
		}
		faults = append(faults, fmt.Errorf("%s, for %v: %w", what, time.Since(f.since).Round(time.Millisecond), f.err))
	}
	slices.SortFunc(faults, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	return errors.Join(faults...)
}
