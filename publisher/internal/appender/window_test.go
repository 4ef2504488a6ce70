package appender

import (
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

func TestOverflow(t *testing.T) {
	const window = time.Minute
	start := time.Unix(1_000_000, 0)
	var o overflow
	look := func(asked, answered time.Duration, added, tracked int64) int64 {
		return o.countEvicted(start.Add(asked), start.Add(answered), window, server.StreamInfo{IIDsAdded: added, IIDsTracked: tracked})
	}
	for _, step := range []struct {
		at, late       time.Duration
		added, tracked int64
		want           bool
		why            string
	}{
		{0, 0, 5000, 5000, false, "what was there before may expire at any time"},
		{10 * time.Second, 0, 9000, 4000, false, "5,000 are gone, all of which may be old"},
		{20 * time.Second, 0, 16_000, 10_000, true, "6,000 are gone, 5,000 of which were old"},
		{75 * time.Second, 0, 16_000, 1000, false, "all of those added up to the first look in the window may have expired"},
		{76 * time.Second, 0, 27_000, 10_000, true, "17,000 are gone, of which 16,000 had the right"},
		{90 * time.Second, 0, 100, 100, false, "the stream was made anew"},
		{95 * time.Second, 30 * time.Second, 100, 100, false, "all are there; 1,000 are added at once, and the reply is late"},
		{150 * time.Second, 6 * time.Second, 1100, 100, false, "1,000 are gone, which may be older than a minute"},
		{150*time.Second + time.Millisecond, time.Hour, 2100, 100, false, "the only look at them is an hour ago"},
		{4000 * time.Second, 10 * time.Second, 5000, 3000, false, "2,000 are gone, which were there long ago"},
		{4020 * time.Second, 2 * time.Second, 14_000, 12_000, false, "the same 2,000 are gone"},
		{4021 * time.Second, 2 * time.Second, 13_000, 11_000, false, "overtaken by the reply before"},
		{4022 * time.Second, 0, 20_000, 10_000, true, "10,000 are gone, of which 5,000 had the right"},
	} {
		if got := look(step.at, step.at+step.late, step.added, step.tracked); (got > 0) != step.want {
			t.Errorf("after %v: %d evicted, but %s", step.at, got, step.why)
		}
	}
}

// Each id that was forgotten too early is in one report, however fast they came.
func TestOverflowReports(t *testing.T) {
	start := time.Unix(1_000_000, 0)
	var o overflow
	report := func(at time.Duration, evicted, forgotten int64) int64 {
		return o.report(start.Add(at), evicted, server.StreamInfo{IIDsAdded: 10_000 + forgotten, IIDsTracked: 10_000})
	}
	for _, step := range []struct {
		at                       time.Duration
		evicted, forgotten, want int64
	}{
		{0, 0, 5000, 0},
		{time.Second, 256, 5256, 256},
		{2 * time.Second, 50_256, 55_256, 0}, // the burst
		{3 * time.Second, 90_000, 95_000, 0},
		{4 * time.Second, 80_000, 85_000, 0}, // overtaken
		{61 * time.Second, 90_000, 95_000, 89_744},
		{122 * time.Second, 90_000, 95_000, 0},
		{123 * time.Second, 10, 95_100, 10},
		{124 * time.Second, 400, 95_500, 0},
		{125 * time.Second, 0, 99_000, 0}, // these had the right
	} {
		if got := report(step.at, step.evicted, step.forgotten); got != step.want {
			t.Errorf("after %v: reports %d, want %d", step.at, got, step.want)
		}
	}
	if got := o.takeRest(); got != 400 {
		t.Errorf("last word: %d, want 400", got)
	}
	if got := o.takeRest(); got != 0 {
		t.Errorf("after the last word: %d", got)
	}
}

// A producer a day ahead would trim everything if it went by its own clock.
func TestMaxAgeGoesByTheServersClock(t *testing.T) {
	orders := New(&Config{ProducerID: "p"}, "orders", Settings{MaxAge: time.Hour}, nil)
	st := &Session{stream: orders, clock: server.ClockAt(time.Now().Add(-24 * time.Hour))} // our clock is a day ahead of the server's
	orders.recordID(streamid.ID{MS: uint64(time.Now().UnixMilli())})
	args := st.appendTrim(nil, &batch.Item{})
	want := time.Now().Add(-25 * time.Hour)
	if len(args) != 3 || args[0] != "minid" || args[1] != "~" {
		t.Fatalf("clause %v", args)
	}
	if got := time.UnixMilli(args[2].(int64)); got.Sub(want).Abs() > time.Minute {
		t.Errorf("trims up to %v, want about %v", got, want)
	}
	if age := st.age(streamid.ID{MS: uint64(time.Now().Add(-24*time.Hour - time.Minute).UnixMilli())}); (age - time.Minute).Abs() > time.Second {
		t.Errorf("age %v, want a minute", age)
	}
}

// A server whose clock was set back gives new entries the time of the newest one. They
// must not count as old as soon as they are added.
func TestMaxAgeAfterTheServersClockWasSetBack(t *testing.T) {
	orders := New(&Config{ProducerID: "p"}, "orders", Settings{MaxAge: time.Minute}, nil)
	st := &Session{stream: orders, clock: server.ClockAt(time.Now())}
	newest := time.Now().Add(-time.Hour).Truncate(time.Millisecond) // set back then, since when an hour has passed
	orders.recordID(streamid.ID{MS: uint64(newest.UnixMilli())})
	orders.recordID(streamid.ID{MS: uint64(newest.Add(-time.Minute).UnixMilli())})
	args := st.appendTrim(nil, &batch.Item{})
	if got, want := time.UnixMilli(args[2].(int64)), newest.Add(-time.Minute); !got.Equal(want) {
		t.Errorf("trims up to %v, want %v", got, want)
	}
}
