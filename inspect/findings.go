package inspect

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// findings says in words why a stream has duplicates, the most frequent cause first.
func findings(d *Duplicates, topic Topic) (list []string) {
	say := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	causes := slices.SortedFunc(maps.Keys(d.ByCause), func(a, b Cause) int {
		return cmp.Or(cmp.Compare(d.ByCause[b], d.ByCause[a]), cmp.Compare(a, b))
	})
	for _, cause := range causes {
		say("%s: %s", pairs(d.ByCause[cause]), explainCause(cause, d, topic))
	}
	if len(causes) == 0 {
		say("No event is there twice among the %d entries that were read.", d.Entries)
	}
	if d.More {
		say("Only the newest %d entries of the range were read, from %s on: an event whose first entry is older is not seen as a duplicate.", d.Entries, d.FromID)
	}
	if d.Keyless > 0 {
		say("%d entries bring no key: other publishers have written them. They were compared by their message UUIDs; with the source of their key (Scan.Key) more is found.", d.Keyless)
	}
	if d.Undecodable > 0 {
		say("%d entries can't be decoded, and were not compared.", d.Undecodable)
	}
	return list
}

func pairs(n int64) string {
	if n == 1 {
		return "1 pair"
	}
	return fmt.Sprint(n, " pairs")
}

func explainCause(cause Cause, d *Duplicates, topic Topic) string {
	w := &d.Window
	switch cause {
	case CauseAttempt:
		return "published again on purpose, by a replay of a dead letter, a requeue or eventkey.NextAttempt. That is no fault."
	case CauseLate:
		return fmt.Sprintf("the retry came later than the window lasts, which is %v; the latest after %v. Raise Window.Duration, "+
			"or find out why retries come so late; package window advises.", w.Duration, d.Apart.Max.Round(time.Second))
	case CauseFull:
		return fmt.Sprintf("at least %d entries came in between, which is as many keys as the window holds. Raise Window.Entries, or look for a producer that runs wild; package window advises.", w.Entries)
	case CauseUnguarded:
		if !topic.HasLayout {
			return "no publisher of this library has set the topic up, so nothing recognises a retry."
		}
		return "at least one of the two was not written by a publisher of this library: it has no idempotency_key in its metadata. Find who else publishes to the topic."
	case CauseProducers:
		return fmt.Sprintf("within the window; and the server remembers IDs of %d producer IDs, where one logical producer has %d. Instances or services with "+
			"ProducerIDs of their own each add an event once: give all instances of a service the same ProducerID.", w.ProducerIDs, topic.Layout.Shards)
	}
	if w.Duration == 0 {
		return "how long the topic remembers is not known, so neither is whether the retry came too late."
	}
	return "within the window, as it is now. Either the window was another one then, or the server has lost IDs (restart without append-only file, failover, " +
		"XCFGSET by hand, a stream that was copied), or the two have different ProducerIDs, or somebody copied the message with its metadata through another publisher."
}
