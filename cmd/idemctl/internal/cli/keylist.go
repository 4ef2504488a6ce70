package cli

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/dedupe"
)

func newKeyList(a *app) *cobra.Command {
	var k keyArgs
	var state, contains string
	var before, after moment
	var limit int
	cmd := &cobra.Command{
		Use:   "list [NAMESPACE]",
		Short: "List records of handled events",
		Long: `Lists records, those of one namespace or of all, the first ones in order. It goes through the whole store: in Redis
through all keys of the server, a thousand at a time, which holds up nobody.`,
		Example: examples("idemctl key list billing", "idemctl key list billing --state in-progress", "idemctl key list billing --contains 9001",
			"idemctl key list --before 7d --limit 0 -o json"),
		Args:              args("[NAMESPACE]"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			f := dedupe.Filter{Topic: k.topic, Handler: k.handler}
			if len(given) > 0 {
				f.Namespace = given[0]
			}
			switch state {
			case "":
			case "done":
				f.State = dedupe.StateDone
			case "in-progress":
				f.State = dedupe.StateInProgress
			default:
				return exit.Errorf(exit.Usage, "--state %q is unknown", state).Do("There are done and in-progress.")
			}
			if err := inOrder("--after", after, "--before", before); err != nil {
				return err
			}
			s, err := a.store(cmd.Context(), k.store)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			match := func(r dedupe.Record) bool {
				return strings.Contains(r.Key.Event, contains) &&
					(before.IsZero() || !r.CommittedAt.IsZero() && r.CommittedAt.Before(before.Time)) && (after.IsZero() || !r.CommittedAt.Before(after.Time))
			}
			records, total, err := listRecords(cmd.Context(), a, s, f, match, limit)
			if err != nil {
				return err
			}
			if len(records) == 0 && f.Namespace != "" {
				if names := namespaceMeant(cmd.Context(), s, f.Namespace); names != "" {
					defer a.screen.Remark("No record has the namespace %q. %s", f.Namespace, names)
				}
			}
			err = a.screen.Show(recordViews(records), func(p *screen.Page) { recordTable(p, records, s, time.Now()) })
			switch more := total - len(records); {
			case total > mostRecords:
				a.screen.Remark("These are the first of %s that were looked at, and there are more; --limit 0 shows all.", screen.Count(mostRecords))
			case more > 0:
				a.screen.Remark("%s more of %s; --limit 0 shows all.", screen.Count(more), screen.Count(total))
			}
			return err
		},
	}
	k.flags(cmd)
	cmd.Flags().StringVar(&state, "state", "", "only records of this `STATE`: done or in-progress")
	cmd.Flags().StringVar(&contains, "contains", "", "only events with this `TEXT` in their key")
	cmd.Flags().Var(&before, "before", "only events that were handled before this `TIME`: 2h (ago), or 2006-01-02T15:04:05Z")
	cmd.Flags().Var(&after, "after", "only events that were handled at or after this `TIME`")
	cmd.Flags().IntVar(&limit, "limit", 100, "at most so many, the first in order; 0: all")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"done", "in-progress"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// mostRecords is how many records a list with a limit looks at, to have the first ones in order and to
// say how many more there are.
const mostRecords = 100_000

// listRecords gives the first records in order, and how many there are; above mostRecords that there are
// more.
func listRecords(ctx context.Context, a *app, s *connect.Store, f dedupe.Filter, match func(dedupe.Record) bool, limit int) (records []dedupe.Record, total int, err error) {
	p := a.screen.Progress("Looking through the records", -1)
	defer p.End()
	seen, n := make(map[dedupe.Key]bool), int64(0)
	for r, err := range s.List(ctx, f) {
		if err != nil {
			return nil, 0, err
		}
		n++
		p.Set(n, 0)
		if seen[r.Key] || !match(r) {
			continue
		}
		if total++; limit > 0 && total > mostRecords {
			break
		}
		seen[r.Key] = true // SCAN may give one twice
		records = append(records, r)
		if limit > 0 && len(records) >= 2*limit+sortEvery {
			records = first(records, limit)
		}
	}
	if limit == 0 {
		limit = len(records)
	}
	return first(records, limit), total, nil
}

// sortEvery is how many records may gather above a limit before they are sorted.
const sortEvery = 1000

func first(records []dedupe.Record, n int) []dedupe.Record {
	sortRecords(records)
	return records[:min(n, len(records))]
}
