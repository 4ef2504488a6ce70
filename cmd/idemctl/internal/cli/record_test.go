package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/onceward/watermill-idempotent/dedupe"
)

func TestNaturalOrder(t *testing.T) {
	want := strings.Fields("pay pay: pay:01 pay:1 pay:1:2 pay:1:10 pay:2 pay:9 pay:10 pay:0010x pay:100 pay:a pay:a9 pay:a10 pay:é z")
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, natural)
	if !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	// Whatever there is, it is one order.
	names := strings.Fields("p p1 p01 p001 p0001 p1x p1y p1xxx p1x1 p1x01 p10 p9 p: p- x1p 1 01 0 00 10 a 1a 01a é1 é")
	for _, a := range names {
		for _, b := range names {
			if sign(natural(a, b)) != -sign(natural(b, a)) || (natural(a, b) == 0) != (a == b) {
				t.Errorf("%s and %s: %d and %d", a, b, natural(a, b), natural(b, a))
			}
			for _, c := range names {
				if natural(a, b) < 0 && natural(b, c) < 0 && natural(a, c) >= 0 {
					t.Errorf("%s < %s < %s < %s", a, b, c, a)
				}
			}
		}
	}
}

func sign(n int) int { return max(-1, min(n, 1)) }

func TestFirstRecords(t *testing.T) {
	var records []dedupe.Record
	for _, event := range []string{"pay:10", "pay:9", "pay:100"} {
		records = append(records, dedupe.Record{Key: dedupe.Key{Namespace: "n", Event: event}})
	}
	if got := first(records, 2); len(got) != 2 || got[0].Key.Event != "pay:9" || got[1].Key.Event != "pay:10" {
		t.Errorf("%+v", got)
	}
	if got := first(records, 5); len(got) != 3 {
		t.Errorf("%+v", got)
	}
}
