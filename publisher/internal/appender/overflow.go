package appender

import (
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
)

const (
	// overflowSamples bounds what a topic remembers of the past window.
	overflowSamples = 64
	// overflowPause is the least time between two reports.
	overflowPause = time.Minute
)

// overflow notices that the server forgets ids too early. Of the ids that it ever
// added, those that it no longer tracks were forgotten; those added before the
// window's start had a right to be. If more were forgotten, a producer ID was full.
// It errs on the quiet side: what came before the first look counts as expired, and
// since the server counted at some time between our asking and its answer, which may
// be late, an id counts as old as it can be.
type overflow struct {
	mu      sync.Mutex
	samples []sample // oldest first, at least Duration/overflowSamples apart

	forgotten  int64 // how many ids the server had forgotten when we last looked
	unreported int64 // how many of those too early, since the last report
	reported   time.Time
}

type sample struct {
	asked, answered time.Time // the server counted in between
	added           int64
}

// countEvicted takes a sample, and returns how many ids are known to have been forgotten too
// early, by what the server, asked at the one time, had answered by the other.
func (o *overflow) countEvicted(asked, answered time.Time, window time.Duration, info server.StreamInfo) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.samples); n > 0 && info.IIDsAdded < o.samples[n-1].added {
		if asked.Before(o.samples[n-1].answered) {
			return 0 // overtaken by the reply of a later batch
		}
		o.samples, o.forgotten = nil, 0 // the stream was made anew, or its map cleared
	}
	if n := len(o.samples); n == 0 || asked.Sub(o.samples[n-1].asked) >= window/overflowSamples {
		o.samples = append(o.samples, sample{asked, answered, info.IIDsAdded})
	}
	// Keep one sample from inside the window in front: what was added up to it may
	// have expired.
	for len(o.samples) > 1 && answered.Sub(o.samples[1].asked) >= window {
		o.samples = o.samples[1:]
	}
	mayHaveExpired := o.samples[0].added
	if answered.Sub(o.samples[0].asked) >= window {
		if len(o.samples) == 1 {
			return 0 // all that was added since may have expired
		}
		mayHaveExpired = o.samples[1].added
	}
	return info.IIDsAdded - info.IIDsTracked - mayHaveExpired
}

// report counts what was forgotten since the last look, of which evicted is at most how many
// too early. It returns how many that are since the last report, 0 when it is not time for
// another one.
func (o *overflow) report(now time.Time, evicted int64, info server.StreamInfo) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	forgotten := info.IIDsAdded - info.IIDsTracked
	if evicted > 0 {
		o.unreported += max(0, min(evicted, forgotten-o.forgotten))
	}
	o.forgotten = max(o.forgotten, forgotten)
	if !o.reported.IsZero() && now.Sub(o.reported) < overflowPause {
		return 0
	}
	return o.take(now)
}

// take returns what is to be reported. The caller holds o.mu.
func (o *overflow) take(now time.Time) int64 {
	n := o.unreported
	if o.unreported = 0; n > 0 {
		o.reported = now
	}
	return n
}

// takeRest returns what has not been reported yet.
func (o *overflow) takeRest() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.take(time.Now())
}
