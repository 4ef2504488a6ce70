package window

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/publisher"
)

// A quantile is no more than a fifth away from the true one, never outside of what was seen, and
// agrees with how many are above it.
func TestQuantiles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ages := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) time.Duration {
			unit := rapid.SampledFrom([]time.Duration{time.Microsecond, time.Millisecond, time.Second, time.Hour}).Draw(t, "unit")
			return time.Duration(rapid.Int64Range(0, 1000).Draw(t, "n")) * unit
		}), 1, 200).Draw(t, "ages")
		d := DistributionOf(ages...)
		slices.Sort(ages)
		if d.Count != int64(len(ages)) || d.Max != ages[len(ages)-1] {
			t.Fatalf("%+v of %v", d, ages)
		}
		for _, q := range []float64{0.01, 0.5, 0.99, 1} {
			rank := 0
			for float64(rank+1) < q*float64(len(ages)) {
				rank++
			}
			exact, got := ages[rank], d.Quantile(q)
			near := float64(got) <= 1.2*float64(exact)+float64(time.Millisecond) && float64(exact) <= 1.2*float64(got)+float64(time.Millisecond)
			if got < ages[0] || got > ages[len(ages)-1] || !near && exact < bound(buckets-2) {
				t.Fatalf("quantile %v is %v, not %v, of %v", q, got, exact, ages)
			}
			if above := d.Above(got); above > int64(len(ages)-rank-1) || d.Above(got-1) < int64(len(ages)-rank) {
				t.Fatalf("%d of %v are above quantile %v, which is %v", above, ages, q, got)
			}
		}
		if n := d.Above(d.Max); n != 0 {
			t.Fatalf("%d above the largest", n)
		}
		if n := d.Above(-1); n != d.Count {
			t.Fatalf("%d of %d above nothing", n, d.Count)
		}
	})
}

// Three that came between 2h58m and 3h, in one bucket: the median is the second one, not the largest.
func TestMedianInsideOneBucket(t *testing.T) {
	d := DistributionOf(2*time.Hour+58*time.Minute, 2*time.Hour+59*time.Minute, 3*time.Hour)
	if got, want := d.Quantile(0.5), 2*time.Hour+59*time.Minute; got != want || d.Quantile(0) != 2*time.Hour+58*time.Minute || d.Quantile(0.99) != 3*time.Hour {
		t.Errorf("the median is %v, want %v; %+v", got, want, d)
	}
	if n := DistributionOf(7 * time.Second).Quantile(0.5); n != 7*time.Second {
		t.Errorf("the only one is %v", n)
	}
	// What another version has collected, which does not tell the smallest.
	old := Distribution{Count: 2, Max: 3 * time.Hour, Buckets: []Bucket{{From: 150 * time.Minute, To: 200 * time.Minute, Count: 2}}}
	if got := old.Quantile(0.5); got != 165*time.Minute {
		t.Errorf("the median is %v", got)
	}
}

func TestAbove(t *testing.T) {
	d := DistributionOf(time.Second, time.Second, time.Minute, time.Hour)
	for age, want := range map[time.Duration]int64{0: 4, 30 * time.Second: 2, 10 * time.Minute: 1, time.Hour: 0, 2 * time.Hour: 0} {
		if got := d.Above(age); got != want {
			t.Errorf("%d above %v, want %d", got, age, want)
		}
	}
}

// What two processes have collected is what one would have.
func TestMerge(t *testing.T) {
	a := DistributionOf(time.Second, time.Minute)
	b := DistributionOf(time.Second, time.Hour)
	both := DistributionOf(time.Second, time.Minute, time.Second, time.Hour)
	if got := a.Merge(b); fmt.Sprint(got) != fmt.Sprint(both) {
		t.Errorf("%+v, want %+v", got, both)
	}
	if got := (Distribution{}).Merge(a).Merge(Distribution{}); fmt.Sprint(got) != fmt.Sprint(a) {
		t.Errorf("with nothing: %+v", got)
	}
	if a.Merge(b).Min != time.Second || (Distribution{}).Merge(b).Min != time.Second || b.Merge(DistributionOf(time.Millisecond)).Min != time.Millisecond {
		t.Error("the smallest is lost")
	}
	if len(a.Buckets) != 2 || a.Buckets[0].Count != 1 {
		t.Errorf("merging has changed what was merged: %+v", a)
	}
}

func TestWhichReceiptsAreRetries(t *testing.T) {
	var ages Ages
	for _, r := range []publisher.Receipt{
		{Verdict: publisher.VerdictAdded, Age: time.Hour},
		{Verdict: publisher.VerdictUnknown, Age: time.Hour, Err: errors.New("lost")},
		{Verdict: publisher.VerdictDuplicate, Age: time.Hour, Resent: true},
		{Verdict: publisher.VerdictDuplicate, Age: time.Hour, Err: fmt.Errorf("x: %w", publisher.ErrConflict)},
		{Verdict: publisher.VerdictDuplicate, Age: time.Second},
		{Verdict: publisher.VerdictOriginalGone, Age: time.Minute},
	} {
		ages.Hooks().OnPublish(r)
	}
	if d := ages.Distribution(); d.Count != 2 || d.Max != time.Minute {
		t.Errorf("%+v", d)
	}
}

// A tool reads over HTTP what a service has collected. The names are stored nowhere, but two
// versions must understand each other.
func TestAgesOverHTTP(t *testing.T) {
	var ages Ages
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				ages.Add(time.Second)
			}
		})
	}
	wg.Wait()
	answer := httptest.NewRecorder()
	ages.ServeHTTP(answer, nil)
	if want := `{"count":400,"min_ns":1000000000,"max_ns":1000000000,"buckets":[{"from_ns":861077929,"to_ns":1024000000,"count":400}]}` + "\n"; answer.Body.String() != want {
		t.Errorf("%s, want %s", answer.Body, want)
	}
	var d Distribution
	if err := json.Unmarshal(answer.Body.Bytes(), &d); err != nil || fmt.Sprint(d) != fmt.Sprint(ages.Distribution()) {
		t.Errorf("%+v, %v", d, err)
	}
}
