package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/inspect"
)

func newLatch(a *app) *cobra.Command {
	return parent("latch", "What a topic in mode latch remembers",
		`Where the server does not remember idempotent IDs by itself (before Redis 8.6, and Valkey), a key in
Redis for each event, a latch, says which entry it was added as. A repeated publish finds it.`,
		newLatchList(a), newLatchGet(a))
}

// latchView is a latch in JSON. Its names are stable.
type latchView struct {
	Key          string     `json:"key"`
	ProducerID   string     `json:"producer_id"`
	IdempotentID string     `json:"idempotent_id"`
	EntryID      string     `json:"entry_id"`
	AddedAt      *time.Time `json:"added_at"`
	AgeSeconds   float64    `json:"age_seconds"`
	TTLSeconds   float64    `json:"ttl_seconds"`
	Fingerprint  string     `json:"fingerprint,omitempty"`
	Entry        string     `json:"entry"`
	Void         bool       `json:"void"`
}

func latchViewOf(l inspect.Latch) latchView {
	return latchView{l.Key, l.ProducerID, l.IdempotentID, l.EntryID, timeOf(l.AddedAt), l.Age.Seconds(), l.TTL.Seconds(), l.Fingerprint, l.Entry.String(), l.Void}
}

// noLatches explains a topic without latches.
func noLatches(ctx context.Context, l *look, topic string, err error) error {
	if errors.Is(err, inspect.ErrNoLatches) || errors.Is(err, inspect.ErrNotFound) {
		if unknown := l.mustExist(ctx, topic); unknown != nil {
			return unknown
		}
	}
	switch {
	case errors.Is(err, inspect.ErrNoLatches):
		return exit.Errorf(exit.Found, "topic %q has no latches: it is not in mode latch", topic).
			Do("In the other modes the server remembers IDs and tells nobody which; `idemctl topic show %s` says how many.", quote(topic))
	case errors.Is(err, inspect.ErrNotFound):
		return exit.Errorf(exit.Found, "there is no latch of it for topic %q at %s", topic, l.Where).
			Do("It was not published in the last window, or by another producer ID. `idemctl latch list %s` shows what there is.", quote(topic))
	}
	return err
}

func newLatchList(a *app) *cobra.Command {
	var f inspect.LatchFilter
	cmd := &cobra.Command{
		Use:   "list TOPIC",
		Short: "List latches with entry, age, time left",
		Long: `Lists the latches of a topic, the newest first. It goes through all keys of the topic's server, a
thousand at a time, which holds up nobody.`,
		Example: examples("idemctl latch list payments", "idemctl latch list payments --match 'pay:9*' --limit 20"),
		Args:    args("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			if f.Limit < 0 {
				return exit.Errorf(exit.Usage, "--limit %d is negative", f.Limit)
			}
			l, err := a.look(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			bar := a.screen.Progress("Looking through the keys", -1)
			var all []inspect.Latch
			for latch, err := range l.Latches(cmd.Context(), given[0], f) {
				if err != nil {
					bar.End()
					return l.lacks(cmd.Context(), given[0], noLatches(cmd.Context(), l, given[0], err))
				}
				all = append(all, latch)
				bar.Set(int64(len(all)), 0)
			}
			bar.End()
			slices.SortFunc(all, func(a, b inspect.Latch) int {
				if c := b.AddedAt.Compare(a.AddedAt); c != 0 {
					return c
				}
				return strings.Compare(a.Key, b.Key)
			})
			views := make([]latchView, 0, len(all))
			for _, latch := range all {
				views = append(views, latchViewOf(latch))
			}
			err = a.screen.Show(views, func(p *screen.Page) { latchTable(p, all, given[0]) })
			if f.Limit > 0 && len(all) == f.Limit {
				a.screen.Remark("There may be more than %d; --limit 0 shows all.", f.Limit)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&f.ProducerID, "producer", "", "only those of this producer `ID`")
	cmd.Flags().StringVar(&f.Match, "match", "", "only idempotent IDs of this `PATTERN`, as Redis has them: 'pay:9*'")
	cmd.Flags().IntVar(&f.Limit, "limit", 1000, "at most so many; 0: all")
	return cmd
}

func latchTable(p *screen.Page, all []inspect.Latch, topic string) {
	if len(all) == 0 {
		p.Line("No latches of topic %s.", screen.Printable(topic))
		return
	}
	var rows [][]string
	for _, l := range all {
		entry := l.Entry.String()
		if l.Void {
			entry = "void: the stream was deleted"
		}
		rows = append(rows, []string{screen.Printable(l.IdempotentID), screen.Printable(l.ProducerID), l.EntryID, screen.Duration(l.Age), screen.Duration(l.TTL), entry})
	}
	p.Table([]string{"EVENT", "PRODUCER", "ENTRY", "AGE", "LEFT", "ENTRY IS"}, rows, 3, 4)
}

func newLatchGet(a *app) *cobra.Command {
	var producer string
	cmd := &cobra.Command{
		Use:   "get TOPIC EVENT",
		Short: "Show the latch of an event: entry, age, time left",
		Long: `Shows the latch of an event's key. With --producer it is one look-up; without, all keys of the
topic's server are looked through.

Exit code 1: there is none; a publish of the event would add it.`,
		Example: examples("idemctl latch get payments pay:9001", "idemctl latch get payments pay:9001 --producer payment-service"),
		Args:    args("TOPIC", "EVENT"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			l, err := a.look(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			latch, err := l.Latch(cmd.Context(), given[0], producer, given[1])
			if err != nil {
				return l.lacks(cmd.Context(), given[0], noLatches(cmd.Context(), l, given[0], err))
			}
			now := time.Now()
			return a.screen.Show(latchViewOf(latch), func(p *screen.Page) {
				entry := latch.EntryID + ", " + map[inspect.EntryState]string{
					inspect.EntryUnknown: "nobody looked whether it is there", inspect.EntryThere: "in the stream",
					inspect.EntryGone: "trimmed or deleted; a retry is not added",
				}[latch.Entry]
				void := ""
				if latch.Void {
					void = "the stream was deleted since: the latch has no effect"
				}
				p.Facts(
					screen.Fact{Name: "event", Value: screen.Printable(latch.IdempotentID)},
					screen.Fact{Name: "producer ID", Value: screen.Printable(latch.ProducerID)},
					screen.Fact{Name: "entry", Value: entry},
					screen.Fact{Name: "added", Value: screen.Ago(latch.AddedAt, now)},
					screen.Fact{Name: "remembered for", Value: screen.Duration(latch.TTL) + " more"},
					screen.Fact{Name: "void", Value: void},
					screen.Fact{Name: "fingerprint", Value: latch.Fingerprint},
					screen.Fact{Name: "key", Value: screen.Printable(latch.Key)},
				)
			})
		},
	}
	cmd.Flags().StringVar(&producer, "producer", "", "producer `ID` that published it")
	return cmd
}
