package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/connect"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/deadletter"
)

func newDead(a *app) *cobra.Command {
	return parent("dead", "Dead letters: list, show, publish again, remove",
		`A subscriber moves an entry that it gives up on into the topic's stream of dead letters, together
with why. Once the cause is mended, replay publishes it to its topic again and takes it out of there.`,
		newDeadList(a), newDeadShow(a), newDeadReplay(a), newDeadDrop(a))
}

// letters is a server with its dead letters.
type letters struct {
	*look
	dead *deadletter.Letters
}

func (a *app) letters(ctx context.Context) (*letters, error) {
	l, err := a.look(ctx)
	if err != nil {
		return nil, err
	}
	d, err := deadletter.New(deadletter.Config{Client: l.UniversalClient})
	if err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &letters{l, d}, nil
}

func (l *letters) lacks(ctx context.Context, topic string, change bool, err error) error {
	return withRights(err, func() ([]string, error) { return l.dead.Check(ctx, topic, change) })
}

// deadArgs picks dead letters.
type deadArgs struct {
	from, to             moment
	reason, group, key   string
	errorHas             string
	limit                int
	newest, all, yes, dr bool
}

func (d *deadArgs) flags(cmd *cobra.Command, limit int) {
	f := cmd.Flags()
	f.Var(&d.from, "from", "died at or after this `TIME`: 2h (ago), or 2006-01-02T15:04:05Z")
	f.Var(&d.to, "to", "died before this `TIME`")
	f.StringVar(&d.reason, "reason", "", "only this `REASON`: max deliveries, undecodable, rejected, or a handler's own")
	f.StringVar(&d.group, "group", "", "only those that this consumer `GROUP` gave up on")
	f.StringVar(&d.key, "key", "", "only the event with this `KEY`")
	f.StringVar(&d.errorHas, "error", "", "only with this `TEXT` in their error, in any case of letters")
	f.IntVar(&d.limit, "limit", limit, "at most so many; 0: all")
	f.BoolVar(&d.newest, "newest", false, "begin with the newest")
}

func (d *deadArgs) filter(ids []string) (deadletter.Filter, error) {
	f := deadletter.Filter{
		IDs: ids, From: d.from.Time, To: d.to.Time, Reason: d.reason, Group: d.group, Key: d.key, ErrorHas: d.errorHas, Limit: d.limit, Newest: d.newest,
	}
	if d.limit < 0 {
		return f, exit.Errorf(exit.Usage, "--limit %d is negative", d.limit)
	}
	if err := inOrder("--from", d.from, "--to", d.to); err != nil {
		return f, err
	}
	return f, asked(f)
}

// asked reports what the command line can't mean.
func asked(f deadletter.Filter) error {
	if err := f.Validate(); err != nil {
		return exit.Errorf(exit.Usage, "%w", err).Do("`idemctl dead list TOPIC` shows the IDs, each with its event.")
	}
	return nil
}

// picks reports whether anything narrows the letters down.
func (d *deadArgs) picks(ids []string) bool {
	return len(ids) > 0 || !d.from.IsZero() || !d.to.IsZero() || d.reason != "" || d.group != "" || d.key != "" || d.errorHas != "" || d.limit > 0
}

