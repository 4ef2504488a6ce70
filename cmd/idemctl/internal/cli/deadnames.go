package cli

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// mostCounted bounds how many letters are read for their marks alone.
const mostCounted = 10_000

// tally counts letters by one of their marks.
type tally map[string]int

// names are the most frequent first.
func (t tally) names() []string {
	return slices.SortedFunc(maps.Keys(t), func(a, b string) int { return cmp.Or(t[b]-t[a], strings.Compare(a, b)) })
}

// String lists what there is, with numbers.
func (t tally) String() string {
	var parts []string
	for _, name := range t.names() {
		parts = append(parts, fmt.Sprintf("%s (%s)", screen.Or(screen.Printable(name), "none"), screen.Count(t[name])))
	}
	return strings.Join(parts, ", ")
}

// of is how many letters have a mark; -1 where they could not be counted.
func (t tally) of(name string) int64 {
	if t == nil {
		return -1
	}
	return int64(t[name])
}

// deadByGroup counts a topic's dead letters by the group that gave up on them; nil if the user may not
// look, or if they are too many to be read for that.
func deadByGroup(ctx context.Context, a *app, l *look, topic string) tally {
	ctx, cancel := a.Bounded(ctx)
	defer cancel()
	letters, err := deadletter.New(deadletter.Config{Client: l.UniversalClient})
	if err != nil {
		return nil
	}
	groups, n := make(tally), 0
	for letter, err := range letters.List(ctx, topic, deadletter.Filter{}) {
		if n++; err != nil || n > mostCounted {
			return nil
		}
		groups[letter.Group]++
	}
	return groups
}

// saysWhy remarks on a filter that has picked nothing because no letter has its reason, or its group.
func (l *letters) saysWhy(ctx context.Context, a *app, topic string, f deadletter.Filter) {
	if f.Reason == "" && f.Group == "" {
		return
	}
	reasons, groups := make(tally), make(tally)
	for letter, err := range l.dead.List(ctx, topic, deadletter.Filter{Limit: mostCounted}) {
		if err != nil {
			return // it was said already, or the command has succeeded without
		}
		reasons[letter.Reason]++
		groups[letter.Group]++
	}
	say := func(what, wanted string, there tally, others ...string) {
		if wanted == "" || there[wanted] > 0 || len(there) == 0 {
			return
		}
		meant := slices.DeleteFunc(similar(wanted, append(there.names(), others...)), func(n string) bool { return n == wanted })
		a.screen.Remark("No dead letter has the %s %q. %sThere are: %s.", what, wanted, didYouMean(printables(meant)), there)
	}
	say("reason", f.Reason, reasons, subscriber.ReasonMaxDeliveries, subscriber.ReasonUndecodable, subscriber.ReasonRejected)
	say("group", f.Group, groups)
}
