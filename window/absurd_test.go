package window

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
)

// Nonsense is not advised on: what can't have been observed counts as not known.
func TestAdviceOnNonsense(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	for name, change := range map[string]func(o *Observation){
		"rate NaN":          func(o *Observation) { o.Rate = nan },
		"peak NaN":          func(o *Observation) { o.Peak = nan },
		"headroom NaN":      func(o *Observation) { o.Headroom = nan },
		"rate infinite":     func(o *Observation) { o.Rate = inf },
		"peak infinite":     func(o *Observation) { o.Peak = inf },
		"headroom infinite": func(o *Observation) { o.Headroom = inf },
		"headroom negative": func(o *Observation) { o.Headroom = -inf },
		"rate negative":     func(o *Observation) { o.Rate, o.Peak, o.Added = -1, -1, -1<<40 },
		"added most":        func(o *Observation) { o.Added, o.Lasted, o.Peak = math.MaxInt64, 1, 0 },
		"length most":       func(o *Observation) { o.Length, o.Span = math.MaxInt64, 1<<62 },
		"lag most":          func(o *Observation) { o.Lag = math.MaxInt64 },
		"outage longest":    func(o *Observation) { o.Outage, o.Caught = math.MaxInt64, uniform(1000, time.Second) },
		"retry latest":      func(o *Observation) { o.Caught = uniform(1000, time.Second).Merge(DistributionOf(math.MaxInt64)) },
		"one is the latest": func(o *Observation) {
			o.Missed, o.Looked = uniform(1000, time.Second).Merge(DistributionOf(math.MaxInt64)), true
		},
		"missed latest":   func(o *Observation) { o.Missed, o.Looked = DistributionOf(math.MaxInt64), true },
		"window largest":  func(o *Observation) { o.Window = publisher.Window{Duration: math.MaxInt64, Entries: math.MaxInt64} },
		"window negative": func(o *Observation) { o.Window = publisher.Window{Duration: -1, Entries: -1} },
		"counts most": func(o *Observation) {
			o.Caught = Distribution{Count: math.MaxInt64, Max: time.Minute, Buckets: []Bucket{{From: 0, To: time.Minute, Count: math.MaxInt64}}}
			o.Missed = o.Caught
		},
		"counts negative": func(o *Observation) {
			o.Caught = Distribution{Count: -5, Max: -1, Buckets: []Bucket{{From: -1, To: -2, Count: -3}}}
		},
		"buckets without a width": func(o *Observation) {
			o.Missed, o.Looked = Distribution{Count: 1, Max: time.Minute, Buckets: []Bucket{{From: time.Minute, To: time.Minute, Count: 1}}}, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := base()
			change(&o)
			a := Advise(o)
			text := fmt.Sprintf("%+v", a)
			w := a.Window
			if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || w.Duration < leastDuration || w.Entries <= 0 || a.Rate < 0 || a.Peak < 0 ||
				a.Outage < 0 || a.FullAfter < 0 || a.Remembers < 0 || a.Backlog < 0 || a.Retries < 0 || a.P99 < 0 || a.Oldest < 0 {
				t.Errorf("%s", text)
			}
			if late := strings.HasSuffix(name, "longest") || strings.HasSuffix(name, "latest"); late && (w.Duration != 24*time.Hour || a.Verdict == Enough) {
				t.Errorf("%v, %+v", a.Verdict, w)
			}
			if high := strings.HasSuffix(name, "infinite") || name == "added most"; high && (w.Entries != mostEntries || a.Verdict == Enough) {
				t.Errorf("%v, %+v", a.Verdict, w)
			}
		})
	}
}

// A stream that began with a batch a moment ago says nothing of the peak.
func TestAdviceOnAYoungStream(t *testing.T) {
	o := base()
	o.Added, o.Rate, o.Peak, o.Lasted, o.Length, o.Span = 0, 0, 0, time.Minute, 100, 3*time.Millisecond
	if a := Advise(o); a.Verdict != Enough || a.Window != o.Window {
		t.Errorf("%+v", a)
	}
}

// A few early retries are no reason for less than what is advised where none was seen.
func TestAdviceOnAFewEarlyRetries(t *testing.T) {
	o := base()
	o.Mode, o.Window, o.Duplicates, o.Lasted, o.Added, o.Peak = publisher.ModeLatch, publisher.Window{Duration: 12 * time.Hour}, -1, time.Minute, 600, 0
	without := Advise(o)
	o.Caught = DistributionOf(time.Second)
	with := Advise(o)
	if with.Window.Duration < without.Window.Duration {
		t.Errorf("none: %+v, one: %+v", without.Window, with.Window)
	}
}
