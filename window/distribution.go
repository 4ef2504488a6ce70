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
	// Count is how many there are; Max is the largest, exactly.
	Count int64         `json:"count"`
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

// Quantile returns an age that the part q (0 to 1) of them does not exceed: the true one, or
// up to a fifth more; 0 without any.
func (d Distribution) Quantile(q float64) time.Duration {
	if d.Count == 0 {
		return 0
	}
	want := int64(math.Ceil(min(max(q, 0), 1) * float64(d.Count)))
	var sum int64
	for _, b := range d.Buckets {
		if sum += b.Count; sum >= want {
			return min(b.To, d.Max)
		}
	}
	return d.Max
}

// Above is about how many ages are above age.
func (d Distribution) Above(age time.Duration) (n int64) {
	if age >= d.Max {
		return 0
	}
	for _, b := range d.Buckets {
		to := min(b.To, d.Max)
		switch {
		case age <= b.From:
			n += b.Count
		case age < to:
			part := float64(to-age) / float64(to-b.From)
			n += int64(math.Round(part * float64(b.Count)))
		}
	}
	return n
}

// Merge adds what another process has collected, or another part of a stream has.
func (d Distribution) Merge(other Distribution) Distribution {
	all := slices.Concat(d.Buckets, other.Buckets)
	slices.SortFunc(all, func(a, b Bucket) int { return cmp.Compare(a.To, b.To) })
	sum := Distribution{Count: d.Count + other.Count, Max: max(d.Max, other.Max)}
	for _, b := range all {
		if n := len(sum.Buckets); n > 0 && sum.Buckets[n-1].To == b.To {
			sum.Buckets[n-1].Count += b.Count
			continue
		}
		sum.Buckets = append(sum.Buckets, b)
	}
	return sum
}
