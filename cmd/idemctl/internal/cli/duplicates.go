package cli

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/inspect"
)

// scanArgs is which entries of a stream are read.
type scanArgs struct {
	from, to moment
	last     int
	key      string
}

func (s *scanArgs) flags(cmd *cobra.Command) {
	cmd.Flags().Var(&s.from, "from", "read entries from this `TIME` on: 2h (ago), or 2006-01-02T15:04:05Z; default: the first")
	cmd.Flags().Var(&s.to, "to", "read entries before this `TIME`; default: the last that there is now")
	cmd.Flags().IntVar(&s.last, "last", 100_000, "read at most so many entries, the newest")
	cmd.Flags().StringVar(&s.key, "event-key", "", "`TEMPLATE` for the key of entries that bring none, such as 'pay:{$.id}', as in publisher.Config.Key")
}

func (s *scanArgs) scan() (inspect.Scan, error) {
	scan := inspect.Scan{From: s.from.Time, To: s.to.Time, MaxEntries: s.last}
	if s.last < 1 {
		return scan, exit.Errorf(exit.Usage, "--last %d is not above zero", s.last)
	}
	if err := inOrder("--from", s.from, "--to", s.to); err != nil {
		return scan, err
	}
	var err error
	scan.Key, err = template(s.key)
	return scan, err
}

// template is the source of keys that a flag describes; nil for none.
func template(text string) (eventkey.Source, error) {
	if text == "" {
		return nil, nil
	}
	source := eventkey.Template(text)
	if err := eventkey.Validate(source); err != nil {
		return nil, exit.Errorf(exit.Usage, "--event-key: %w", err).Do("Write it as for eventkey.Template, such as 'pay:{$.order_id}:{$.payment_id}'.")
	}
	return source, nil
}