// letterView is a dead letter in JSON. Its names are stable.
type letterView struct {
	ID          string            `json:"id"`
	Topic       string            `json:"topic"`
	EntryID     string            `json:"entry_id,omitempty"`
	Reason      string            `json:"reason"`
	Error       string            `json:"error,omitempty"`
	Group       string            `json:"group"`
	Deliveries  int               `json:"deliveries"`
	At          *time.Time        `json:"at"`
	Key         string            `json:"key,omitempty"`
	MessageUUID string            `json:"message_uuid,omitempty"`
	Replays     int               `json:"replays"`
	ReplayedAt  *time.Time        `json:"replayed_at,omitempty"`
	ReplayedBy  string            `json:"replayed_by,omitempty"`
	Size        int               `json:"size_bytes"`
	Undecodable string            `json:"undecodable,omitempty"`
	Payload     *string           `json:"payload,omitempty"`
	PayloadB64  []byte            `json:"payload_base64,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
}

func letterViewOf(l deadletter.Letter, full bool) letterView {
	v := letterView{
		ID: l.ID, Topic: l.Topic, EntryID: l.EntryID, Reason: l.Reason, Error: l.Error, Group: l.Group, Deliveries: l.Deliveries, At: timeOf(l.At),
		Key: l.Key, MessageUUID: l.MessageUUID, Replays: l.Replays, ReplayedAt: timeOf(l.ReplayedAt), ReplayedBy: l.ReplayedBy, Size: l.Size,
	}
	if l.Err != nil {
		v.Undecodable = l.Err.Error()
	}
	if full {
		v.Metadata = l.Metadata
		if text := string(l.Payload); utf8.ValidString(text) {
			v.Payload = &text
		} else {
			v.PayloadB64 = l.Payload
		}
	}
	return v
}

func newDeadList(a *app) *cobra.Command {
	var d deadArgs
	cmd := &cobra.Command{
		Use:   "list TOPIC",
		Short: "List dead letters: why they are there, and since when",
		Example: examples("idemctl dead list payments", "idemctl dead list payments --group billing --reason rejected --from 24h",
			"idemctl dead list payments --error 'connection refused' -o json"),
		Args: args("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			f, err := d.filter(nil)
			if err != nil {
				return err
			}
			l, err := a.letters(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			total, err := l.dead.Len(cmd.Context(), given[0])
			if err != nil {
				return l.lacks(cmd.Context(), given[0], false, err)
			}
			if total == 0 {
				if err := l.mustExist(cmd.Context(), given[0]); err != nil {
					return err
				}
			}
			bar := a.screen.Progress("Reading dead letters", total)
			all, views := []deadletter.Letter{}, []letterView{}
			for letter, err := range l.dead.List(cmd.Context(), given[0], f) {
				if err != nil {
					bar.End()
					return l.lacks(cmd.Context(), given[0], false, err)
				}
				letter.Payload = nil // a list has no room for it
				all, views = append(all, letter), append(views, letterViewOf(letter, false))
				bar.Set(int64(len(all)), total)
			}
			bar.End()
			err = a.screen.Show(views, func(p *screen.Page) { letterTable(p, all, given[0], total) })
			if len(all) == 0 {
				l.saysWhy(cmd.Context(), a, given[0], f)
			}
			if d.limit > 0 && len(all) == d.limit && total > int64(len(all)) {
				a.screen.Remark("There are %s in all; --limit 0 shows them.", screen.Count(total))
			}
			return err
		},
	}
	d.flags(cmd, 1000)
	return cmd
}

func letterTable(p *screen.Page, all []deadletter.Letter, topic string, total int64) {
	switch {
	case len(all) == 0 && total == 0:
		p.Line("No dead letters of topic %s.", screen.Printable(topic))
		return
	case len(all) == 0:
		p.Line("None of the %s of topic %s.", screen.Plural(total, "dead letter", "dead letters"), screen.Printable(topic))
		return
	}
	now := time.Now()
	var rows [][]string
	var below []string
	for _, l := range all {
		rows = append(rows, []string{
			l.ID, screen.Duration(now.Sub(l.At)), screen.Printable(l.Group), screen.Printable(l.Reason), fmt.Sprint(l.Deliveries), screen.Or(screen.Printable(l.Key), "-"),
		})
		below = append(below, screen.Printable(l.Error))
	}
	p.TableWith([]string{"ID", "AGE", "GROUP", "REASON", "TRIES", "EVENT"}, rows, below, 1, 4)
}

func newDeadShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "show TOPIC ID",
		Short:   "Show one dead letter with its payload and metadata",
		Long:    "Shows a dead letter by its ID in the stream of dead letters, the first column of `idemctl dead list`.",
		Example: examples("idemctl dead show payments 1764720000000-0", "idemctl dead show payments 1764720000000-0 -o json | jq -r .payload"),
		Args:    args("TOPIC", "ID"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			if err := asked(deadletter.Filter{IDs: given[1:]}); err != nil {
				return err
			}
			l, err := a.letters(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			letter, err := l.dead.Get(cmd.Context(), given[0], given[1])
			if err != nil {
				return l.lacks(cmd.Context(), given[0], false, l.noLetter(cmd.Context(), given[0], err))
			}
			now := time.Now()
			return a.screen.Show(letterViewOf(letter, true), func(p *screen.Page) { showLetter(p, letter, now) })
		},
	}
}

// noLetter explains an ID that is not there.
func (l *letters) noLetter(ctx context.Context, topic string, err error) error {
	if !errors.Is(err, deadletter.ErrNotFound) {
		return err
	}
	if unknown := l.mustExist(ctx, topic); unknown != nil {
		return unknown
	}
	return exit.Errorf(exit.Found, "%w", err).Do("It was replayed, dropped or trimmed, or never there. `idemctl dead list %s` shows what there is.", quote(topic))
}

func showLetter(p *screen.Page, l deadletter.Letter, now time.Time) {
	broken := ""
	if l.Err != nil {
		broken = l.Err.Error()
	}
	replayed := ""
	if l.Replays > 0 {
		replayed = fmt.Sprintf("%s before, the last one %s by %s", screen.Plural(l.Replays, "time", "times"), screen.Ago(l.ReplayedAt, now), screen.Or(screen.Printable(l.ReplayedBy), "somebody"))
	}
	p.Facts(
		screen.Fact{Name: "id", Value: l.ID},
		screen.Fact{Name: "topic", Value: screen.Printable(l.Topic)},
		screen.Fact{Name: "entry", Value: l.EntryID},
		screen.Fact{Name: "died", Value: screen.Ago(l.At, now)},
		screen.Fact{Name: "reason", Value: screen.Printable(l.Reason)},
		screen.Fact{Name: "error", Value: screen.Printable(l.Error)},
		screen.Fact{Name: "group", Value: screen.Printable(l.Group)},
		screen.Fact{Name: "deliveries", Value: fmt.Sprint(l.Deliveries)},
		screen.Fact{Name: "replayed", Value: replayed},
		screen.Fact{Name: "event", Value: screen.Printable(l.Key)},
		screen.Fact{Name: "message UUID", Value: screen.Printable(l.MessageUUID)},
		screen.Fact{Name: "undecodable", Value: broken},
		screen.Fact{Name: "size", Value: screen.Bytes(int64(l.Size))},
	)
	names := make([]string, 0, len(l.Metadata))
	for name := range l.Metadata {
		if !strings.HasPrefix(name, "_dead_") { // which stand above
			names = append(names, name)
		}
	}
	slices.Sort(names)
	if len(names) > 0 {
		p.Heading("METADATA")
		var rows []screen.Fact
		for _, name := range names {
			rows = append(rows, screen.Fact{Name: screen.Printable(name), Value: screen.Printable(l.Metadata[name])})
		}
		p.Facts(rows...)
	}
	if l.Err != nil {
		return
	}
	p.Heading("PAYLOAD, %s", screen.Bytes(int64(len(l.Payload))))
	p.Line("%s", screen.Text(string(l.Payload)))
}

// storeBeside opens the store of records; one in Redis has the connections that are there.
func (a *app) storeBeside(ctx context.Context, l *look, kind string) (*connect.Store, error) {
	if kind == connect.KindRedis || kind == "" && a.SQL == "" {
		return a.RedisStore(l.Redis, func() error { return nil })
	}
	return a.store(ctx, kind)
}
