package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
)

// replayArgs is how letters are replayed.
type replayArgs struct {
	deadArgs
	producer, by, eventKey string
	again                  int
	keep                   bool
	forget                 forgetArgs
}

// forgetArgs is which records a replay removes first.
type forgetArgs struct {
	store, namespace string
	handlers, poison []string
	newer            bool
}

func newDeadReplay(a *app) *cobra.Command {
	var r replayArgs
	cmd := &cobra.Command{
		Use:   "replay TOPIC [ID ...]",
		Short: "Publish dead letters to their topic again",
		Long: `Publishes dead letters to their topic again, each as a new attempt of its event, so that it is not
refused as a duplicate, and removes it from the dead letters after that. What an earlier replay
has published already is recognised: repeat the command until it is through. The entry has marks
of who has replayed it and when.

The entry goes to every group of the topic. Where the event was handled before, the handling
middleware skips it; --handler forgets its record first, so that this handler runs again. Only a
record that is older than the dead letter is forgotten, unless --forget-newer is given.

It is published under the producer ID "idemctl", or --producer: name the service's own to keep
others off the topic, which "idemctl check" would warn of until the window is over.

Name letters by their IDs, pick them by the flags, or say --all. More than one is asked for first.

Exit code 1: one of the IDs is not there, or not all letters could be replayed.`,
		Example: examples("idemctl dead replay payments 1764720000000-0 --dry-run", "idemctl dead replay payments 1764720000000-0",
			"idemctl dead replay payments --reason rejected --from 24h --yes",
			"idemctl dead replay payments 1764720000000-0 --handler charge"),
		Args: atLeast("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) error { return r.run(cmd.Context(), a, given[0], given[1:]) },
	}
	r.flags(cmd, 0)
	f := cmd.Flags()
	f.BoolVar(&r.all, "all", false, "all dead letters of the topic")
	f.StringVar(&r.by, "by", os.Getenv("USER"), "your `NAME`, which is noted on the entries; default: $USER")
	f.Lookup("by").DefValue = ""
	f.StringVar(&r.producer, "producer", defaultProducer, "producer `ID` to publish under; the same one recognises what it has replayed before")
	f.StringVar(&r.eventKey, "event-key", "", "`TEMPLATE` for the key of letters that bring none, such as 'pay:{$.id}'; default: their message UUID")
	f.IntVar(&r.again, "again", 0, "replay letters a second time (1), a third time (2) … that were replayed with --keep")
	f.BoolVar(&r.keep, "keep", false, "leave the letters where they are")
	f.StringArrayVar(&r.forget.handlers, "handler", nil, "forget the record of this handler's `NAME` first, so that it runs again; may be repeated")
	f.StringVar(&r.forget.namespace, "namespace", "", "the `NAMESPACE` of those records; default: the letter's consumer group")
	f.StringArrayVar(&r.forget.poison, "poison-topic", nil, "`TOPIC` of middleware.Config.PoisonTopics; may be repeated")
	f.BoolVar(&r.forget.newer, "forget-newer", false, "also forget records that are newer than their letters")
	storeFlag(cmd, &r.forget.store)
	dryRun(cmd, &r.dr)
	yesFlag(cmd, &r.yes)
	return cmd
}

// atLeast checks that the first arguments are there; more may come.
func atLeast(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, got []string) error {
		if len(got) < len(names) {
			return fmt.Errorf("%s is missing", names[len(got)])
		}
		for _, g := range got {
			if g == "" {
				return errors.New("an argument is empty")
			}
		}
		return nil
	}
}

func (r *replayArgs) run(ctx context.Context, a *app, topic string, ids []string) (err error) {
	filter, err := r.check(ids)
	if err != nil {
		return err
	}
	key, err := template(r.eventKey)
	if err != nil {
		return err
	}
	l, err := a.letters(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	t, err := boundedTopic(ctx, a, l.look, topic)
	switch {
	case err != nil:
		return l.lacks(ctx, topic, true, err)
	case isUnknown(t):
		return l.unknown(ctx, topic)
	}
	source := key
	if source == nil {
		source = eventkey.MessageUUID() // which the letter keeps: each replay has the same
	}
	pub, err := publisherOf(l.look, t, r.producer, source)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	replay := deadletter.Replay{Filter: filter, Publisher: pub, Attempt: r.again, By: r.by, Keep: r.keep, DryRun: r.dr}
	if len(r.forget.handlers) > 0 {
		store, err := a.storeBeside(ctx, l.look, r.forget.store)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, store.Close()) }()
		replay.Forget = &deadletter.Forget{
			Store: store, Namespace: r.forget.namespace, Handlers: r.forget.handlers, Key: key, PoisonTopics: r.forget.poison, Newer: r.forget.newer,
		}
		r.forget.unknownHandlers(ctx, a, store, topic)
	}
	if err := confirmLetters(ctx, a, l, topic, filter, r.deadArgs, "published to the topic again"); err != nil {
		return err
	}
	c := change{topic: topic, filter: filter, dry: r.dr, replay: true, groups: t.Groups, namespace: r.forget.namespace, forgets: replay.Forget != nil}
	return c.run(ctx, a, l, func(note func(deadletter.Outcome)) (deadletter.Result, error) {
		replay.OnLetter = note
		return l.dead.Replay(ctx, topic, replay)
	})
}

