package cli

import (
	"slices"
	"testing"
)

func TestSimilarNames(t *testing.T) {
	names := []string{"payments", "refunds", "billing", "max deliveries", "rejected", ""}
	for name, want := range map[string][]string{
		"paymets": {"payments"}, "Paymnts": {"payments"}, "pay": {"payments"}, "biling": {"billing"}, "rejectd": {"rejected"},
		"max deliveris": {"max deliveries"}, "ab": nil, "orders": nil, "x": nil, "refund": {"refunds"},
	} {
		if got := similar(name, names); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	if got := similar("order-1", []string{"order-33", "order-2"}); !slices.Equal(got, []string{"order-2", "order-33"}) {
		t.Errorf("the closest first: %q", got)
	}
	if got := oneOf([]string{"a", "b", "c"}); got != "a, b or c" {
		t.Error(got)
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "abc", 0}, {"lst", "list", 1}, {"kitten", "sitting", 3}, {"größe", "grösse", 2}} {
		if got := distance(c.a, c.b); got != c.want || distance(c.b, c.a) != c.want {
			t.Errorf("%q and %q: %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
