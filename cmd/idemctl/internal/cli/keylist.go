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
		Long: `Lists records, those of one namespace or of all. It goes through the whole store: in Redis
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
			s, err := a.store(cmd.Context(), k.store)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			match := func(r dedupe.Record) bool {
				return strings.Contains(r.Key.Event, contains) &&
					(before.IsZero() || !r.CommittedAt.IsZero() && r.CommittedAt.Before(before.Time)) && (after.IsZero() || !r.CommittedAt.Before(after.Time))
			}
			records, more, err := listRecords(cmd.Context(), a, s, f, match, limit)
			if err != nil {
				return err
			}
			err = a.screen.Show(recordViews(records), func(p *screen.Page) { recordTable(p, records, s, time.Now()) })
			if more {
				a.screen.Remark("There are more than %d; --limit 0 shows all.", limit)
			}
			return err
		},
	}
	k.flags(cmd)
	cmd.Flags().StringVar(&state, "state", "", "only records of this `STATE`: done or in-progress")
	cmd.Flags().StringVar(&contains, "contains", "", "only events with this `TEXT` in their key")
	cmd.Flags().Var(&before, "before", "only events that were handled before this `TIME`: 2h (ago), or 2006-01-02T15:04:05Z")
	cmd.Flags().Var(&after, "after", "only events that were handled at or after this `TIME`")
	cmd.Flags().IntVar(&limit, "limit", 1000, "at most so many; 0: all")
	must(cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions([]string{"done", "in-progress"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func listRecords(ctx context.Context, a *app, s *connect.Store, f dedupe.Filter, match func(dedupe.Record) bool, limit int) (records []dedupe.Record, more bool, err error) {
	p := a.screen.Progress("Looking through the records", -1)
	defer p.End()
	seen, n := make(map[dedupe.Key]bool), int64(0)
	for r, err := range s.List(ctx, f) {
		if err != nil {
			return nil, false, err
		}
		n++
		p.Set(n, 0)
		if seen[r.Key] || !match(r) {
			continue
		}
		if limit > 0 && len(records) == limit {
			more = true
			break
		}
		seen[r.Key] = true // SCAN may give one twice
		records = append(records, r)
	}
	sortRecords(records)
	return records, more, nil
}
