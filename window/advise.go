package window

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/span"
	"github.com/onceward/watermill-idempotent/publisher"
)

const (
	defaultOutage   = 30 * time.Minute
	defaultHeadroom = 1.5
	// leastDuration is the shortest window that is advised: a deploy takes that long.
	leastDuration = 5 * time.Minute
	// sampleRetries and sampleTime are what a good sample has.
	sampleRetries = 100
	sampleTime    = 10 * time.Minute
	// leastSpan is how long a stream must be to tell of the rate.
	leastSpan = time.Minute
	// oversize is from which factor on a window is called larger than needed.
	oversize = 10
)

// steps are the durations that are advised.
var steps = []time.Duration{
	5 * time.Minute, 10 * time.Minute, 15 * time.Minute, 30 * time.Minute, 45 * time.Minute, time.Hour, 90 * time.Minute,
	2 * time.Hour, 3 * time.Hour, 4 * time.Hour, 6 * time.Hour, 8 * time.Hour, 12 * time.Hour, 18 * time.Hour, layout.MaxDuration,
}

// Advise says how large the window of a topic should be.
func Advise(o Observation) Advice {
	a := adviser{Observation: sane(o)}
	a.retries = a.Caught.Merge(a.Missed)
	a.resolve()
	a.measure()
	a.need()
	a.judge()
	a.change()
	a.explain()
	return a.Advice
}

// adviser makes an Advice, step by step.
type adviser struct {
	Observation
	Advice  Advice
	retries Distribution
	// cut: the retries that were caught reach up to the end of the window, and nobody has
	// looked for later ones.
	cut bool
	// needed is how long must be remembered, and why; wanted is the window for that.
	needed time.Duration
	why    string
	wanted publisher.Window
	// short: not even the largest window remembers for so long at this rate.
	short bool
}

func (a *adviser) resolve() {
	a.Outage = cmp.Or(max(a.Outage, 0), defaultOutage)
	if a.Headroom = max(a.Headroom, 0); a.Headroom == 0 {
		a.Headroom = defaultHeadroom
	}
	if a.Rate <= 0 && a.Lasted > 0 {
		a.Rate = float64(a.Added) / a.Lasted.Seconds()
	}
	if a.Peak <= 0 {
		a.Peak = 2 * a.Rate
	}
	// What was watched may be a quiet time; and so much of a short stream may be one batch.
	if a.Span >= max(a.Lasted, leastSpan) && a.Length > 1 {
		a.Peak = max(a.Peak, 2*float64(a.Length-1)/a.Span.Seconds())
	}
	a.Peak = max(a.Peak, a.Rate)
}

// unlimited reports that only time ends what is remembered.
func (a *adviser) unlimited() bool { return a.Mode == publisher.ModeLatch || a.Window.Entries == 0 }

// measure says what the window in force does.
func (a *adviser) measure() {
	r := &a.Advice
	r.Rate, r.Peak = a.Rate, a.Peak
	r.Retries, r.Oldest = a.retries.Count, a.retries.Max
	r.Typical, r.P99 = a.retries.Quantile(0.5), a.retries.Quantile(0.99)
	if a.Lag > 0 && a.Rate > 0 {
		r.Backlog = seconds(float64(a.Lag) / a.Rate)
	}
	if !a.unlimited() && a.Peak > 0 {
		r.FullAfter = seconds(float64(a.Window.Entries) / a.Peak)
	}
	if r.Remembers = a.Window.Duration; r.FullAfter > 0 {
		r.Remembers = min(r.Remembers, r.FullAfter)
	}
	r.Outage = max(0, r.Remembers-r.P99)
	a.cut = r.Remembers > 0 && !a.Looked && a.Caught.Max > r.Remembers*3/4
}

// need says how long must be remembered, and the window for that.
func (a *adviser) need() {
	r := &a.Advice
	a.needs(leastDuration, "a deploy takes as long")
	if r.Retries == 0 {
		a.needs(a.Outage, "it covers an outage of %s", span.Text(a.Outage))
	} else {
		a.needs(a.Outage+r.P99, "it covers an outage of %s and the %s within which 99 of 100 retries come", span.Text(a.Outage), span.Text(r.P99))
	}
	a.needs(r.Oldest+r.Oldest/4, "the oldest retry came after %s, and a quarter is added for later ones", span.Text(r.Oldest))
	if a.cut {
		a.needs(2*r.Remembers, "it is twice what the window remembers now, since nobody knows how late retries come")
	}
	// The default is for retries that nobody has seen yet. A few early ones are no reason to go below it.
	if r.Retries == 0 || r.Retries < sampleRetries && a.Window.Duration > publisher.DefaultWindowDuration {
		a.needs(publisher.DefaultWindowDuration, "it is the default, for retries that nobody has seen yet")
	}
	a.wanted.Duration = steps[len(steps)-1]
	for _, step := range steps {
		if step >= a.needed {
			a.wanted.Duration = step
			break
		}
	}
	if a.Mode == publisher.ModeLatch {
		return
	}
	most := mostEntries
	if a.Mode == publisher.ModeIDMPAuto {
		most = layout.MaxShardEntries
	}
	perSecond := a.Peak * a.Headroom
	entries := roundUp(perSecond * a.wanted.Duration.Seconds())
	if inTime := a.Missed.Count - a.Missed.Above(a.Window.Duration); inTime > 0 && a.Window.Duration > 0 {
		entries = max(entries, 2*a.Window.Entries) // forgotten by size, at a peak that was higher than now
	}
	if a.short = entries > most; a.short {
		entries = most
	}
	a.wanted.Entries = max(entries, layout.MaxShardEntries) // what the first producer ID holds anyway
}

