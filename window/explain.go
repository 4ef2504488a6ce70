package window

import (
	"fmt"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/publisher"
)

func (a *adviser) say(format string, args ...any) {
	a.Advice.Reasons = append(a.Advice.Reasons, fmt.Sprintf(format, args...))
}

// explain makes the sentences.
func (a *adviser) explain() {
	a.explainRetries()
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
			count(n), short(a.Missed.Max), short(r.Remembers))
	default:
		a.say("%s retries came too late and are in the stream twice, the latest %s after its first publish; the window remembers for %s.",
			count(n), short(a.Missed.Max), short(r.Remembers))
	}
	switch {
	case a.cut:
		a.say("A retry came after %s, and the window remembers for %s: later ones were not recognised, so nobody knows how late they come. "+
			"Look for duplicates in the stream.", short(a.Caught.Max), short(r.Remembers))
	case r.Retries > 0 && r.Remembers > 0:
		a.say("Of %s retries the oldest came after %s, and 99 of 100 within %s; the window remembers for %s.",
			count(r.Retries), short(r.Oldest), short(r.P99), short(r.Remembers))
	case r.Retries > 0:
		a.say("Of %s retries the oldest came after %s, and 99 of 100 within %s.", count(r.Retries), short(r.Oldest), short(r.P99))
	}
	if r.Oldest > layout.MaxDuration {
		a.say("No window is longer than %s, and a retry came after %s. Such a retry is caught by the handling middleware, whose records last for as long as you say.",
			short(layout.MaxDuration), short(r.Oldest))
	}
}

func (a *adviser) explainRoom() {
	r := &a.Advice
	switch {
	case a.Window.Duration == 0:
	case r.FullAfter > 0 && r.FullAfter < a.Window.Duration:
		a.say("At %s new keys a second the window is full after %s, before its %s are over.", perSecond(r.Peak), short(r.FullAfter), short(a.Window.Duration))
	case r.FullAfter > 0:
		a.say("At %s new keys a second it takes %s to fill the window, which lasts %s.", perSecond(r.Peak), short(r.FullAfter), short(a.Window.Duration))
	}
	switch {
	case r.Remembers > 0 && r.Outage < a.Outage:
		a.say("An outage of more than %s is not covered: what was published when it began could be added again when it ends. %s was asked for.",
			short(r.Outage), short(a.Outage))
	case r.Remembers > 0:
		a.say("Outages of up to %s are covered.", short(r.Outage))
	}
	if a.short {
		lasts := seconds(float64(a.wanted.Entries) / (a.Peak * a.Headroom))
		a.say("%s keys are the most that a publisher remembers: %s at this rate, where %s are needed. Spread the keys over several topics; "+
			"mode Latch has no such limit.", count(int64(a.wanted.Entries)), short(lasts), short(a.needed))
	}
	if r.Verdict == Larger {
		a.say("A window of %s would do. A larger one costs memory, and time in each transaction.", short(a.wanted.Duration))
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
		a.say("The rate was watched for %s: watch at the busiest hour, for %s or more.", short(a.Lasted), short(sampleTime))
	}
}

// short is a duration for people: 1h30m, not 1h30m0s.
func short(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		d = d.Round(time.Second)
	case d >= time.Second:
		d = d.Round(100 * time.Millisecond)
	default:
		d = d.Round(time.Millisecond)
	}
	text := d.String()
	if strings.HasSuffix(text, "m0s") {
		text = strings.TrimSuffix(text, "0s")
	}
	if strings.HasSuffix(text, "h0m") {
		text = strings.TrimSuffix(text, "0m")
	}
	return text
}

func perSecond(rate float64) string {
	switch {
	case rate >= 10:
		return count(int64(rate + 0.5))
	default:
		return fmt.Sprintf("%.2g", rate)
	}
}
