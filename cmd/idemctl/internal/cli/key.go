package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/dedupe"
)

func newKey(a *app) *cobra.Command {
	return parent("key", "Records of handled events; let a handler run again",
		`The handling middleware keeps a record of each event that a handler has handled, and skips
the event from then on. A record belongs to four names: the namespace (the consumer group, or
middleware.Config.Namespace), the topic, the handler's name in Watermill's Router, and the
event's key.

Records are in Redis (redisstore) or in a database (sqlstore, pgxstore): --sql chooses that.`,
		newKeyGet(a), newKeyForget(a), newKeyList(a))
}

// keyArgs is which records a command is about.
type keyArgs struct {
	store          string
	topic, handler string
}

func (k *keyArgs) flags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&k.topic, "topic", "", "`TOPIC` that the event was read from; default: any")
	cmd.Flags().StringVar(&k.handler, "handler", "", "`NAME` of the handler in Watermill's Router; default: any")
	storeFlag(cmd, &k.store)
}

// wanted is a key whose topic and handler may be any.
type wanted struct {
	key   dedupe.Key
	exact bool // topic and handler are those of the key, even if they are empty
}

// find gives the records of a key. Where topic or handler may be any, it looks through all
// records of the namespace.
func (w wanted) find(ctx context.Context, a *app, s *connect.Store) ([]dedupe.Record, error) {
	key := w.key
	if w.exact {
		r, err := s.Lookup(ctx, key)
		switch {
		case errors.Is(err, dedupe.ErrNotFound):
			return nil, nil
		case errors.Is(err, dedupe.ErrCorrupt):
			return nil, exit.Errorf(exit.Found, "%w", err).Do("`idemctl key forget` removes it; the handler runs again then.")
		case err != nil:
			return nil, err
		}
		return []dedupe.Record{r}, nil
	}
	var all []dedupe.Record
	p := a.screen.Progress("Looking through the records", -1)
	defer p.End()
	n := int64(0)
	for r, err := range s.List(ctx, dedupe.Filter{Namespace: key.Namespace, Topic: key.Topic, Handler: key.Handler}) {
		if err != nil {
			return nil, err
		}
		n++
		p.Set(n, 0)
		if r.Key.Event == key.Event && !slices.ContainsFunc(all, func(o dedupe.Record) bool { return o.Key == r.Key }) { // SCAN may give one twice
			all = append(all, r)
		}
	}
	sortRecords(all)
	return all, nil
}

// parse reads the arguments: NAMESPACE EVENT, or one key as in the log.
func (k *keyArgs) parse(cmd *cobra.Command, given []string) (wanted, error) {
	if len(given) == 1 {
		key, err := dedupe.ParseKey(given[0])
		if err == nil {
			err = key.Validate()
		}
		switch {
		case err != nil && !strings.Contains(given[0], ":"):
			return wanted{}, exit.Errorf(exit.Usage, "which event of %s?", given[0]).
				Do("Type `%s %s EVENT`, such as pay:9001; `idemctl key list %s` shows which there are.", cmd.CommandPath(), quote(given[0]), quote(given[0]))
		case err != nil:
			return wanted{}, exit.Errorf(exit.Usage, "%s", err).
				Do("Type NAMESPACE EVENT, such as `%s billing pay:9001`, or one key of four parts as it stands in the log: billing:payments:charge:pay%%3A9001", cmd.CommandPath())
		}
		return wanted{key, true}, nil
	}
	key := dedupe.Key{Namespace: given[0], Topic: k.topic, Handler: k.handler, Event: given[1]}
	if err := key.Validate(); err != nil {
		return wanted{}, exit.Errorf(exit.Usage, "%w", err)
	}
	return wanted{key, cmd.Flags().Changed("topic") && cmd.Flags().Changed("handler")}, nil
}

// none is the error about a record that is not there.
func none(ctx context.Context, s *connect.Store, w wanted) error {
	what := w.key.Namespace + " " + w.key.Event
	if w.exact {
		what = w.key.String()
	}
	names := namespaceMeant(ctx, s, w.key.Namespace)
	if names == "" {
		names = "`idemctl key list` shows what there is."
	}
	return exit.Errorf(exit.Found, "no record of %s in %s", screen.Printable(what), s.Where).
		Do("A handler runs when the event comes. Wrong store? See --sql, --store, --table and --prefix. Wrong name? %s", names)
}

const keyUse = "NAMESPACE EVENT | KEY"

