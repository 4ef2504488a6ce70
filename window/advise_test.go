package window

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/publisher"
)

// uniform, exponential and bimodal are n ages each.
func uniform(n int, upTo time.Duration) Distribution {
	ages := make([]time.Duration, n)
	for i := range ages {
		ages[i] = upTo * time.Duration(i+1) / time.Duration(n)
	}
	return DistributionOf(ages...)
}

func exponential(n int, mean time.Duration) Distribution {
	ages := make([]time.Duration, n)
	for i := range ages { // its quantiles
		ages[i] = time.Duration(-math.Log(1-(float64(i)+0.5)/float64(n)) * float64(mean))
	}
	return DistributionOf(ages...)
}

func bimodal(near, far int, first, second time.Duration) Distribution {
	r := rand.New(rand.NewPCG(1, 2))
	var ages []time.Duration
	for range near {
		ages = append(ages, first+time.Duration(r.Int64N(int64(first/10))))
	}
	for range far {
		ages = append(ages, second+time.Duration(r.Int64N(int64(second/10))))
	}
	return DistributionOf(ages...)
}

// base is a topic with the default window, at 10 keys a second, watched for an hour.
func base() Observation {
	return Observation{
		Topic: "orders", Mode: publisher.ModeIDMP, Shards: 11, ProducerIDs: 11, Tracked: 36_000, Lasted: time.Hour, Added: 36_000, Peak: 15, Lag: -1,
		Window: publisher.Window{Duration: time.Hour, Entries: 103_595},
	}
}

func near(got, want time.Duration) bool {
	return float64(got) <= 1.2*float64(want) && float64(want) <= 1.2*float64(got)
}

func TestAdviceOnKnownDistributions(t *testing.T) {
	for _, c := range []struct {
		name         string
		change       func(o *Observation)
		verdict      Verdict
		confidence   Confidence
		typical, p99 time.Duration
		window       publisher.Window
		says         string
	}{
		{
			"uniform over ten minutes", func(o *Observation) { o.Caught = uniform(1000, 10*time.Minute) },
			Enough, Good, 5 * time.Minute, 9*time.Minute + 54*time.Second, publisher.Window{Duration: time.Hour, Entries: 103_595}, "99 of 100 within",
		},
		{
			"exponential with a mean of two minutes", func(o *Observation) { o.Caught = exponential(1000, 2*time.Minute) },
			Enough, Good, 83 * time.Second, 9*time.Minute + 12*time.Second, publisher.Window{Duration: time.Hour, Entries: 103_595}, "Outages of up to",
		},
		{ // a job that runs again four hours later: half an hour more for the outage is less than a quarter of that
			"bimodal, the second part missed", func(o *Observation) {
				o.Caught, o.Missed, o.Looked = DistributionOf(), bimodal(900, 100, time.Second, 4*time.Hour), true
			},
			TooSmall, Good, time.Second, 4 * time.Hour, publisher.Window{Duration: 6 * time.Hour, Entries: 490_000}, "came too late",
		},
		{
			"all at once", func(o *Observation) { o.Caught = bimodal(500, 0, 30*time.Second, 1) },
			Enough, Good, 30 * time.Second, 30 * time.Second, publisher.Window{Duration: time.Hour, Entries: 103_595}, "",
		},
		{
			"none", func(*Observation) {},
			Enough, Guess, 0, 0, publisher.Window{Duration: time.Hour, Entries: 103_595}, "No retry was seen",
		},
		{
			"none, and the server counts some", func(o *Observation) { o.Duplicates = 7 },
			Enough, Guess, 0, 0, publisher.Window{Duration: time.Hour, Entries: 103_595}, "7 duplicates came, and the server does not tell how late",
		},
		{
			"few", func(o *Observation) { o.Caught = uniform(10, time.Minute) },
			Enough, Low, 30 * time.Second, time.Minute, publisher.Window{Duration: time.Hour, Entries: 103_595}, "It rests on 10 retries",
		},
		{ // what comes after the window nobody has seen
			"up to the end of the window", func(o *Observation) { o.Caught = uniform(1000, 59*time.Minute) },
			TooSmall, Good, 30 * time.Minute, 58 * time.Minute, publisher.Window{Duration: 2 * time.Hour, Entries: 170_000}, "nobody knows how late they come",
		},
		{
			"up to the end of the window, and none behind it", func(o *Observation) { o.Caught, o.Looked = uniform(1000, 50*time.Minute), true },
			Tight, Good, 25 * time.Minute, 49 * time.Minute, publisher.Window{Duration: 90 * time.Minute, Entries: 130_000}, "is not covered",
		},
		{
			"a peak that fills the window", func(o *Observation) { o.Caught, o.Peak = uniform(1000, time.Minute), 100 },
			Tight, Good, 30 * time.Second, time.Minute, publisher.Window{Duration: time.Hour, Entries: 410_000}, "the window is full after 17m15s, before its 1h are over",
		},
		{
			"a longer outage", func(o *Observation) { o.Caught, o.Outage = uniform(1000, time.Minute), 3*time.Hour },
			Tight, Good, 30 * time.Second, time.Minute, publisher.Window{Duration: 4 * time.Hour, Entries: 330_000}, "3h was asked for",
		},
		{
			"too many keys for any window", func(o *Observation) { o.Caught, o.Peak = uniform(1000, time.Minute), 10_000 },
			TooSmall, Good, 30 * time.Second, time.Minute, publisher.Window{Duration: time.Hour, Entries: mostEntries}, "are the most that a publisher remembers",
		},
		{
			"much larger than needed", func(o *Observation) {
				o.Caught, o.Rate, o.Peak, o.Window = uniform(1000, time.Minute), 0.1, 0.2, publisher.Window{Duration: 24 * time.Hour, Entries: 1_000_000}
			},
			Larger, Good, 30 * time.Second, time.Minute, publisher.Window{Duration: 45 * time.Minute, Entries: 10_000}, "A window of 45m would do",
		},
		{
			"later than any window", func(o *Observation) { o.Missed, o.Looked = bimodal(100, 10, time.Minute, 48*time.Hour), true },
			TooSmall, Good, time.Minute, 48 * time.Hour, publisher.Window{Duration: 24 * time.Hour, Entries: mostEntries}, "handling middleware",
		},
		{ // at a peak that was higher than what was watched
			"forgotten by size", func(o *Observation) { o.Missed, o.Looked = bimodal(200, 0, 10*time.Minute, 1), true },
			TooSmall, Good, 10 * time.Minute, 10 * time.Minute, publisher.Window{Duration: time.Hour, Entries: 207_190}, "it was full at an earlier peak",
		},
		{
			"latches", func(o *Observation) {
				o.Mode, o.Window, o.Duplicates, o.Caught = publisher.ModeLatch, publisher.Window{Duration: 10 * time.Minute}, -1, uniform(1000, 5*time.Minute)
			},
			Tight, Good, 150 * time.Second, 5 * time.Minute, publisher.Window{Duration: 45 * time.Minute}, "",
		},
		{
			"window not known", func(o *Observation) { o.Window = publisher.Window{}; o.Caught = uniform(1000, time.Minute) },
			Unknown, Good, 30 * time.Second, time.Minute, publisher.Window{Duration: 45 * time.Minute, Entries: 61_000}, "",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := base()
			c.change(&o)
			a := Advise(o)
			if a.Verdict != c.verdict || a.Confidence != c.confidence || a.Window != c.window || !near(a.Typical, c.typical) || !near(a.P99, c.p99) {
				t.Errorf("%v, %v, typical %v, p99 %v, window %+v; want %v, %v, %v, %v, %+v", a.Verdict, a.Confidence, a.Typical, a.P99, a.Window,
					c.verdict, c.confidence, c.typical, c.p99, c.window)
			}
			if text := strings.Join(a.Reasons, "\n"); !strings.Contains(text, c.says) {
				t.Errorf("does not say %q:\n%s", c.says, text)
			}
			if (len(a.Changes) > 0) != (a.Window != o.Window && a.Verdict != Unknown) {
				t.Errorf("changes %+v", a.Changes)
			}
		})
	}
}

