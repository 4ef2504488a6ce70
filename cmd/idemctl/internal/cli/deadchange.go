package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

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
	if err := confirmLetters(ctx, a, l, topic, filter, r.deadArgs, "published to the topic again"); err != nil {
		return err
	}
	t, err := boundedTopic(ctx, a, l.look, topic)
	if err != nil {
		return l.lacks(ctx, topic, true, err)
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
	}
	return changeLetters(ctx, a, l, topic, r.dr, func(note func(deadletter.Outcome)) (deadletter.Result, error) {
		replay.OnLetter = note
		return l.dead.Replay(ctx, topic, replay)
	})
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
			if err := confirmLetters(ctx, a, l, topic, filter, d, "removed for good"); err != nil {
				return err
			}
			return changeLetters(ctx, a, l, topic, d.dr, func(note func(deadletter.Outcome)) (deadletter.Result, error) {
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

// resultView is what became of letters, in JSON. Its names are stable.
type resultView struct {
	Topic           string        `json:"topic"`
	DryRun          bool          `json:"dry_run"`
	Matched         int64         `json:"matched"`
	Replayed        int64         `json:"replayed"`
	AlreadyReplayed int64         `json:"already_replayed"`
	Dropped         int64         `json:"dropped"`
	Gone            int64         `json:"gone"`
	Failed          int64         `json:"failed"`
	Forgotten       int64         `json:"records_forgotten"`
	HandledSince    int64         `json:"handled_since"`
	Letters         []outcomeView `json:"letters"`
}

type outcomeView struct {
	ID        string     `json:"id"`
	Key       string     `json:"key,omitempty"`
	Action    string     `json:"action"`
	EntryID   string     `json:"entry_id,omitempty"`
	Forgotten []string   `json:"records_forgotten,omitempty"`
	HandledAt *time.Time `json:"handled_at,omitempty"`
	Error     string     `json:"error,omitempty"`
}

// maxOutcomes bounds what is shown of single letters. The failed ones among the rest are
// in Result.Failures.
const maxOutcomes = 10_000

// changeLetters runs a replay or a drop with a bar, and shows what became of the letters.
func changeLetters(ctx context.Context, a *app, l *letters, topic string, dry bool, run func(note func(deadletter.Outcome)) (deadletter.Result, error)) error {
	bar := a.screen.Progress("Dead letters", -1)
	view := resultView{Topic: topic, DryRun: dry, Letters: []outcomeView{}}
	result, err := run(func(o deadletter.Outcome) {
		bar.Set(o.Done, o.Total)
		if len(view.Letters) < maxOutcomes {
			view.Letters = append(view.Letters, outcomeViewOf(o))
		}
	})
	bar.End()
	view.Matched, view.Replayed, view.AlreadyReplayed, view.Dropped = result.Matched, result.Replayed, result.AlreadyReplayed, result.Dropped
	view.Gone, view.Failed, view.Forgotten, view.HandledSince = result.Gone, result.Failed, result.Forgotten, result.HandledSince
	if err != nil && result.Matched == 0 {
		return l.lacks(ctx, topic, true, err)
	}
	err = l.lacks(context.WithoutCancel(ctx), topic, true, err)
	if shown := a.screen.Show(view, func(p *screen.Page) { showOutcomes(p, view) }); shown != nil {
		return errors.Join(shown, err)
	}
	switch {
	case err != nil:
		return err
	case result.Failed+result.Gone > 0:
		return found()
	}
	return nil
}

func outcomeViewOf(o deadletter.Outcome) outcomeView {
	v := outcomeView{ID: o.Letter.ID, Key: o.Letter.Key, Action: o.Action.String(), EntryID: o.Receipt.EntryID, HandledAt: timeOf(o.HandledAt)}
	for _, k := range o.Forgotten {
		v.Forgotten = append(v.Forgotten, dedupe.Key.String(k))
	}
	if o.Err != nil {
		v.Error = o.Err.Error()
	}
	return v
}

func showOutcomes(p *screen.Page, v resultView) {
	if len(v.Letters) == 0 {
		p.Line("No dead letter of topic %s was picked.", screen.Printable(v.Topic))
		return
	}
	var rows [][]string
	var notes []string
	for _, o := range v.Letters {
		action := o.Action
		if v.DryRun && o.Error == "" {
			action = map[string]string{"replayed": "would replay", "dropped": "would drop"}[action]
		}
		rows = append(rows, []string{o.ID, screen.Or(screen.Printable(o.Key), "-"), screen.Or(action, o.Action), screen.Or(o.EntryID, "-")})
		if o.Error != "" {
			notes = append(notes, o.ID+": "+screen.Printable(o.Error))
		}
		for _, k := range o.Forgotten {
			notes = append(notes, o.ID+": forgets the record "+screen.Printable(k))
		}
		if o.HandledAt != nil {
			notes = append(notes, fmt.Sprintf("%s: it was handled at %s, after it had died; that record stays, and the handler skips it (--forget-newer)", o.ID, screen.Time(*o.HandledAt)))
		}
	}
	head := []string{"ID", "EVENT", "WHAT", "NEW ENTRY"}
	if !slices.ContainsFunc(v.Letters, func(o outcomeView) bool { return o.EntryID != "" }) {
		head = head[:3]
		for i := range rows {
			rows[i] = rows[i][:3]
		}
	}
	p.Table(head, rows)
	p.Gap()
	p.Sentences("! ", notes...)
	p.Line("%s", outcomeSummary(v))
}

func outcomeSummary(v resultView) string {
	text, would, sep := screen.Plural(v.Matched, "dead letter", "dead letters")+": ", "", ""
	if v.DryRun {
		would = "would be "
	}
	for _, part := range []struct {
		n    int64
		what string
	}{
		{v.Replayed, would + "replayed"}, {v.AlreadyReplayed, "replayed before"}, {v.Dropped, would + "dropped"}, {v.Gone, "gone before"}, {v.Failed, "failed"},
	} {
		if part.n > 0 {
			text += fmt.Sprintf("%s%s %s", sep, screen.Count(part.n), part.what)
			sep = ", "
		}
	}
	if v.DryRun {
		return text + "; nothing was changed"
	}
	return text
}