// needs takes the longest time that something asks for.
func (a *adviser) needs(d time.Duration, why string, args ...any) {
	if d > a.needed {
		a.needed, a.why = d, fmt.Sprintf(why, args...)
	}
}

// mostEntries is the largest Window.Entries, rounded down.
var mostEntries = layout.Capacity(layout.MaxShards, layout.MaxShardEntries) / 100_000 * 100_000

// roundUp keeps two digits: 12,345 is 13,000.
func roundUp(n float64) int {
	if n <= 100 {
		return int(math.Ceil(n))
	}
	unit := math.Pow(10, math.Floor(math.Log10(n))-1)
	return int(min(math.Ceil(n/unit)*unit, math.MaxInt32))
}

// judge compares the window in force with what is needed.
func (a *adviser) judge() {
	r := &a.Advice
	lasts := a.Window.Duration
	if !a.unlimited() && a.Peak > 0 {
		lasts = min(lasts, seconds(float64(a.Window.Entries)/(a.Peak*a.Headroom)))
	}
	tooMany := a.Mode == publisher.ModeLatch || a.Window.Entries > oversize*a.wanted.Entries
	switch {
	case a.Window.Duration == 0:
		r.Verdict = Unknown
	case a.Missed.Count > 0, a.cut, r.P99 > r.Remembers:
		r.Verdict = TooSmall
	case lasts < min(a.needed, layout.MaxDuration):
		r.Verdict = Tight
	case a.Window.Duration/oversize > a.needed && tooMany:
		r.Verdict = Larger
	default:
		r.Verdict = Enough
	}
	r.Window = a.wanted
	switch r.Verdict {
	case Enough:
		r.Window = a.Window
	case TooSmall, Tight: // never take away from what is there
		r.Window.Duration = max(r.Window.Duration, a.Window.Duration)
		if a.Mode != publisher.ModeLatch {
			r.Window.Entries = max(r.Window.Entries, a.Window.Entries)
		}
	}
	switch {
	case r.Retries == 0:
		r.Confidence = Guess
	case r.Retries < sampleRetries || a.Lasted < sampleTime:
		r.Confidence = Low
	default:
		r.Confidence = Good
	}
}

// change says what changing each field does to the topic, as docs/operations.md has it.
func (a *adviser) change() {
	r := &a.Advice
	if r.Verdict == Unknown {
		return
	}
	remembered := a.Mode != publisher.ModeLatch
	if r.Window.Duration != a.Window.Duration {
		effect := "In force for the next latch; those that are there keep their time to live."
		if remembered {
			effect = fmt.Sprintf("A topic that exists keeps its own (WindowDiffers). Changed in place, the server would forget %s IDs, and add a retry of these again.",
				count(a.Tracked))
		}
		r.Changes = append(r.Changes, Change{"Duration", goDuration(a.Window.Duration), goDuration(r.Window.Duration), effect})
	}
	if !remembered || r.Window.Entries == a.Window.Entries {
		r.Forgets = a.forgets()
		return
	}
	wants := layout.ShardsFor(r.Window.Entries)
	effect := fmt.Sprintf("A topic that exists keeps its number of producer IDs (OnLayout): %d are needed for it, and there are %d. "+
		"With another number keys would be looked for in the wrong place.", wants, a.Shards)
	switch a.Shards {
	case 0:
		effect = fmt.Sprintf("A topic that exists keeps its number of producer IDs (OnLayout): %d are needed for it.", wants)
	case wants:
		effect = fmt.Sprintf("None: it is %d producer IDs as before.", wants)
	}
	r.Changes = append(r.Changes, Change{"Entries", goInt(a.Window.Entries), goInt(r.Window.Entries), effect})
	r.Forgets = a.forgets()
}

func (a *adviser) forgets() int64 {
	if len(a.Advice.Changes) == 0 || a.Mode == publisher.ModeLatch {
		return 0
	}
	return a.Tracked
}

func seconds(s float64) time.Duration {
	if s >= math.MaxInt64/float64(time.Second) {
		return math.MaxInt64
	}
	return time.Duration(s * float64(time.Second))
}

// goDuration is a duration as it is typed in Go.
func goDuration(d time.Duration) string {
	for _, unit := range []struct {
		of   time.Duration
		name string
	}{{time.Hour, "time.Hour"}, {time.Minute, "time.Minute"}, {time.Second, "time.Second"}, {time.Millisecond, "time.Millisecond"}} {
		switch {
		case d == unit.of:
			return unit.name
		case d > 0 && d%unit.of == 0:
			return fmt.Sprintf("%d * %s", d/unit.of, unit.name)
		}
	}
	return strconv.FormatInt(int64(d), 10)
}

// goInt is a number as it is typed in Go: 100_000.
func goInt(n int) string { return group(int64(n), "_") }

// count is a number as it is read: 100,000.
func count(n int64) string { return group(n, ",") }

func group(n int64, sep string) string {
	text := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, digit := range text {
		if left := len(text) - i; i > 0 && left%3 == 0 && text[i-1] != '-' {
			b.WriteString(sep)
		}
		b.WriteRune(digit)
	}
	return b.String()
}
