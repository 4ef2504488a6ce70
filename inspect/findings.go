package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/onceward/watermill-idempotent/internal/span"
	"github.com/onceward/watermill-idempotent/publisher"
)

// findings says in words why a stream has duplicates: first what may hide some, then the most frequent
// cause.
func findings(d *Duplicates, topic Topic, sourced bool) (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	if d.Keyless > 0 {
		say("%s", explainKeyless(d, topic, sourced))
	}
	causes := slices.SortedFunc(maps.Keys(d.ByCause), func(a, b Cause) int {
		return cmp.Or(cmp.Compare(d.ByCause[b], d.ByCause[a]), cmp.Compare(a, b))
	})
	for _, cause := range causes {
		say("%s: %s", plural(d.ByCause[cause], "pair", "pairs"), explainCause(cause, d, topic))
	}
	if len(causes) == 0 {
		say("No event is there twice among the %s.", plural(d.Entries, "entry that was read", "entries that were read"))
	}
	if d.More {
		say("Only the newest %d entries of the range were read, from %s on: an event whose first entry is older is not seen as a duplicate.", d.Entries, d.FromID)
	}
	if d.Undecodable > 0 {
		say("%s can't be decoded, and could not be compared: %s.", plural(d.Undecodable, "entry", "entries"), listed(d.UndecodableIDs, d.Undecodable))
	}
	if sourced && d.Sourced == 0 && d.Keyless == 0 {
		say("The source of keys was not needed: every entry brings its key.")
	}
	return list
}

func plural(n int64, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprint(n, " ", more)
}

// listed are IDs, of which there may be more.
func listed(ids []string, of int64) string {
	text := strings.Join(ids, ", ")
	if more := of - int64(len(ids)); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

func explainKeyless(d *Duplicates, topic Topic, sourced bool) string {
	ids := listed(d.KeylessIDs, d.Keyless)
	switch {
	case sourced && d.Sourced == 0:
		return fmt.Sprintf("The source of keys makes none for any of the entries that bring none: %v. %s compared by the message UUID alone: %s.",
			d.KeyErr, plural(d.Keyless, "entry was", "entries were"), ids)
	case sourced:
		return fmt.Sprintf("%s no key, and the source of keys finds none: %v. They were compared by their message UUIDs alone: %s.",
			plural(d.Keyless, "entry has", "entries have"), d.KeyErr, ids)
	case topic.Layout.Mode == publisher.ModeIDMPAuto:
		return fmt.Sprintf("%s no key: in this mode the content stands for it. They were compared by their message UUIDs alone.", plural(d.Keyless, "entry has", "entries have"))
	}
	return fmt.Sprintf("%s no key of this library: written past it, by somebody whom nothing keeps from adding an event twice. "+
		"Compared by the message UUID alone, since the source of the key is not known: %s.", plural(d.Keyless, "entry has", "entries have"), ids)
}

func explainCause(cause Cause, d *Duplicates, topic Topic) string {
	w := &d.Window
	switch cause {
	case CauseAttempt:
		return "published again on purpose, by a replay of a dead letter, a requeue or eventkey.NextAttempt. That is no fault."
	case CauseLate:
		return fmt.Sprintf("the retry came later than the window lasts, which is %s; the latest after %s. Raise Window.Duration, "+
			"or find out why retries come so late; package window advises.", span.Text(w.Duration), span.Text(d.Apart.Max))
	case CauseFull:
		return fmt.Sprintf("at least %d entries came in between, which is as many keys as the window holds. Raise Window.Entries, or look for a producer that runs wild; package window advises.", w.Entries)
	case CauseUnguarded:
		if !topic.HasLayout {
			return "no publisher of this library has set the topic up, so nothing recognises a retry."
		}
		return "at least one of the two was not written by a publisher of this library: it has no idempotency_key in its metadata. Find who else publishes to the topic."
	case CauseProducers:
		extra := ""
		if i := slices.IndexFunc(d.Pairs, func(p Pair) bool { return p.Cause == CauseProducers }); i >= 0 {
			extra = fmt.Sprintf(", such as %s of %s", d.Pairs[i].Second.ID, d.Pairs[i].Second.At.Format("2006-01-02 15:04:05.000Z"))
		}
		return fmt.Sprintf("within the window; and the server remembers IDs of %d producer IDs, where one logical producer has %d: %d are extra. Instances or services with "+
			"ProducerIDs of their own each add an event once: give all instances of a service the same ProducerID. Neither the server nor an entry has its name. "+
			"The second entry of a pair is the extra one%s: see which service published then.",
			w.ProducerIDs, topic.Layout.Shards, w.ProducerIDs-int64(topic.Layout.Shards), extra)
	}
	if w.Duration == 0 {
		return "how long the topic remembers is not known, so neither is whether the retry came too late."
	}
	return "within the window, as it is now. Either the window was another one then, or the server has lost IDs (restart without append-only file, failover, " +
		"XCFGSET by hand, a stream that was copied), or the two have different ProducerIDs, or somebody copied the message with its metadata through another publisher."
}
