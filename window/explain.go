package window

import (
	"fmt"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/span"
	"github.com/onceward/watermill-idempotent/publisher"
)

func (a *adviser) say(format string, args ...any) {
	a.Advice.Reasons = append(a.Advice.Reasons, fmt.Sprintf(format, args...))
}

// explain makes the sentences.
func (a *adviser) explain() {
	a.explainRetries()
	a.explainWindow()
	a.explainRoom()
	a.explainSample()
	if len(a.Advice.Changes) > 0 && a.Mode != publisher.ModeLatch {
		a.say("A topic that exists keeps its window. To give it this one, publish to a topic of a new name and let consumers drain the old one; " +
			"changing it in place would forget the IDs that are remembered.")
	}
}

func (a *adviser) explainRetries() {
	r := &a.Advice
	switch n := a.Missed.Count; {
	case n == 0:
	case a.Missed.Max < r.Remembers:
		a.say("%s retries are in the stream twice, the latest %s after its first publish. At the rate of now the window remembers for %s, so it was full at an earlier peak, or it was another window then.",
			count(n), span.Text(a.Missed.Max), span.Text(r.Remembers))
	default:
		a.say("%s retries came too late and are in the stream twice, the latest %s after its first publish; the window remembers for %s.",
			count(n), span.Text(a.Missed.Max), span.Text(r.Remembers))
	}
	switch {
	case a.cut:
		a.say("A retry came after %s, and the window remembers for %s: later ones were not recognised, so nobody knows how late they come. "+
			"Look for duplicates in the stream.", span.Text(a.Caught.Max), span.Text(r.Remembers))
	case r.Retries > 0 && r.Remembers > 0:
		a.say("Of %s retries the oldest came after %s, and 99 of 100 within %s; the window remembers for %s.",
			count(r.Retries), span.Text(r.Oldest), span.Text(r.P99), span.Text(r.Remembers))
	case r.Retries > 0:
		a.say("Of %s retries the oldest came after %s, and 99 of 100 within %s.", count(r.Retries), span.Text(r.Oldest), span.Text(r.P99))
	}
	if r.Oldest > layout.MaxDuration {
		a.say("No window is longer than %s, and a retry came after %s. Such a retry is caught by the handling middleware, whose records last for as long as you say.",
			span.Text(layout.MaxDuration), span.Text(r.Oldest))
	}
}

// explainWindow says how the window that is advised was worked out.
func (a *adviser) explainWindow() {
	w := a.Advice.Window
	switch {
	case a.Advice.Verdict == Unknown || w.Duration == a.Window.Duration:
	case a.needed > w.Duration:
		a.say("%s is advised, the longest window that there is; %s would be needed: %s.", span.Text(w.Duration), span.Text(a.needed), a.why)
	case a.needed == w.Duration:
		a.say("%s is advised: %s.", span.Text(w.Duration), a.why)
	default:
		a.say("%s is advised: %s. That makes %s, rounded up.", span.Text(w.Duration), a.why, span.Text(a.needed))
	}
	if a.Advice.Verdict != Unknown && w.Entries != a.Window.Entries {
		a.say("%s entries are room for %s at %s new keys a second, which is the peak with a headroom of %.3g.",
			count(int64(w.Entries)), span.Text(w.Duration), perSecond(a.Peak*a.Headroom), a.Headroom)
	}
}

func (a *adviser) explainRoom() {
	r := &a.Advice
	switch {
	case a.Window.Duration == 0:
	case r.FullAfter > 0 && r.FullAfter < a.Window.Duration:
		a.say("At %s new keys a second the window is full after %s, before its %s are over.", perSecond(r.Peak), span.Text(r.FullAfter), span.Text(a.Window.Duration))
	case r.FullAfter > 0:
		a.say("At %s new keys a second it takes %s to fill the window, which lasts %s.", perSecond(r.Peak), span.Text(r.FullAfter), span.Text(a.Window.Duration))
	}
	switch {
	case r.Remembers > 0 && r.Outage < a.Outage:
		a.say("An outage of more than %s is not covered: what was published when it began could be added again when it ends. %s was asked for.",
			span.Text(r.Outage), span.Text(a.Outage))
	case r.Remembers > 0:
		a.say("Outages of up to %s are covered.", span.Text(r.Outage))
	}
	if a.short {
		lasts := seconds(float64(a.wanted.Entries) / (a.Peak * a.Headroom))
		a.say("%s keys are the most that a publisher remembers: %s at this rate, where %s are needed. Spread the keys over several topics; "+
			"mode Latch has no such limit.", count(int64(a.wanted.Entries)), span.Text(lasts), span.Text(a.needed))
	}
	if r.Verdict == Larger {
		a.say("A window of %s would do. A larger one costs memory, and time in each transaction.", span.Text(a.wanted.Duration))
	}
	if a.Shards > 0 && a.Mode == publisher.ModeIDMP && a.ProducerIDs > a.Shards {
		a.say("The server remembers IDs of %d producer IDs, and one logical producer has %d: others publish to the topic, or instances have ProducerIDs of "+
			"their own, of which each adds an event once.", a.ProducerIDs, a.Shards)
	}
}

func (a *adviser) explainSample() {
	r := &a.Advice
	switch {
	case r.Retries == 0 && a.Duplicates > 0:
		a.say("%s duplicates came, and the server does not tell how late: their ages come from publishers (window.Ages). Until then the durations here are defaults.",
			count(a.Duplicates))
	case r.Retries == 0:
		a.say("No retry was seen, so the durations here are defaults. The longest way of a retry counts: a client with backoff, a job that runs again, a rollback.")
	case r.Confidence == Low && r.Retries < sampleRetries:
		a.say("It rests on %s retries: look again when there are %d.", count(r.Retries), sampleRetries)
	}
	switch {
	case a.Peak == 0:
		a.say("Nothing was published meanwhile, so nothing is known about the number of keys.")
	case a.Lasted > 0 && a.Lasted < sampleTime:
		a.say("The rate was watched for %s: watch at the busiest hour, for %s or more.", span.Text(a.Lasted), span.Text(sampleTime))
	}
}

func perSecond(rate float64) string {
	switch {
	case rate >= 10:
		return count(int64(rate + 0.5))
	default:
		return fmt.Sprintf("%.2g", rate)
	}
}