// unknownHandlers remarks on a handler of which the store has no record at all: its name may be mistyped,
// and then the handler that was meant skips what is published.
func (f *forgetArgs) unknownHandlers(ctx context.Context, a *app, store *connect.Store, topic string) {
	ctx, cancel := context.WithTimeout(ctx, suggestWithin)
	defer cancel()
	of := dedupe.Filter{Namespace: f.namespace, Topic: topic}
	for _, handler := range f.handlers {
		of.Handler = handler
		if there, err := handlersOf(ctx, store, of, 1); err != nil || len(there) > 0 {
			continue // a large store, or no right to look: nothing is known
		}
		of.Handler = ""
		there, err := handlersOf(ctx, store, of, mostSimilar)
		known := ""
		switch {
		case err == nil && len(there) == 0:
			known = "No handler of the topic has one."
		case len(there) > 0:
			known = "There are records of " + strings.Join(printables(there), ", ") + "."
		}
		a.screen.Remark("Nothing to forget for handler %q: %s has no record of it for topic %s. %s%s",
			handler, store.Where, screen.Printable(topic), didYouMean(printables(similar(handler, there))), known)
	}
}

// handlersOf are the names of handlers that have records, at most so many.
func handlersOf(ctx context.Context, store *connect.Store, f dedupe.Filter, most int) (names []string, err error) {
	for r, err := range store.List(ctx, f) {
		if err != nil {
			return names, err
		}
		if !slices.Contains(names, r.Key.Handler) {
			names = append(names, r.Key.Handler)
		}
		if len(names) == most {
			break
		}
	}
	slices.Sort(names)
	return names, nil
}

func (r *replayArgs) check(ids []string) (deadletter.Filter, error) {
	switch {
	case r.again < 0:
		return deadletter.Filter{}, exit.Errorf(exit.Usage, "--again %d is negative", r.again)
	case len(r.forget.handlers) == 0 && (r.forget.namespace != "" || r.forget.newer || r.forget.store != "" || len(r.forget.poison) > 0):
		return deadletter.Filter{}, exit.Errorf(exit.Usage, "--namespace, --store, --poison-topic and --forget-newer are about records to forget").
			Do("Name the handlers whose records are forgotten by --handler.")
	}
	return r.pick(ids)
}

// pick is the filter of a command that changes something: it must say which letters.
func (d *deadArgs) pick(ids []string) (deadletter.Filter, error) {
	switch {
	case d.all && d.picks(ids):
		return deadletter.Filter{}, exit.Errorf(exit.Usage, "--all and a choice of letters exclude each other")
	case !d.all && !d.picks(ids):
		return deadletter.Filter{}, exit.Errorf(exit.Usage, "which letters?").Do("Name them by their IDs, pick them by --reason, --group, --from, --key or --error, or say --all.")
	}
	return d.filter(ids)
}

// confirmLetters asks before more than one letter is changed, and says how many there are.
func confirmLetters(ctx context.Context, a *app, l *letters, topic string, f deadletter.Filter, d deadArgs, what string) error {
	if d.dr || d.yes || len(f.IDs) == 1 {
		return nil
	}
	n := 0
	for _, err := range l.dead.List(ctx, topic, f) {
		switch {
		case errors.Is(err, deadletter.ErrNotFound):
			continue
		case err != nil:
			return l.lacks(ctx, topic, false, err)
		}
		n++
	}
	if n < 2 {
		return nil
	}
	return a.confirm(false, fmt.Sprintf("%s of topic %s are %s", screen.Plural(n, "dead letter", "dead letters"), screen.Printable(topic), what))
}

func newDeadDrop(a *app) *cobra.Command {
	var d deadArgs
	cmd := &cobra.Command{
		Use:   "drop TOPIC [ID ...]",
		Short: "Remove dead letters without publishing them",
		Long: `Removes dead letters. There is no way back: "idemctl dead show -o json" saves one first.

Name letters by their IDs, pick them by the flags, or say --all. More than one is asked for first.

Exit code 1: one of the IDs is not there, or not all letters could be removed.`,
		Example: examples("idemctl dead drop payments 1764720000000-0", "idemctl dead drop payments --to 30d --dry-run", "idemctl dead drop payments --to 30d --yes"),
		Args:    atLeast("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			ctx, topic := cmd.Context(), given[0]
			filter, err := d.pick(given[1:])
			if err != nil {
				return err
			}
			l, err := a.letters(ctx)
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			if err := l.mustExist(ctx, topic); err != nil {
				return err
			}
			if err := confirmLetters(ctx, a, l, topic, filter, d, "removed for good"); err != nil {
				return err
			}
			c := change{topic: topic, filter: filter, dry: d.dr}
			return c.run(ctx, a, l, func(note func(deadletter.Outcome)) (deadletter.Result, error) {
				return l.dead.Drop(ctx, topic, deadletter.Drop{Filter: filter, DryRun: d.dr, OnLetter: note})
			})
		},
	}
	d.flags(cmd, 0)
	cmd.Flags().BoolVar(&d.all, "all", false, "all dead letters of the topic")
	dryRun(cmd, &d.dr)
	yesFlag(cmd, &d.yes)
	return cmd
}