// What the window does at a rate is arithmetic.
func TestWhatAWindowCovers(t *testing.T) {
	o := base()
	o.Window.Entries, o.Peak, o.Lag = 60_000, 100, 3600
	o.Caught = bimodal(200, 0, time.Minute, 1)
	a := Advise(o)
	if a.Rate != 10 || a.Peak != 100 || a.FullAfter != 10*time.Minute || a.Remembers != 10*time.Minute || a.Backlog != 6*time.Minute {
		t.Errorf("%+v", a)
	}
	if a.Outage != a.Remembers-a.P99 || a.Outage > 9*time.Minute || a.Outage < 8*time.Minute+40*time.Second {
		t.Errorf("covers an outage of %v", a.Outage)
	}
	// A quiet hour says less than the stream.
	o.Added, o.Rate, o.Peak, o.Length, o.Span = 0, 0, 0, 36_001, time.Hour
	if a := Advise(o); a.Peak != 20 {
		t.Errorf("peak %v", a.Peak)
	}
}

// Whoever is advised on another window is told how it was worked out.
func TestHowAWindowIsWorkedOut(t *testing.T) {
	for want, change := range map[string]func(o *Observation){
		"4h is advised: the oldest retry came after 3h, and a quarter is added for later ones. That makes 3h45m, rounded up.": func(o *Observation) {
			o.Missed, o.Looked = DistributionOf(3*time.Hour), true
		},
		"4h is advised: it covers an outage of 3h and the 1m within which 99 of 100 retries come. That makes 3h1m, rounded up.": func(o *Observation) {
			o.Caught, o.Outage = DistributionOf(time.Minute, time.Minute), 3*time.Hour
		},
		"330,000 entries are room for 4h at 23 new keys a second, which is the peak with a headroom of 1.5.": func(o *Observation) { o.Outage = 4 * time.Hour },
		"3h is advised: it covers an outage of 3h.":                                                          func(o *Observation) { o.Outage = 3 * time.Hour },
		"2h is advised: it is twice what the window":                                                         func(o *Observation) { o.Caught = uniform(1000, 59*time.Minute) },
		"1d is advised, the longest window that there is":                                                    func(o *Observation) { o.Missed, o.Looked = DistributionOf(48*time.Hour), true },
	} {
		o := base()
		change(&o)
		if text := strings.Join(Advise(o).Reasons, "\n"); !strings.Contains(text, want) {
			t.Errorf("does not say %q:\n%s", want, text)
		}
	}
	if text := strings.Join(Advise(base()).Reasons, "\n"); strings.Contains(text, "is advised") {
		t.Errorf("nothing is to be changed: %s", text)
	}
}

