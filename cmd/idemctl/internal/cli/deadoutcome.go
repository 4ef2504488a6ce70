package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/inspect"
)

// change is a command that publishes letters again, or removes them.
type change struct {
	topic       string
	filter      deadletter.Filter
	dry, replay bool
	// groups are those that what is published goes to.
	groups []inspect.Group
	// forgets reports that records are forgotten, namespace is theirs; empty: the letter's group.
	forgets   bool
	namespace string
	// events are those of the letters that were published, by the namespace that has their records.
	events map[string][]string
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
	WouldReplay     int64         `json:"would_replay"`
	WouldDrop       int64         `json:"would_drop"`
	WouldForget     int64         `json:"would_forget_records"`
	HandledSince    int64         `json:"handled_since"`
	Letters         []outcomeView `json:"letters"`
	Groups          []goesToView  `json:"groups,omitempty"`
	forgets         bool          // that records are forgotten was asked for
	next            []string      // what to look at afterwards
}

type outcomeView struct {
	ID          string     `json:"id"`
	Key         string     `json:"key,omitempty"`
	Action      string     `json:"action"`
	EntryID     string     `json:"entry_id,omitempty"`
	Forgotten   []string   `json:"records_forgotten,omitempty"`
	WouldForget []string   `json:"would_forget_records,omitempty"`
	HandledAt   *time.Time `json:"handled_at,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// goesToView is a group that gets what is published.
type goesToView struct {
	Group     string   `json:"group"`
	Consumers int      `json:"consumers"`
	LastSeen  *float64 `json:"last_seen_seconds,omitempty"`
	seen      time.Duration
}

// maxOutcomes bounds what is shown of single letters. The failed ones among the rest are
// in Result.Failures.
const maxOutcomes = 10_000

// run runs a replay or a drop with a bar, and shows what became of the letters.
func (c *change) run(ctx context.Context, a *app, l *letters, do func(note func(deadletter.Outcome)) (deadletter.Result, error)) error {
	bar := a.screen.Progress("Dead letters", -1)
	view := resultView{Topic: c.topic, DryRun: c.dry, Letters: []outcomeView{}, forgets: c.forgets}
	result, err := do(func(o deadletter.Outcome) {
		bar.Set(o.Done, o.Total)
		c.note(o)
		if len(view.Letters) < maxOutcomes {
			view.Letters = append(view.Letters, c.view(o))
		}
	})
	bar.End()
	view.count(result)
	if c.replay && result.Replayed+result.AlreadyReplayed > 0 {
		view.Groups, view.next = goesTo(c.groups), c.next()
	}
	if err != nil && result.Matched == 0 {
		return l.lacks(ctx, c.topic, true, err)
	}
	err = l.lacks(context.WithoutCancel(ctx), c.topic, true, err)
	if shown := a.screen.Show(view, func(p *screen.Page) { showOutcomes(p, view) }); shown != nil {
		return errors.Join(shown, err)
	}
	if result.Matched == 0 {
		l.saysWhy(ctx, a, c.topic, c.filter)
	}
	switch {
	case err != nil:
		return err
	case result.Failed+result.Gone > 0:
		return found()
	}
	return nil
}

// count says in a dry run that nothing was done.
func (v *resultView) count(r deadletter.Result) {
	v.Matched, v.AlreadyReplayed, v.Gone, v.Failed, v.HandledSince = r.Matched, r.AlreadyReplayed, r.Gone, r.Failed, r.HandledSince
	if v.DryRun {
		v.WouldReplay, v.WouldDrop, v.WouldForget = r.Replayed, r.Dropped, r.Forgotten
		return
	}
	v.Replayed, v.Dropped, v.Forgotten = r.Replayed, r.Dropped, r.Forgotten
}

func (c *change) view(o deadletter.Outcome) outcomeView {
	v := outcomeView{ID: o.Letter.ID, Key: o.Letter.Key, Action: o.Action.String(), EntryID: o.Receipt.EntryID, HandledAt: timeOf(o.HandledAt)}
	var records []string
	for _, k := range o.Forgotten {
		records = append(records, dedupe.Key.String(k))
	}
	if v.Forgotten = records; c.dry {
		v.Forgotten, v.WouldForget = nil, records
	}
	if o.Err != nil {
		v.Error = o.Err.Error()
	}
	if c.dry && o.Err == nil {
		v.Action = screen.Or(map[deadletter.Action]string{deadletter.ActionReplayed: "would replay", deadletter.ActionDropped: "would drop"}[o.Action], v.Action)
	}
	return v
}

// note keeps whose records tell later whether an event was handled.
func (c *change) note(o deadletter.Outcome) {
	namespace := screen.Or(c.namespace, o.Letter.Group)
	if !c.replay || c.dry || o.Err != nil || o.Letter.Key == "" || namespace == "" {
		return
	}
	if c.events == nil {
		c.events = make(map[string][]string)
	}
	if len(c.events[namespace]) < 2 { // it matters only whether it is one
		c.events[namespace] = append(c.events[namespace], o.Letter.Key)
	}
}

// next says how to look what became of what was published.
func (c *change) next() (texts []string) {
	for namespace, events := range c.events {
		event := "EVENT"
		if len(events) == 1 {
			event = quote(events[0])
		}
		texts = append(texts, fmt.Sprintf("idemctl key get %s %s", quote(namespace), event))
	}
	slices.Sort(texts)
	return texts
}

func goesTo(groups []inspect.Group) []goesToView {
	all := []goesToView{}
	for _, g := range groups {
		v := goesToView{Group: g.Name, Consumers: len(g.Consumers), seen: -1}
		for _, c := range g.Consumers {
			if c.Idle >= 0 && (v.seen < 0 || c.Idle < v.seen) {
				v.seen = c.Idle
			}
		}
		v.LastSeen = seconds(v.seen)
		all = append(all, v)
	}
	return all
}

func showOutcomes(p *screen.Page, v resultView) {
	if len(v.Letters) == 0 {
		p.Line("No dead letter of topic %s was picked.", screen.Printable(v.Topic))
		return
	}
	var rows [][]string
	var notes []string
	for _, o := range v.Letters {
		rows = append(rows, []string{o.ID, screen.Or(screen.Printable(o.Key), "-"), o.Action, screen.Or(o.EntryID, "-")})
		if o.Error != "" {
			notes = append(notes, o.ID+": "+screen.Printable(o.Error))
		}
		for _, k := range o.Forgotten {
			notes = append(notes, o.ID+": forgets the record "+screen.Printable(k))
		}
		for _, k := range o.WouldForget {
			notes = append(notes, o.ID+": would forget the record "+screen.Printable(k))
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
	if v.Groups != nil {
		showGoesTo(p, v)
	}
}

// showGoesTo says who gets what was published, and how to see what becomes of it.
func showGoesTo(p *screen.Page, v resultView) {
	p.Gap()
	if len(v.Groups) == 0 {
		p.Line("Topic %s has no consumer group: nobody gets it now.", screen.Printable(v.Topic))
		return
	}
	var rows [][]string
	for _, g := range v.Groups {
		reads := "nobody: it waits for the next subscription"
		if g.Consumers > 0 {
			reads = fmt.Sprintf("%s, last seen %s", screen.Plural(g.Consumers, "consumer", "consumers"), ago(g.seen))
		}
		rows = append(rows, []string{screen.Printable(g.Group), reads})
	}
	head := "GOES TO"
	if v.DryRun {
		head = "WOULD GO TO"
	}
	p.Table([]string{head, "READ BY"}, rows)
	if len(v.next) > 0 {
		p.Gap()
	}
	for _, command := range v.next { // not wrapped: they are copied
		p.Line("Was it handled?    %s", screen.Printable(command))
	}
	if len(v.next) > 0 {
		p.Line("Did it die again?  idemctl dead list %s", screen.Printable(quote(v.Topic)))
	}
}

func outcomeSummary(v resultView) string {
	text, sep := screen.Plural(v.Matched, "dead letter", "dead letters")+": ", ""
	for _, part := range []struct {
		n    int64
		what string
	}{
		{v.Replayed, "replayed"}, {v.WouldReplay, "would be replayed"}, {v.AlreadyReplayed, "replayed before"},
		{v.Dropped, "dropped"}, {v.WouldDrop, "would be dropped"}, {v.Gone, "not there"}, {v.Failed, "failed"},
	} {
		if part.n > 0 {
			text += fmt.Sprintf("%s%s %s", sep, screen.Count(part.n), part.what)
			sep = ", "
		}
	}
	if v.forgets && v.Forgotten+v.WouldForget == 0 {
		text += "; no record was there to forget"
	}
	if v.DryRun {
		return text + "; nothing was changed"
	}
	return text
}
