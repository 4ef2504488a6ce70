// Package chart draws how old retries are: for the terminal, and as a picture.
package chart

import (
	"time"

	"github.com/onceward/watermill-idempotent/internal/span"
	"github.com/onceward/watermill-idempotent/window"
)

// Ages is what is drawn: the ages of retries, and marks beside them.
type Ages struct {
	Title, Subtitle string
	// Caught are retries that the window recognised, Missed those that are in the stream as
	// a second entry.
	Caught, Missed window.Distribution
	// Unmeasured reports that nobody has collected the ages of those that were caught.
	Unmeasured bool
	// Marks are ages that are worth a line.
	Marks []Mark
}

// Mark is an age with a name. One of zero is not drawn.
type Mark struct {
	Name string
	At   time.Duration
	// Strong marks are drawn through, others dashed.
	Strong bool
}

// IsEmpty reports that there is nothing to draw.
func (a Ages) IsEmpty() bool { return a.Caught.Count+a.Missed.Count == 0 }

// borders are ages that people think in; bars of the terminal begin and end there.
var borders = []time.Duration{
	time.Millisecond, 10 * time.Millisecond, 100 * time.Millisecond,
	time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second,
	time.Minute, 3 * time.Minute, 10 * time.Minute, 30 * time.Minute,
	time.Hour, 3 * time.Hour, 6 * time.Hour, 12 * time.Hour,
	24 * time.Hour, 2 * 24 * time.Hour, 7 * 24 * time.Hour, 14 * 24 * time.Hour, 30 * 24 * time.Hour, 60 * 24 * time.Hour,
}

// bar is what lies in (from, to].
type bar struct {
	from, to       time.Duration
	caught, missed int64
}

// edge is the highest age that reads like a border: who is told that the oldest retry came after 3h
// does not look for it above 3h.
func edge(border time.Duration) time.Duration {
	if border <= 0 || border == 1<<62 {
		return border - 1 // an age of 0 is in the first bar
	}
	return border + span.Step(border) - 1
}

// bars counts ages between borders, from the first to the last that has some, as the quantiles do.
func (a Ages) bars() []bar {
	all := make([]bar, 0, len(borders)+1)
	var last time.Duration
	for _, b := range borders {
		all = append(all, bar{from: last, to: b})
		last = b
	}
	all = append(all, bar{from: last, to: 1 << 62})
	between := func(d window.Distribution, b bar) int64 { return d.Above(edge(b.from)) - d.Above(edge(b.to)) }
	first, end := len(all), 0
	for i := range all {
		b := &all[i]
		b.caught, b.missed = between(a.Caught, *b), between(a.Missed, *b)
		if b.caught+b.missed > 0 {
			first, end = min(first, i), i+1
		}
	}
	if first >= end {
		return nil
	}
	return all[first:end]
}

// edges are the youngest and the oldest age that the picture shows.
func (a Ages) edges() (low, high time.Duration) {
	low, high = time.Second, time.Minute
	for _, d := range []window.Distribution{a.Caught, a.Missed} {
		if n := len(d.Buckets); n > 0 {
			low, high = min(low, d.Buckets[0].From), max(high, d.Buckets[n-1].To)
		}
	}
	for _, m := range a.Marks {
		if m.At > 0 {
			low, high = min(low, m.At*2/3), max(high, m.At*3/2)
		}
	}
	return max(low, time.Millisecond), high
}
