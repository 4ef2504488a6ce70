package subscriber

import (
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
)

// logEvery is how often an outage that goes on is logged.
const logEvery = 30 * time.Second

// outage remembers that the server is out of reach or refuses, for all goroutines of a
// subscription together, so that one fault makes few log lines.
type outage struct {
	report func(err error, since time.Duration) // logs and calls hooks

	mu     sync.Mutex
	err    error
	since  time.Time
	logged time.Time
}

// failed notes a failed command.
func (o *outage) failed(err error) {
	now := time.Now()
	o.mu.Lock()
	first := o.err == nil
	if first {
		o.since = now
	}
	o.err = err
	tell := first || now.Sub(o.logged) >= logEvery
	if tell {
		o.logged = now
	}
	since := now.Sub(o.since)
	o.mu.Unlock()
	if tell {
		o.report(err, since)
	}
}

// over notes that the server answers. It is called after every read, so it is cheap
// while all is well.
func (o *outage) over() {
	o.mu.Lock()
	if o.err == nil {
		o.mu.Unlock()
		return
	}
	o.err = nil
	since := time.Since(o.since)
	o.mu.Unlock()
	o.report(nil, since)
}

func (o *outage) health() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		return nil
	}
	return fmt.Errorf("for %v: %w", time.Since(o.since).Round(time.Millisecond), o.err)
}

func (s *subscription) reportOutage(err error, since time.Duration) {
	if err != nil {
		s.logger.Error("The server is out of reach or refuses; trying on", err, s.fields(watermill.LogFields{"for": since.String()}))
	} else {
		s.logger.Info("The server answers again", s.fields(watermill.LogFields{"after": since.String()}))
	}
	each(s.cfg.Hooks, func(h Hooks) func(OutageEvent) { return h.OnOutage },
		OutageEvent{Topic: s.topic, Group: s.cfg.Group, Err: err, For: since})
}
