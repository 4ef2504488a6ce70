package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/internal/redact"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// checkArgs is what a service is configured with, as far as the operator says.
type checkArgs struct {
	producer, key string
	groups        []string
	window        span
	entries       int
	store         string
	strict        bool
}

const storeNone = "none"

func newCheck(a *app) *cobra.Command {
	c := checkArgs{}
	cmd := &cobra.Command{
		Use:   "check [TOPIC ...]",
		Short: "Check server, rights, topics and the store of records",
		Long: `Asks all that the Checks of publisher, subscriber and store ask, as the user of the address: log in
as the service does. It says what would fail (a missing right, by name; a mode that the server does
not have; a missing table), and warns of what works and endangers events: a server that evicts, or
keeps nothing over a restart, producer IDs of single instances, entries that were trimmed unread.

A topic or a group need not be there yet: it is a warning, for the name may be mistyped. Without --group the groups that there are get checked. Settings of
the service can be given to have them compared with what is in force.

Exit code 1: something would fail, or with --strict also a warning.`,
		Example: examples("idemctl check payments refunds", "idemctl check payments --producer payment-service --group billing --window 2h",
			"idemctl check payments --strict -o json", "idemctl check --sql postgres://localhost/shop"),
		Args: atLeast(), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) error { return c.run(cmd.Context(), a, given) },
	}
	f := cmd.Flags()
	f.StringVar(&c.producer, "producer", defaultProducer, "the service's producer `ID`")
	f.StringVar(&c.key, "event-key", "", "`TEMPLATE` of the service's keys, to look for a key that is too coarse: 'pay:{$.id}'")
	f.StringArrayVar(&c.groups, "group", nil, "the consumer `GROUP` that reads; may be repeated; default: those that there are")
	f.Var(&c.window, "window", "the service's Window.Duration; default: as it is in force")
	f.IntVar(&c.entries, "entries", 0, "the service's Window.Entries; default: as it is in force")
	f.BoolVar(&c.strict, "strict", false, "also warnings end with exit code 1")
	f.StringVar(&c.store, "store", "", "where the records are: `redis|sql|none`; default: sql if --sql is given, else redis")
	must(cmd.RegisterFlagCompletionFunc("store", cobra.FixedCompletions([]string{"redis", "sql", storeNone}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// checkView is what a check found, in JSON. Its names are stable.
type checkView struct {
	OK              bool             `json:"ok"`
	Server          string           `json:"server"`
	Where           string           `json:"where"`
	MaxmemoryPolicy string           `json:"maxmemory_policy"`
	Persistence     string           `json:"persistence"`
	Topics          []topicCheckView `json:"topics"`
	Store           *storeCheckView  `json:"store,omitempty"`
	Faults          []string         `json:"faults"`
	Warnings        []string         `json:"warnings"`
}

type topicCheckView struct {
	Topic       string           `json:"topic"`
	Exists      bool             `json:"exists"`
	Mode        string           `json:"mode,omitempty"`
	ProducerIDs int              `json:"producer_ids_per_producer"`
	Seconds     float64          `json:"window_seconds"`
	Entries     int              `json:"window_entries"`
	MemoryBytes int64            `json:"memory_bytes"`
	Publish     bool             `json:"publish_ok"`
	Read        bool             `json:"read_ok"`
	Missing     []string         `json:"missing_rights"`
	DeadLetters int64            `json:"dead_letters"`
	Groups      []groupCheckView `json:"groups"`
}

type groupCheckView struct {
	Group         string  `json:"group"`
	Exists        bool    `json:"exists"`
	Lag           int64   `json:"lag"`
	Pending       int64   `json:"pending"`
	OldestPending float64 `json:"oldest_pending_seconds"`
	Consumers     int     `json:"consumers"`
	TrimmedUnread int64   `json:"trimmed_unread"`
	DeadLetters   int64   `json:"dead_letters"`
}

type storeCheckView struct {
	Where string `json:"where"`
	OK    bool   `json:"ok"`
}

func (c *checkArgs) run(ctx context.Context, a *app, topics []string) (err error) {
	if c.entries < 0 {
		return exit.Errorf(exit.Usage, "--entries %d is negative", c.entries)
	}
	if _, err := template(c.key); err != nil {
		return err
	}
	l, err := a.look(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	v := &checkView{Server: l.Product, Where: l.Where, Topics: []topicCheckView{}, Faults: []string{}, Warnings: []string{}}
	if len(topics) == 0 {
		if err := c.publisher(ctx, a, l, v, nil, inspect.Topic{}); err != nil {
			return err
		}
	}
	for _, topic := range topics {
		if err := c.topic(ctx, a, l, v, topic); err != nil {
			return err
		}
	}
	if c.store != storeNone {
		if err := c.records(ctx, a, l, v); err != nil {
			return err
		}
	}
	v.OK = len(v.Faults) == 0
	if err := a.screen.Show(v, func(p *screen.Page) { showCheck(p, v) }); err != nil {
		return err
	}
	if !v.OK || c.strict && len(v.Warnings) > 0 {
		return found()
	}
	return nil
}

// fault notes what is wrong. Only that a server can't be reached ends a check.
func (v *checkView) fault(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case exit.Of(err) == exit.Unreachable || exit.Of(err) == exit.Interrupted:
		return err
	}
	for line := range strings.SplitSeq(redact.Clean(err.Error()), "\n") {
		if line != "" {
			v.Faults = append(v.Faults, what+": "+line)
		}
	}
	return nil
}

func (v *checkView) warn(warnings []string) {
	for _, w := range warnings {
		if w = redact.Clean(w); !slices.Contains(v.Warnings, w) {
			v.Warnings = append(v.Warnings, w)
		}
	}
}

// topic checks one topic for publishing, and for reading by each group.
func (c *checkArgs) topic(ctx context.Context, a *app, l *look, v *checkView, topic string) error {
	t, err := boundedTopic(ctx, a, l, topic)
	if err != nil && exit.Of(err) == exit.Unreachable {
		return err
	}
	if err != nil { // a service's user may not look as an operator's does
		t = inspect.Topic{Topic: topic}
	}
	if err == nil {
		v.warn(c.unknown(ctx, l, t))
	}
	v.Topics = append(v.Topics, topicCheckView{Topic: topic, Missing: []string{}, Groups: []groupCheckView{}})
	if err := c.publisher(ctx, a, l, v, []string{topic}, t); err != nil {
		return err
	}
	groups := c.groups
	if len(groups) == 0 {
		for _, g := range t.Groups {
			groups = append(groups, g.Name)
		}
	}
	if len(groups) == 0 { // the rights are the same for any
		groups = []string{defaultProducer}
	}
	dead := deadByGroup(ctx, a, l, topic)
	v.Topics[len(v.Topics)-1].Read = true
	for _, g := range groups {
		if err := c.subscriber(ctx, a, l, v, topic, g, dead); err != nil {
			return err
		}
	}
	return nil
}

// unknown warns of names that may be mistyped. They are no faults: a topic and a group are made when
// they are first used.
func (c *checkArgs) unknown(ctx context.Context, l *look, t inspect.Topic) (warnings []string) {
	if isUnknown(t) {
		return []string{fmt.Sprintf("There is no topic %q yet: no stream, no layout record, no dead letters. %sThe first publish makes it.", t.Topic, l.meant(ctx, t.Topic))}
	}
	names := make([]string, len(t.Groups))
	for i, g := range t.Groups {
		names[i] = g.Name
	}
	for _, g := range c.groups {
		if slices.Contains(names, g) {
			continue
		}
		there := "has none"
		if len(names) > 0 {
			there = "has " + strings.Join(names, ", ")
		}
		warnings = append(warnings, fmt.Sprintf("There is no group %q yet: topic %q %s. %sThe first subscription makes it.", g, t.Topic, there, didYouMean(similar(g, names))))
	}
	return warnings
}

func (c *checkArgs) publisher(ctx context.Context, a *app, l *look, v *checkView, topics []string, t inspect.Topic) error {
	key, err := template(c.key)
	if err != nil {
		return err
	}
	pub, err := c.newPublisher(l, t, key)
	if err != nil {
		return err
	}
	defer pub.Close()
	ctx, cancel := a.Bounded(ctx)
	defer cancel()
	report, err := pub.Check(ctx, topics...)
	v.warn(report.Warnings)
	v.Server, v.MaxmemoryPolicy, v.Persistence = screen.Or(report.Server, v.Server), report.MaxmemoryPolicy, report.Persistence
	if len(topics) > 0 && len(report.Topics) > 0 {
		r, tv := report.Topics[0], &v.Topics[len(v.Topics)-1]
		tv.Exists, tv.Mode, tv.ProducerIDs = r.Exists, modeOf(r.Layout), r.Layout.Shards
		tv.Seconds, tv.Entries, tv.MemoryBytes = r.Window.Duration.Seconds(), r.Window.Entries, r.Memory
		tv.Missing = append(tv.Missing, r.Missing...)
		tv.Publish = err == nil
	}
	return v.fault("publish", err)
}

// newPublisher compares with what the operator has said, and else with nothing.
func (c *checkArgs) newPublisher(l *look, t inspect.Topic, key eventkey.Source) (*publisher.Publisher, error) {
	if c.window > 0 {
		t.Window.Duration, t.Layout.Duration = time.Duration(c.window), time.Duration(c.window)
	}
	if c.entries > 0 {
		t.Window.Entries = c.entries
	}
	return publisherOf(l, t, c.producer, key)
}

func (c *checkArgs) subscriber(ctx context.Context, a *app, l *look, v *checkView, topic, group string, dead tally) error {
	// MaxDeliveries is the service's affair.
	sub, err := subscriber.New(subscriber.Config{Client: l.UniversalClient, Group: group, MaxDeliveries: 1}, nil)
	if err != nil {
		return exit.Errorf(exit.Usage, "%w", err)
	}
	defer sub.Close()
	ctx, cancel := a.Bounded(ctx)
	defer cancel()
	report, err := sub.Check(ctx, topic)
	v.warn(report.Warnings)
	v.Server = screen.Or(v.Server, report.Server)
	tv := &v.Topics[len(v.Topics)-1]
	if len(report.Topics) > 0 {
		r := report.Topics[0]
		tv.DeadLetters = r.DeadLetters
		own := r.DeadLetters
		if own > 0 {
			own = dead.of(group)
		}
		for _, m := range r.Missing {
			if !slices.Contains(tv.Missing, m) {
				tv.Missing = append(tv.Missing, m)
			}
		}
		if r.HasGroup || slices.Contains(c.groups, group) {
			tv.Groups = append(tv.Groups, groupCheckView{group, r.HasGroup, r.Lag, r.Pending, r.OldestPending.Seconds(), r.Consumers, r.TrimmedUnread, own})
		}
	}
	tv.Read = tv.Read && err == nil
	return v.fault("read", err)
}

func (c *checkArgs) records(ctx context.Context, a *app, l *look, v *checkView) error {
	store, err := a.storeBeside(ctx, l, c.store)
	if err != nil {
		return err
	}
	defer store.Close()
	ctx, cancel := a.Bounded(ctx)
	defer cancel()
	warnings, err := store.Check(ctx)
	v.warn(warnings)
	v.Store = &storeCheckView{store.Where, err == nil}
	return v.fault("records", err)
}

func showCheck(p *screen.Page, v *checkView) {
	p.Facts(
		screen.Fact{Name: "server", Value: fmt.Sprintf("%s at %s", screen.Or(v.Server, "a server that does not say what it is"), v.Where)},
		screen.Fact{Name: "eviction", Value: v.MaxmemoryPolicy},
		screen.Fact{Name: "persistence", Value: v.Persistence},
	)
	if v.Store != nil {
		p.Facts(screen.Fact{Name: "records    ", Value: v.Store.Where + ": " + okText(v.Store.OK)})
	}
	if len(v.Topics) > 0 {
		var rows [][]string
		for _, t := range v.Topics {
			window := screen.Duration(time.Duration(t.Seconds * float64(time.Second)))
			if t.Entries > 0 {
				window += " / " + screen.Count(t.Entries)
			}
			memory := screen.Bytes(t.MemoryBytes)
			if t.Mode == "" {
				window, memory = "?", "?"
			}
			rows = append(rows, []string{screen.Printable(t.Topic), yes(t.Exists), okText(t.Publish), okText(t.Read), screen.Or(t.Mode, "?"), window, memory, screen.Known(t.DeadLetters)})
		}
		p.Gap()
		p.Table([]string{"TOPIC", "EXISTS", "PUBLISH", "READ", "MODE", "WINDOW", "MEMORY IF FULL", "DEAD LETTERS"}, rows, 6, 7)
	}
	var groups [][]string
	for _, t := range v.Topics {
		for _, g := range t.Groups {
			groups = append(groups, []string{
				screen.Printable(t.Topic), screen.Printable(g.Group), yes(g.Exists), screen.Known(g.Lag), screen.Count(g.Pending),
				screen.Duration(time.Duration(g.OldestPending * float64(time.Second))), screen.Count(g.Consumers), screen.Known(g.DeadLetters),
			})
		}
	}
	if len(groups) > 0 {
		p.Gap()
		p.Table([]string{"TOPIC", "GROUP", "EXISTS", "LAG", "PENDING", "OLDEST", "CONSUMERS", "DEAD LETTERS"}, groups, 3, 4, 5, 6, 7)
	}
	if len(v.Faults) > 0 {
		p.Heading("FAULTS")
		p.Sentences("! ", printables(v.Faults)...)
	}
	if len(v.Warnings) > 0 {
		p.Heading("WARNINGS")
		p.Sentences("- ", printables(v.Warnings)...)
	}
	p.Gap()
	switch {
	case len(v.Faults) == 0 && len(v.Warnings) == 0:
		p.Line("All is well.")
	default:
		p.Line("%s, %s.", screen.Plural(len(v.Faults), "fault", "faults"), screen.Plural(len(v.Warnings), "warning", "warnings"))
	}
}

func printables(texts []string) []string {
	all := make([]string, len(texts))
	for i, t := range texts {
		all[i] = screen.Printable(t)
	}
	return all
}

func okText(ok bool) string {
	if ok {
		return "ok"
	}
	return "FAULT"
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return "no"
}
