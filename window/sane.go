package window

import (
	"math"
	"time"
)

// What is more than this was not observed; sums and multiples of it don't overflow.
const (
	mostTime  = time.Duration(1) << 58 // nine years
	mostCount = int64(1) << 54
	mostRate  = 1e15
)

// sane is an observation without what can't have been observed: numbers come from servers,
// from other processes as JSON, and from clocks that jump.
func sane(o Observation) Observation {
	o.Rate, o.Peak, o.Headroom = saneRate(o.Rate), saneRate(o.Peak), saneRate(o.Headroom)
	o.Window.Duration, o.Window.Entries = within(o.Window.Duration, mostTime), within(o.Window.Entries, math.MaxInt32/4)
	o.Lasted, o.Span, o.Outage = within(o.Lasted, mostTime), within(o.Span, mostTime), within(o.Outage, mostTime)
	o.Added, o.Length = within(o.Added, mostCount), within(o.Length, mostCount)
	o.Caught, o.Missed = o.Caught.sane(), o.Missed.sane()
	return o
}

func within[N int | int64 | time.Duration](n, most N) N { return min(max(n, 0), most) }

func saneRate(r float64) float64 {
	if !(r > 0) { // NaN, too
		return 0
	}
	return min(r, mostRate)
}

func (d Distribution) sane() Distribution {
	s := Distribution{Count: within(d.Count, mostCount), Max: within(d.Max, mostTime)}
	s.Min = within(d.Min, s.Max)
	for _, b := range d.Buckets {
		if b.Count > 0 && b.To > 0 {
			s.Buckets = append(s.Buckets, Bucket{From: within(b.From, mostTime), To: within(b.To, mostTime), Count: min(b.Count, mostCount)})
		}
	}
	return s
}