func newDuplicates(a *app) *cobra.Command {
	var s scanArgs
	var only string
	var pairs int
	cmd := &cobra.Command{
		Use:   "duplicates TOPIC",
		Short: "Why does a stream have two entries of one event?",
		Long: `Reads a stream and looks for entries that have the same event key. For each pair it says why
the second one was added: the retry came later than the window lasts, more events came in
between than it holds, somebody publishes past this library, instances have producer IDs of
their own, or it is a deliberate attempt, such as a replayed dead letter.

Entries that this library has written bring their key. For those of others --event-key says how
to make it; without it they are found in no pair, and counted above the table. Nothing is changed.

Exit code 1: there are duplicates that are not deliberate.`,
		Example: examples("idemctl duplicates payments", "idemctl duplicates payments --from 24h --pairs 50", "idemctl duplicates payments --only pay:9001",
			"idemctl duplicates legacy --event-key 'pay:{$.id}'"),
		Args: args("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			scan, err := s.scan()
			if err != nil {
				return err
			}
			if pairs < 0 {
				return exit.Errorf(exit.Usage, "--pairs %d is negative", pairs)
			}
			scan.Only, scan.MaxPairs = only, max(pairs, 1)
			l, err := a.look(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			if _, err := l.topic(cmd.Context(), given[0]); err != nil {
				return err
			}
			bar := a.screen.Progress("Reading entries", -1)
			scan.OnProgress = bar.Set
			d, err := l.Duplicates(cmd.Context(), given[0], scan)
			bar.End()
			if err != nil {
				return l.lacks(cmd.Context(), given[0], err)
			}
			d.Pairs = d.Pairs[:min(len(d.Pairs), pairs)]
			if err := a.screen.Show(duplicatesViewOf(d), func(p *screen.Page) { showDuplicates(p, d, s.key) }); err != nil {
				return err
			}
			if d.Total > d.ByCause[inspect.CauseAttempt] {
				return found()
			}
			return nil
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVar(&only, "only", "", "look for this event `KEY` alone")
	cmd.Flags().IntVar(&pairs, "pairs", 10, "show so many pairs, the newest; all are counted")
	return cmd
}

// duplicatesView is what was found, in JSON. Its names are stable.
type duplicatesView struct {
	Topic       string           `json:"topic"`
	Entries     int64            `json:"entries_read"`
	Keyless     int64            `json:"entries_without_key"`
	Undecodable int64            `json:"entries_undecodable"`
	Sourced     int64            `json:"entries_with_key_of_template"`
	KeylessIDs  []string         `json:"without_key_ids"`
	BrokenIDs   []string         `json:"undecodable_ids"`
	Keys        int64            `json:"keys"`
	FromID      string           `json:"from_id,omitempty"`
	ToID        string           `json:"to_id,omitempty"`
	More        bool             `json:"more_older_entries"`
	Total       int64            `json:"pairs_total"`
	ByCause     map[string]int64 `json:"by_cause"`
	Findings    []string         `json:"findings"`
	Window      windowView       `json:"window"`
	Pairs       []pairView       `json:"pairs"`
}

type pairView struct {
	Key          string    `json:"key"`
	Cause        string    `json:"cause"`
	First        entryView `json:"first"`
	Second       entryView `json:"second"`
	ApartSeconds float64   `json:"apart_seconds"`
	Between      int64     `json:"entries_between"`
	SameContent  bool      `json:"same_content"`
	Differs      string    `json:"differs_in,omitempty"`
	SameMessage  bool      `json:"same_message_uuid"`
}

type entryView struct {
	ID          string     `json:"id"`
	At          *time.Time `json:"at"`
	MessageUUID string     `json:"message_uuid"`
	Attempt     string     `json:"attempt,omitempty"`
	Ours        bool       `json:"guarded"`
}

// causeNames are the names of causes in JSON.
var causeNames = map[inspect.Cause]string{
	inspect.CauseUnknown: "unknown", inspect.CauseAttempt: "attempt", inspect.CauseLate: "late", inspect.CauseFull: "full",
	inspect.CauseUnguarded: "unguarded", inspect.CauseProducers: "producers",
}

func duplicatesViewOf(d inspect.Duplicates) duplicatesView {
	v := duplicatesView{
		Topic: d.Topic, Entries: d.Entries, Keyless: d.Keyless, Undecodable: d.Undecodable, Sourced: d.Sourced, Keys: d.Keys,
		KeylessIDs: append([]string{}, d.KeylessIDs...), BrokenIDs: append([]string{}, d.UndecodableIDs...), FromID: d.FromID, ToID: d.ToID, More: d.More,
		Total: d.Total, ByCause: make(map[string]int64), Findings: append([]string{}, d.Findings...), Window: windowViewOf(d.Window), Pairs: []pairView{},
	}
	for cause, n := range d.ByCause {
		v.ByCause[causeName(cause)] += n
	}
	for _, p := range d.Pairs {
		v.Pairs = append(v.Pairs, pairView{
			Key: p.Key, Cause: causeName(p.Cause), First: entryViewOf(p.First), Second: entryViewOf(p.Second),
			ApartSeconds: p.Apart.Seconds(), Between: p.Between, SameContent: p.SameContent, Differs: p.Differs, SameMessage: p.SameMessage,
		})
	}
	return v
}

func causeName(c inspect.Cause) string {
	if name := causeNames[c]; name != "" {
		return name
	}
	return c.String()
}

func entryViewOf(e inspect.Entry) entryView {
	return entryView{e.ID, timeOf(e.At), e.MessageUUID, e.Attempt, e.Ours}
}

func showDuplicates(p *screen.Page, d inspect.Duplicates, template string) {
	older := ""
	if d.More {
		older = "; older ones were not read (--last, --from)"
	}
	p.Facts(
		screen.Fact{Name: "topic", Value: screen.Printable(d.Topic)},
		screen.Fact{Name: "read", Value: fmt.Sprintf("%s with %s%s", screen.Plural(d.Entries, "entry", "entries"), screen.Plural(d.Keys, "key", "different keys"), older)},
		screen.Fact{Name: "found", Value: screen.Plural(d.Total, "pair", "pairs") + " of entries with one key"},
	)
	findings := d.Findings
	if d.Keyless > 0 { // it hides pairs, so it comes first
		p.Gap()
		hint := ""
		switch {
		case template != "" && d.Sourced == 0:
			hint = " Correct --event-key " + quote(template) + "."
		case template == "":
			hint = " Give --event-key TEMPLATE, which makes it as the service's Config.Key does: 'pay:{$.id}'."
		}
		p.Sentences("! ", screen.Printable(findings[0])+hint)
		findings = findings[1:]
	}
	if len(d.ByCause) > 0 {
		causes := make([]inspect.Cause, 0, len(d.ByCause))
		for c := range d.ByCause {
			causes = append(causes, c)
		}
		slices.SortFunc(causes, func(a, b inspect.Cause) int { return int(d.ByCause[b] - d.ByCause[a]) })
		var rows [][]string
		for _, c := range causes {
			rows = append(rows, []string{c.String(), screen.Count(d.ByCause[c])})
		}
		p.Gap()
		p.Table([]string{"WHY", "PAIRS"}, rows, 1)
	}
	if len(findings) > 0 {
		p.Gap()
		p.Sentences("- ", printables(findings)...)
	}
	if len(d.Pairs) == 0 {
		return
	}
	var rows [][]string
	var below []string
	for _, pair := range d.Pairs {
		content := ""
		switch {
		case !pair.SameContent && pair.Differs != "":
			content = "their contents differ in " + screen.Printable(pair.Differs)
		case !pair.SameContent:
			content = "their contents differ"
		}
		rows = append(rows, []string{screen.Printable(pair.Key), pair.First.ID, pair.Second.ID, screen.Duration(pair.Apart), pair.Cause.String()})
		below = append(below, content)
	}
	p.Gap()
	p.TableWith([]string{"KEY", "FIRST", "SECOND", "APART", "WHY"}, rows, below, 3)
}
