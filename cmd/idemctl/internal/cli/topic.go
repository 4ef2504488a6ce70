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
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
)

func newTopic(a *app) *cobra.Command {
	return parent("topic", "Which topics are there, and how do they fare?",
		"Lists topics that a publisher of this library has set up, or shows all that is known of one.",
		newTopicList(a), newTopicShow(a))
}

// look is a server with an inspector of its topics.
type look struct {
	*connect.Redis
	*inspect.Inspector
}

// Close ends the connections.
func (l *look) Close() error { return l.Redis.Close() }

func (a *app) look(ctx context.Context) (*look, error) {
	r, err := a.server(ctx)
	if err != nil {
		return nil, err
	}
	i, err := inspect.New(inspect.Config{Client: r.UniversalClient})
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return &look{r, i}, nil
}

// topic looks at a topic that must be there.
func (l *look) topic(ctx context.Context, name string) (inspect.Topic, error) {
	t, err := l.Topic(ctx, name)
	switch {
	case errors.Is(err, inspect.ErrWrongType):
		return t, exit.Errorf(exit.Found, "%w", err)
	case err != nil:
		return t, l.lacks(ctx, name, err)
	case !t.Exists && !t.HasLayout && t.DeadLetters <= 0:
		return t, l.unknown(ctx, name)
	}
	return t, nil
}

// isUnknown reports that nothing on the server has the topic's name, and that the user could see it.
func isUnknown(t inspect.Topic) bool {
	return !t.Exists && !t.HasLayout && t.LayoutErr == nil && t.DeadLetters == 0
}

// unknown is the error about a topic that nobody knows.
func (l *look) unknown(ctx context.Context, name string) error {
	return exit.Errorf(exit.Found, "there is no topic %q at %s: no stream, no layout record, no dead letters", name, l.Where).
		Do("%s`idemctl topic list` shows which there are. Another server or database number? See --redis.", l.meant(ctx, name))
}

// mustExist is an error about a topic of which nothing was found, if nobody knows it. A user who may
// not look gets none.
func (l *look) mustExist(ctx context.Context, name string) error {
	if t, err := l.Topic(ctx, name); err == nil && isUnknown(t) {
		return l.unknown(ctx, name)
	}
	return nil
}

// meant says which topics have a similar name, as the beginning of a hint.
func (l *look) meant(ctx context.Context, name string) string {
	return didYouMean(printables(similar(name, l.names(ctx))))
}

// names are the topics that the library has set up, as far as they are found soon.
func (l *look) names(ctx context.Context) (all []string) {
	ctx, cancel := context.WithTimeout(ctx, suggestWithin)
	defer cancel()
	for s, err := range l.Topics(ctx, inspect.TopicFilter{}) {
		if err != nil {
			break
		}
		all = append(all, s.Topic)
	}
	slices.Sort(all)
	return all
}

// lacks adds the rights that are missing to an error of a user who may not look.
func (l *look) lacks(ctx context.Context, topic string, err error) error {
	return withRights(err, func() ([]string, error) { return l.Check(ctx, topic) })
}

// withRights adds to an error about a missing right which ones are missing.
func withRights(err error, check func() ([]string, error)) error {
	if err == nil || !strings.Contains(err.Error(), "NOPERM") {
		return err
	}
	missing, checkErr := check()
	if len(missing) == 0 {
		return err
	}
	hint := "The user lacks " + strings.Join(missing, ", ") + ". Use a user who has them, or ACL SETUSER."
	if checkErr != nil {
		hint = checkErr.Error()
	}
	return exit.Errorf(exit.Refused, "%w", err).Do("%s", hint)
}

// summaryView is a topic of a list, in JSON.
type summaryView struct {
	Topic       string `json:"topic"`
	Exists      bool   `json:"exists"`
	Mode        string `json:"mode"`
	ProducerIDs int    `json:"producer_ids_per_producer"`
	Length      int64  `json:"length"`
	Groups      int64  `json:"groups"`
	DeadLetters int64  `json:"dead_letters"`
	Error       string `json:"error,omitempty"`
}