func newKeyGet(a *app) *cobra.Command {
	var k keyArgs
	cmd := &cobra.Command{
		Use:   "get " + keyUse,
		Short: "Which handlers have handled an event, and when?",
		Long: `Shows which handlers of a namespace have handled an event, when, and until when they skip it.

With --topic and --handler it is one look-up; without them all records of the namespace are
looked through, which takes a while on a large store. In place of NAMESPACE EVENT a KEY can be
given as it stands in the log: four parts, joined by colons.

Exit code 1: there is no record; the handler runs when the event comes.`,
		Example: examples("idemctl key get billing pay:9001", "idemctl key get billing pay:9001 --topic payments --handler charge",
			"idemctl key get billing:payments:charge:pay%3A9001", "idemctl key get billing pay:9001 --sql postgres://localhost/shop -o json"),
		Args:              args("NAMESPACE", "[EVENT]"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			want, err := k.parse(cmd, given)
			if err != nil {
				return err
			}
			s, err := a.store(cmd.Context(), k.store)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			records, err := want.find(cmd.Context(), a, s)
			if err != nil {
				return err
			}
			if len(records) == 0 {
				return none(cmd.Context(), s, want)
			}
			now := time.Now()
			return a.screen.Show(recordViews(records), func(p *screen.Page) {
				for _, r := range records {
					p.Gap()
					showRecord(p, r, now)
				}
			})
		},
	}
	k.flags(cmd)
	return cmd
}

func newKeyForget(a *app) *cobra.Command {
	var k keyArgs
	var dry, all bool
	cmd := &cobra.Command{
		Use:   "forget " + keyUse,
		Short: "Let a handler run again: remove its record",
		Long: `Removes the record of an event, so that the handler runs again when the event comes again.
It does not bring the event: publish it again, or replay its dead letter.

An event that is being handled right now has a claim, which is not touched. If several handlers
have handled the event, name one by --topic and --handler, or say --all.

Exit code 1: there is no record, or it is being handled and was left alone.`,
		Example: examples("idemctl key forget billing pay:9001 --dry-run", "idemctl key forget billing pay:9001",
			"idemctl key forget billing pay:9001 --handler charge", "idemctl key forget billing pay:9001 --all"),
		Args:              args("NAMESPACE", "[EVENT]"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			want, err := k.parse(cmd, given)
			if err != nil {
				return err
			}
			hasRedis := a.Redis != "" // beside a database
			s, err := a.store(cmd.Context(), k.store)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, s.Close()) }()
			hasRedis = hasRedis || s.Kind == connect.KindRedis
			records, err := want.find(cmd.Context(), a, s)
			var own *exit.Error
			switch {
			case errors.As(err, &own) && errors.Is(err, dedupe.ErrCorrupt): // Forget removes it
				records = []dedupe.Record{{Key: want.key}}
			case err != nil:
				return err
			case len(records) == 0:
				return none(cmd.Context(), s, want)
			}
			if len(records) > 1 && !all {
				var names []string
				for _, r := range records {
					names = append(names, fmt.Sprintf("  --topic %s --handler %s", quote(r.Key.Topic), quote(r.Key.Handler)))
				}
				return exit.Errorf(exit.Usage, "%d handlers have handled it", len(records)).Do("Name one, or say --all:\n%s", strings.Join(names, "\n"))
			}
			return forget(cmd.Context(), a, s, records, dry, hasRedis)
		},
	}
	k.flags(cmd)
	cmd.Flags().BoolVar(&all, "all", false, "the records of all handlers of the event")
	dryRun(cmd, &dry)
	return cmd
}

// forgotten is what became of a record.
type forgotten struct {
	recordView
	// Action is "forgotten", "would forget" or "in progress".
	Action string `json:"action"`
}

func forget(ctx context.Context, a *app, s *connect.Store, records []dedupe.Record, dry, hasRedis bool) error {
	var done []forgotten
	var gone []dedupe.Record
	held := 0
	for _, r := range records {
		action := "forgotten"
		switch {
		case r.State == dedupe.StateInProgress:
			action = "in progress"
			held++
		case dry:
			action = "would forget"
		default:
			if err := s.Forget(ctx, r.Key); err != nil {
				return err
			}
			gone = append(gone, r)
		}
		done = append(done, forgotten{viewOf(r), action})
	}
	err := a.screen.Show(done, func(p *screen.Page) {
		for _, f := range done {
			name := screen.Printable(f.Key)
			switch f.Action {
			case "in progress":
				p.Line("%s is being handled; its claim was left alone", name)
			case "would forget":
				p.Line("%s would be forgotten; nothing was changed", name)
			default:
				p.Line("%s is forgotten: its handler runs again when the event comes again", name)
			}
		}
		if len(gone) > 0 {
			next := afterForget(ctx, a, gone, hasRedis)
			next.show(p)
		}
	})
	if err == nil && held > 0 {
		return exit.Errorf(exit.Found, "%s", screen.Plural(held, "record is a claim that is held", "records are claims that are held")).
			Do("Try again when the handler has ended. A claim of a process that died ends with its lease.")
	}
	return err
}
