package inspect

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/publisher"
)

func newScanning(w Window) *scanning {
	return &scanning{
		Scan: Scan{MaxPairs: 1000}, inspector: &Inspector{decode: entries.NewDecoder(nil)}, events: make(map[digest]*seen), ByCause: make(map[Cause]int64),
		topic: Topic{Topic: "orders", HasLayout: true, Layout: publisher.Layout{Mode: publisher.ModeIDMP, Shards: 1}, Window: w},
	}
}

// entry is one as the scan reads it: fields beside the metadata are metadata, too.
func entry(ms int, key, replayOf string) entries.Entry {
	values := map[string]any{wire.FieldUUID: "u", wire.FieldPayload: "p", eventkey.MetadataKey: key}
	if replayOf != "" {
		values[wmeta.DeadOrigin], values[wmeta.DeadGroup] = "orders "+replayOf, "billing"
	}
	return entries.Entry{ID: fmt.Sprint(ms, "-0"), Values: values}
}

// A retry that comes after a replay is one of the first publish, not of the replay.
func TestRetryBehindAReplay(t *testing.T) {
	s := newScanning(Window{Duration: time.Second})
	for _, e := range []entries.Entry{entry(9000, "a", "1-0"), entry(5000, "a", ""), entry(2000, "a", "1-0"), entry(1000, "a", "")} { // the newest first
		s.add(e)
	}
	got := ""
	for _, p := range s.Pairs {
		got += fmt.Sprint(p.First.ID, " ", p.Second.ID, " ", p.Cause, "; ")
	}
	want := "5000-0 9000-0 deliberate attempt; 2000-0 9000-0 later than the window; 1000-0 5000-0 later than the window; "
	if got != want || s.total != 3 || s.ages.Distribution().Count != 2 {
		t.Errorf("%s, want %s", got, want)
	}
}

// However entries are mixed, each but the first of a key is in a pair, and in the right one.
func TestPairs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		type name struct{ key, replay string }
		n := rapid.IntRange(0, 30).Draw(t, "entries")
		list := make([]name, n)
		for i := range list {
			list[i] = name{rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "key"), rapid.SampledFrom([]string{"", "1-0", "2-0"}).Draw(t, "replay")}
		}
		s := newScanning(Window{Duration: 10 * time.Millisecond, Entries: 5})
		for i := n - 1; i >= 0; i-- {
			s.add(entry(i+1, list[i].key, list[i].replay))
		}
		last, keys, attempts := make(map[name]int), make(map[string]bool), int64(0)
		want := make(map[string]Cause)
		for i, e := range list {
			if before, ok := last[e]; ok {
				cause := CauseUnknown
				switch {
				case i-before >= 10:
					cause = CauseLate
				case i-before > 5:
					cause = CauseFull
				}
				want[fmt.Sprint(before+1, "-0 ", i+1, "-0 ", i-before-1)] = cause
			}
			last[e] = i
		}
		for e := range last {
			if keys[e.key] {
				attempts++
			}
			keys[e.key] = true
		}
		for _, p := range s.Pairs {
			id := fmt.Sprint(p.First.ID, " ", p.Second.ID, " ", p.Between)
			if cause, ok := want[id]; p.Cause != CauseAttempt && (!ok || cause != p.Cause) {
				t.Fatalf("pair %s is %v, want %v", id, p.Cause, want)
			}
		}
		if s.ByCause[CauseAttempt] != attempts || s.total != int64(len(want))+attempts || len(s.events) != len(keys) || s.read != int64(n) {
			t.Fatalf("%d pairs by %v, want %d and %d attempts", s.total, s.ByCause, len(want), attempts)
		}
	})
}

func TestCounterThatBeginsAnew(t *testing.T) {
	for _, c := range [][3]int64{{0, 5, 5}, {5, 5, 0}, {5, 9, 4}, {100, 3, 3}} {
		if got := grown(c[0], c[1]); got != c[2] {
			t.Errorf("from %d to %d: %d, want %d", c[0], c[1], got, c[2])
		}
	}
}