func newTopicList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "list [PATTERN]",
		Short: "List the topics that the library has set up",
		Long: `Lists topics by their layout records, on all masters of a cluster. It goes through all keys of
the server, a thousand at a time, which holds up nobody. PATTERN is one of Redis: orders*.

A stream that only others write has no layout record: ask "idemctl topic show" by its name.`,
		Example: examples("idemctl topic list", "idemctl topic list 'orders*'", "idemctl topic list -o json"),
		Args:    args("[PATTERN]"), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			l, err := a.look(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			var f inspect.TopicFilter
			if len(given) > 0 {
				f.Match = given[0]
			}
			all, err := listTopics(cmd.Context(), a, l, f)
			if err != nil {
				return mayNotList(err)
			}
			return a.screen.Show(all, func(p *screen.Page) { topicTable(p, all, l.Where) })
		},
	}
}

// mayNotList explains a list that the user may not have.
func mayNotList(err error) error {
	if !strings.Contains(err.Error(), "NOPERM") {
		return err
	}
	return exit.Errorf(exit.Refused, "%w", err).Do("A list takes the rights +scan +hgetall +xlen +xinfo|groups on all keys. One topic can be looked at by its name: `idemctl topic show TOPIC`.")
}

func listTopics(ctx context.Context, a *app, l *look, f inspect.TopicFilter) ([]summaryView, error) {
	p := a.screen.Progress("Looking through the keys", -1)
	defer p.End()
	all := []summaryView{}
	for s, err := range l.Topics(ctx, f) {
		if err != nil {
			return nil, err
		}
		v := summaryView{Topic: s.Topic, Exists: s.Exists, Mode: modeOf(s.Layout), ProducerIDs: s.Layout.Shards, Length: s.Length, Groups: s.Groups, DeadLetters: s.DeadLetters}
		if s.LayoutErr != nil {
			v.Error = s.LayoutErr.Error()
		}
		all = append(all, v)
		p.Set(int64(len(all)), 0)
	}
	slices.SortFunc(all, func(a, b summaryView) int { return strings.Compare(a.Topic, b.Topic) })
	return all, nil
}

func topicTable(p *screen.Page, all []summaryView, where string) {
	if len(all) == 0 {
		p.Line("No topics at %s. A stream without a layout record is not listed; see `idemctl topic show`.", where)
		return
	}
	var rows [][]string
	for _, t := range all {
		mode := t.Mode
		if t.Error != "" {
			mode = "broken"
		}
		entries := screen.Known(t.Length)
		if !t.Exists {
			entries = "deleted"
		}
		rows = append(rows, []string{screen.Printable(t.Topic), mode, fmt.Sprint(t.ProducerIDs), entries, screen.Known(t.Groups), screen.Known(t.DeadLetters)})
	}
	p.Table([]string{"TOPIC", "MODE", "PRODUCER IDS", "ENTRIES", "GROUPS", "DEAD LETTERS"}, rows, 2, 3, 4, 5)
	for _, t := range all {
		if t.Error != "" {
			p.Sentences("! ", screen.Printable(t.Topic+": "+t.Error))
		}
	}
}

// modeOf is the name of a layout's mode, empty where there is no layout.
func modeOf(l publisher.Layout) string {
	if l.Mode == publisher.ModeAuto {
		return ""
	}
	return l.Mode.String()
}

// completeTopics offers the server's topics, for as long as a shell's user would wait.
func completeTopics(a *app) cobra.CompletionFunc {
	return func(cmd *cobra.Command, given []string, begun string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if len(given) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		a.Timeout = suggestWithin
		ctx, cancel := context.WithTimeout(cmd.Context(), suggestWithin)
		defer cancel()
		l, err := a.look(ctx)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		defer l.Close()
		var names []cobra.Completion
		for _, topic := range l.names(ctx) {
			if strings.HasPrefix(topic, begun) {
				names = append(names, topic)
			}
		}
		return names, cobra.ShellCompDirectiveNoFileComp
	}
}

// suggestWithin bounds how long names are looked for that nobody has asked for.
const suggestWithin = 2 * time.Second
