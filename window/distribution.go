package window

import (
	"cmp"
	"math"
	"slices"
	"sort"
	"time"
)

// Bucket i ends at 2^(i/4) milliseconds; the last one takes the rest.
const buckets = 133

var bounds = func() (b [buckets]time.Duration) {
	for i := range b {
		b[i] = time.Duration(math.Exp2(float64(i)/4) * float64(time.Millisecond))
	}
	return b
}()

// bound is where a bucket ends; the first one begins at 0.
func bound(i int) time.Duration {
	if i < 0 {
		return 0
	}
	return bounds[i]
}

func bucketOf(age time.Duration) int {
	return min(sort.Search(buckets, func(i int) bool { return age <= bounds[i] }), buckets-1)
}

// Distribution says how ages are spread: a histogram whose buckets are each about a fifth
// wider than the one before, from a millisecond to 99 days. Durations are nanoseconds in
// JSON.
type Distribution struct {
	// Count is how many there are; Min is the smallest and Max the largest, exactly.
	Count int64         `json:"count"`
	Min   time.Duration `json:"min_ns,omitempty"`
	Max   time.Duration `json:"max_ns"`
	// Buckets are those that have some, in order.
	Buckets []Bucket `json:"buckets,omitempty"`
}

// Bucket counts the ages above From, up to To.
type Bucket struct {
	From  time.Duration `json:"from_ns"`
	To    time.Duration `json:"to_ns"`
	Count int64         `json:"count"`
}

// DistributionOf makes a distribution of ages.
func DistributionOf(ages ...time.Duration) Distribution {
	var a Ages
	for _, age := range ages {
		a.Add(age)
	}
	return a.Distribution()
}

// at is the age of the r-th one in a bucket, from 1 on. They are taken to be spread evenly over the
// part of it that has been seen. Quantile and Above both go by it, so they agree.
func (d Distribution) at(b Bucket, r int64) time.Duration {
	from, to := max(b.From, d.Min), min(b.To, d.Max)
	gaps := b.Count
	if d.Min > b.From { // the first one is the smallest, exactly
		r, gaps = r-1, gaps-1
	}
	if gaps <= 0 || to <= from {
		return max(from, to)
	}
	return min(from+time.Duration(float64(to-from)*(float64(r)/float64(gaps))), to)
}

// Quantile returns about the age that the part q (0 to 1) of them does not exceed: it is no more than
// a fifth away from the true one, and never outside of Min to Max; 0 without any.
func (d Distribution) Quantile(q float64) time.Duration {
	if d.Count == 0 {
		return 0
	}
	want := int64(math.Ceil(min(max(q, 0), 1) * float64(d.Count)))
	var sum int64
	for _, b := range d.Buckets {
		if want = max(want, 1); sum+b.Count >= want {
			return d.at(b, want-sum)
		}
		sum += b.Count
	}
	return d.Max
}

// Above is about how many ages are above age.
func (d Distribution) Above(age time.Duration) (n int64) {
	if age >= d.Max {
		return 0
	}
	for _, b := range d.Buckets {
		n += max(b.Count, 0) - int64(sort.Search(int(b.Count), func(i int) bool { return d.at(b, int64(i)+1) > age }))
	}
	return n
}

// Merge adds what another process has collected, or another part of a stream has.
func (d Distribution) Merge(other Distribution) Distribution {
	all := slices.Concat(d.Buckets, other.Buckets)
	slices.SortFunc(all, func(a, b Bucket) int { return cmp.Compare(a.To, b.To) })
	sum := Distribution{Count: d.Count + other.Count, Min: min(d.Min, other.Min), Max: max(d.Max, other.Max)}
	switch {
	case d.Count == 0:
		sum.Min = other.Min
	case other.Count == 0:
		sum.Min = d.Min
	}
	for _, b := range all {
		if n := len(sum.Buckets); n > 0 && sum.Buckets[n-1].To == b.To {
			sum.Buckets[n-1].Count += b.Count
			continue
		}
		sum.Buckets = append(sum.Buckets, b)
	}
	return sum
}