// What a change does to a topic that exists is said as docs/operations.md says it.
func TestWhatAChangeForgets(t *testing.T) {
	o := base()
	o.Outage = 3 * time.Hour
	a := Advise(o)
	if a.Forgets != o.Tracked || len(a.Changes) != 2 || a.Changes[0].Field != "Duration" || a.Changes[0].Now != "time.Hour" || a.Changes[0].Want != "3 * time.Hour" ||
		!strings.Contains(a.Changes[0].Effect, "36,000 IDs") || a.Changes[1].Field != "Entries" || a.Changes[1].Now != "103_595" || a.Changes[1].Want != "250_000" ||
		!strings.Contains(a.Changes[1].Effect, "27 are needed for it, and there are 11") {
		t.Errorf("%+v", a)
	}
	if text := strings.Join(a.Reasons, "\n"); !strings.Contains(text, "publish to a topic of a new name") {
		t.Errorf("%s", text)
	}
	o.Mode, o.Window.Entries = publisher.ModeLatch, 0
	if a := Advise(o); a.Forgets != 0 || len(a.Changes) != 1 || !strings.Contains(a.Changes[0].Effect, "next latch") {
		t.Errorf("latch: %+v", a)
	}
	o = base()
	if a := Advise(o); a.Forgets != 0 || len(a.Changes) != 0 {
		t.Errorf("nothing to change: %+v", a)
	}
}

// Whatever was observed, the advice is a window that the publisher takes; it covers what it
// says, unless no window can; and it is right about itself: whoever follows it is told that it
// is enough.
func TestAdviceIsAValidWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		duration := func(name string) time.Duration {
			return time.Duration(rapid.Int64Range(0, int64(72*time.Hour/time.Second)).Draw(t, name)) * time.Second
		}
		var caught, missed []time.Duration
		for range rapid.IntRange(0, 20).Draw(t, "caught") {
			caught = append(caught, duration("age"))
		}
		for range rapid.IntRange(0, 3).Draw(t, "missed") {
			missed = append(missed, duration("age"))
		}
		o := Observation{
			Mode:   rapid.SampledFrom([]publisher.Mode{publisher.ModeAuto, publisher.ModeIDMP, publisher.ModeIDMPAuto, publisher.ModeLatch}).Draw(t, "mode"),
			Window: publisher.Window{Duration: min(duration("window"), 24*time.Hour), Entries: rapid.IntRange(0, 1_200_000).Draw(t, "entries")},
			Lasted: duration("lasted"), Added: rapid.Int64Range(0, 1<<40).Draw(t, "added"), Peak: rapid.Float64Range(0, 1e9).Draw(t, "peak"),
			Caught: DistributionOf(caught...), Missed: DistributionOf(missed...), Looked: rapid.Bool().Draw(t, "looked"),
			Outage: duration("outage"), Lag: rapid.Int64Range(-1, 1<<40).Draw(t, "lag"), Span: duration("span"), Length: rapid.Int64Range(0, 1<<40).Draw(t, "length"),
		}
		if o.Mode == publisher.ModeIDMPAuto {
			o.Window.Entries = min(o.Window.Entries, layout.MaxShardEntries)
		}
		a := Advise(o)
		w := a.Window
		if w.Duration < leastDuration && w.Duration != o.Window.Duration || w.Duration > 24*time.Hour || w.Duration%time.Second != 0 ||
			w.Entries < 0 || layout.ShardsFor(w.Entries) == 0 || o.Mode == publisher.ModeIDMPAuto && w.Entries > layout.MaxShardEntries || (w.Entries == 0) != (o.Mode == publisher.ModeLatch) && o.Window.Entries > 0 && a.Verdict != Enough {
			t.Fatalf("window %+v of %+v", w, a)
		}
		if strings.Contains(fmt.Sprint(a), "NaN") || strings.Contains(fmt.Sprint(a), "Inf") || a.Outage < 0 || a.FullAfter < 0 || a.Remembers < 0 || a.Backlog < 0 {
			t.Fatalf("%+v", a)
		}
		o.Window, o.Missed, o.Caught, o.Looked = w, Distribution{}, o.Caught.Merge(o.Missed), true
		again := Advise(o)
		short := strings.Contains(strings.Join(again.Reasons, ""), "are the most that") || a.Oldest >= 18*time.Hour || o.Outage+a.P99 > 24*time.Hour
		if !short && again.Verdict != Enough && again.Verdict != Larger {
			t.Fatalf("who follows %+v is told %+v", a, again)
		}
	})
}
