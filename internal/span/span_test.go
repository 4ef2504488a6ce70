package span

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestText(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", 1: "<1ms", 40 * time.Millisecond: "40ms", 3200 * time.Millisecond: "3.2s", 3290 * time.Millisecond: "3.2s", time.Minute: "1m",
		125 * time.Second: "2m5s", 80 * time.Minute: "1h20m", 99 * time.Hour: "4d3h", -time.Hour: "-1h", time.Hour + time.Second: "1h",
		24 * time.Hour: "1d", 655*time.Hour + 40*time.Minute: "27d7h", 59999 * time.Millisecond: "59.9s", math.MinInt64: "-53375d23h",
	} {
		if got := Text(d); got != want {
			t.Errorf("%v: %s, want %s", int64(d), got, want)
		}
	}
}

// What is written the same differs by less than a step.
func TestStep(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		unit := rapid.SampledFrom([]time.Duration{time.Millisecond, time.Second, time.Minute, time.Hour}).Draw(t, "unit")
		d := time.Duration(rapid.Int64Range(1, 5000).Draw(t, "n")) * unit
		if Text(d) == Text(d+Step(d)) {
			t.Fatalf("%v and %v are %s", d, d+Step(d), Text(d))
		}
		if at := d.Truncate(Step(d)); Text(at) != Text(at+Step(at)-1) {
			t.Fatalf("%s is %s a little later", Text(at), Text(at+Step(at)-1))
		}
	})
}
