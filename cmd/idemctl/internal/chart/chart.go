// Package chart draws how old retries are: for the terminal, and as a picture.
package chart

import (
	"time"

	"github.com/onceward/watermill-idempotent/window"
)

// Ages is what is drawn: the ages of retries, and marks beside them.
type Ages struct {
	Title, Subtitle string
	// Caught are retries that the window recognised, Missed those that are in the stream as
	// a second entry.
	Caught, Missed window.Distribution
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

// bars sums buckets between borders, from the first to the last that has something. A bucket
// goes where its middle is.
func (a Ages) bars() []bar {
	all := make([]bar, 0, len(borders)+1)
	var last time.Duration
	for _, b := range borders {
		all = append(all, bar{from: last, to: b})
		last = b
	}
	all = append(all, bar{from: last, to: 1 << 62})
	sum := func(d window.Distribution, add func(*bar, int64)) {
		for _, bucket := range d.Buckets {
			middle := bucket.From + (bucket.To-bucket.From)/2
			for i := range all {
				if middle <= all[i].to {
					add(&all[i], bucket.Count)
					break
				}
			}
		}
	}
	sum(a.Caught, func(b *bar, n int64) { b.caught += n })
	sum(a.Missed, func(b *bar, n int64) { b.missed += n })
	first, end := len(all), 0
	for i, b := range all {
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
