package window

import (
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
)

// Confidence says how much an advice rests on.
type Confidence uint8

const (
	// Guess means that nothing is known of retries: the advice rests on the rate and on
	// defaults.
	Guess Confidence = iota
	// Low means fewer than 100 retries, or less than ten minutes.
	Low
	// Good means that more retries would hardly change the advice.
	Good
)

var confidenceNames = [...]string{"guess", "low", "good"}

// String is for tables.
func (c Confidence) String() string {
	if int(c) < len(confidenceNames) {
		return confidenceNames[c]
	}
	return "invalid"
}

// Advice is what [Advise] makes of an observation.
type Advice struct {
	// Rate and Peak are new keys a second.
	Rate, Peak float64
	// FullAfter is how long the window takes to fill at Peak: what is older is forgotten by
	// size. 0 means never.
	FullAfter time.Duration
	// Remembers is how late a retry may come at Peak and still be caught: the duration of
	// the window, or FullAfter if that is shorter. 0 where the window is not known.
	Remembers time.Duration
	// Typical, P99 and Oldest are ages of retries, caught and missed: the median, the one that
	// 99 of 100 don't exceed, and the largest. All are 0 where none is known.
	Typical, P99, Oldest time.Duration
	// Retries is how many these are.
	Retries int64
	// Outage is the longest outage that the window covers: a publish whose reply was lost when
	// it began is still recognised when its producer goes on after it, as late as P99, even if
	// all that has gathered meanwhile goes first.
	Outage time.Duration
	// Backlog is about how long ago the entry was added that the slowest group reads next; 0
	// if that is not known.
	Backlog time.Duration
	// Window is what to configure: publisher.Config.Window, or TopicConfig.Window. It is the
	// one in force where that does. Entries is 0 in mode Latch, which has no limit.
	Window publisher.Window
	// Verdict says whether the window in force does.
	Verdict Verdict
	// Changes are the fields in which Window differs from the one in force, and what changing
	// each does.
	Changes []Change
	// Forgets is how many IDs the server would forget if the window of the topic were changed
	// in place, by XCFGSET: 0 if nothing is to be changed, and in mode Latch.
	Forgets int64
	// Confidence says how much the advice rests on.
	Confidence Confidence
	// Reasons are sentences: why, and what to look at. The most important ones come first.
	Reasons []string
}

// Verdict says whether a window does.
type Verdict uint8

const (
	// Unknown means that the window in force is not known.
	Unknown Verdict = iota
	// Enough means that the window in force catches all retries that were seen, and covers the
	// outage.
	Enough
	// Tight means that it catches what was seen, and has too little room for an outage or a
	// higher peak.
	Tight
	// TooSmall means that retries were missed, or nearly were.
	TooSmall
	// Larger means that it is more than ten times as large as needed, which costs memory.
	Larger
)

var verdictNames = [...]string{"unknown", "enough", "tight", "too small", "larger than needed"}

// String is for tables.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "invalid"
}

// Change is a field of the window that should be another one.
type Change struct {
	// Field is "Duration" or "Entries"; Now and Want are its values as typed in Go:
	// "1 * time.Hour", "100_000".
	Field, Now, Want string
	// Effect is a sentence: what happens to a topic that exists when this is changed.
	Effect string
}
