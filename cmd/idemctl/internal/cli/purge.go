package cli

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/dedupe"
)

// purgeBatch is how many records a database removes between two looks at the clock.
const purgeBatch = 5000

// purged is what a purge did, in JSON.
type purged struct {
	Store  string     `json:"store"`
	Before *time.Time `json:"before,omitempty"`
	Count  int        `json:"count"`
	DryRun bool       `json:"dry_run"`
	More   bool       `json:"more"`
}

type purgeArgs struct {
	store    string
	before   moment
	limit    int
	dry, yes bool
}

func newPurge(a *app) *cobra.Command {
	var g purgeArgs
	cmd := &cobra.Command{
		Use:   "purge",
		Short: "Remove records of handled events that are too old",
		Long: `Removes records whose retention is over, and with --before those that were committed before a
time, whatever retention they have left: their events would be handled again if they came again.

Redis removes what ran out by itself, and SQL stores do while a service runs, so without
--before this is for a database whose services are gone, or whose purge has failed. With --before
it asks first. Ctrl-C ends it; what was removed until then is said, and stays removed.`,
		Example: examples("idemctl purge --sql postgres://localhost/shop", "idemctl purge --before 30d --dry-run", "idemctl purge --before 30d --limit 100000 --yes"),
		Args:    args(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if g.limit < 0 {
				return exit.Errorf(exit.Usage, "--limit %d is negative", g.limit)
			}
			s, err := a.store(cmd.Context(), g.store)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			if s.Kind == connect.KindRedis && g.before.IsZero() {
				return exit.Errorf(exit.Usage, "Redis removes by itself what ran out").Do("Say --before to remove records that have retention left, or --sql for a database.")
			}
			if g.dry {
				return g.look(cmd.Context(), a, s)
			}
			if !g.before.IsZero() {
				what := "All records committed before " + screen.Time(g.before.Time) + " are removed from " + s.Where + ", and their events would be handled again"
				if err := a.confirm(g.yes, what); err != nil {
					return err
				}
			}
			return g.run(cmd.Context(), a, s)
		},
	}
	storeFlag(cmd, &g.store)
	cmd.Flags().Var(&g.before, "before", "also records that were committed before this `TIME`: 30d (ago), or 2006-01-02T15:04:05Z")
	cmd.Flags().IntVar(&g.limit, "limit", 0, "at most so many; 0: all")
	dryRun(cmd, &g.dry)
	yesFlag(cmd, &g.yes)
	return cmd
}

// look counts what would be removed.
func (g purgeArgs) look(ctx context.Context, a *app, s *connect.Store) error {
	n := 0
	if s.SQL != nil {
		bounded, cancel := a.Bounded(ctx)
		defer cancel()
		var err error
		if n, err = s.SQL.Purgeable(bounded, g.before.Time); err != nil {
			return err
		}
	} else {
		p := a.screen.Progress("Looking through the records", -1)
		defer p.End()
		looked := int64(0)
		for r, err := range s.List(ctx, dedupe.Filter{State: dedupe.StateDone}) {
			if err != nil {
				return err
			}
			looked++
			p.Set(looked, 0)
			if r.CommittedAt.Before(g.before.Time) {
				n++
			}
		}
	}
	more := g.limit > 0 && n > g.limit
	if more {
		n = g.limit
	}
	return g.show(a, s, n, more)
}

// run removes, from a database in batches, so that it can be ended in between.
func (g purgeArgs) run(ctx context.Context, a *app, s *connect.Store) error {
	p := a.screen.Progress("Removing records", -1)
	n := 0
	var err error
	for {
		limit := g.limit
		if s.SQL != nil {
			limit = purgeBatch
			if g.limit > 0 {
				limit = min(limit, g.limit-n)
			}
		}
		var removed int
		removed, err = s.Purge(ctx, g.before.Time, limit)
		n += removed
		p.Set(int64(n), 0)
		if err != nil || s.SQL == nil || removed < limit || g.limit > 0 && n >= g.limit {
			break
		}
	}
	p.End()
	return errors.Join(g.show(a, s, n, err != nil || g.limit > 0 && n >= g.limit), err)
}

func (g purgeArgs) show(a *app, s *connect.Store, n int, more bool) error {
	return a.screen.Show(purged{s.Where, timeOf(g.before.Time), n, g.dry, more}, func(p *screen.Page) {
		count := screen.Plural(n, "record", "records")
		if g.dry {
			p.Line("%s would be removed from %s; nothing was changed", count, s.Where)
		} else {
			p.Line("%s removed from %s", count, s.Where)
		}
		if more {
			p.Line("there may be more")
		}
	})
}
