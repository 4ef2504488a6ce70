package entries

import (
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Times are those of the entries in between: from the first one on, up to before the second.
func TestBetween(t *testing.T) {
	at := func(ms int64, more time.Duration) time.Time { return time.UnixMilli(ms).Add(more) }
	last := streamid.ID{MS: 9000, Seq: 3}
	const end = "18446744073709551615"
	for _, c := range []struct {
		from, to time.Time
		want     Span
	}{
		{time.Time{}, time.Time{}, Span{From: "-", To: "9000-3"}},
		{at(5, 0), time.Time{}, Span{From: "5-0", To: "9000-3"}},
		{at(5, 1), time.Time{}, Span{From: "6-0", To: "9000-3"}},
		{time.Time{}, at(7, 0), Span{From: "-", To: "6-" + end}},
		{time.Time{}, at(7, 1), Span{From: "-", To: "7-" + end}},
		{time.Time{}, at(9000, 0), Span{From: "-", To: "8999-" + end}},
		{time.Time{}, at(9001, 0), Span{From: "-", To: "9000-3"}},
	} {
		if got := Between(c.from, c.to, last); got != c.want {
			t.Errorf("from %v to %v: %+v, want %+v", c.from, c.to, got, c.want)
		}
	}
}
