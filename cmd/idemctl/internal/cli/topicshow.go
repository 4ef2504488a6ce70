package cli

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
)

func newTopicShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show TOPIC",
		Short: "Mode, window, fill, duplicates, groups, dead letters",
		Long: `Shows all that the server knows of a topic, also of one that others write. No entry is read.

Redis does not tell how the remembered IDs are spread over the producer IDs; the fill is the mean.`,
		Example: examples("idemctl topic show payments", "idemctl topic show payments -o json"),
		Args:    args("TOPIC"), ValidArgsFunction: completeTopics(a),
		RunE: func(cmd *cobra.Command, given []string) (err error) {
			l, err := a.look(cmd.Context())
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, l.Close()) }()
			ctx, cancel := a.Bounded(cmd.Context())
			defer cancel()
			t, err := l.topic(ctx, given[0])
			if err != nil {
				return err
			}
			now := time.Now()
			return a.screen.Show(topicViewOf(t), func(p *screen.Page) { showTopic(p, t, now) })
		},
	}
}

// topicView is a topic in JSON. Its names are stable.
type topicView struct {
	Topic           string      `json:"topic"`
	Server          string      `json:"server,omitempty"`
	Exists          bool        `json:"exists"`
	Mode            string      `json:"mode,omitempty"`
	ProducerIDs     int         `json:"producer_ids_per_producer,omitempty"`
	LayoutError     string      `json:"layout_error,omitempty"`
	Stream          streamView  `json:"stream"`
	Window          windowView  `json:"window"`
	Groups          []groupView `json:"groups"`
	DeadLetterTopic string      `json:"dead_letter_topic"`
	DeadLetters     int64       `json:"dead_letters"`
	Notes           []string    `json:"notes"`
}

type streamView struct {
	Length       int64      `json:"length"`
	EntriesAdded int64      `json:"entries_added"`
	Deleted      int64      `json:"deleted"`
	FirstID      string     `json:"first_id,omitempty"`
	FirstAt      *time.Time `json:"first_at,omitempty"`
	LastID       string     `json:"last_id,omitempty"`
	LastAt       *time.Time `json:"last_at,omitempty"`
	MemoryBytes  int64      `json:"memory_bytes"`
}

type windowView struct {
	InServer    bool    `json:"in_server"`
	Seconds     float64 `json:"duration_seconds"`
	MaxIDs      int64   `json:"max_ids_per_producer_id"`
	Entries     int     `json:"entries"`
	ProducerIDs int64   `json:"producer_ids_tracked"`
	IDs         int64   `json:"ids_tracked"`
	Fill        float64 `json:"fill"`
	IDsAdded    int64   `json:"ids_added"`
	Duplicates  int64   `json:"duplicates"`
}

type groupView struct {
	Name             string         `json:"name"`
	Lag              int64          `json:"lag"`
	Pending          int64          `json:"pending"`
	HandedBack       int64          `json:"handed_back"`
	OldestPending    string         `json:"oldest_pending,omitempty"`
	OldestAgeSeconds float64        `json:"oldest_pending_age_seconds,omitempty"`
	LastDelivered    string         `json:"last_delivered,omitempty"`
	EntriesRead      int64          `json:"entries_read"`
	Consumers        []consumerView `json:"consumers"`
}

type consumerView struct {
	Name            string   `json:"name"`
	Pending         int64    `json:"pending"`
	IdleSeconds     *float64 `json:"idle_seconds,omitempty"`
	InactiveSeconds *float64 `json:"inactive_seconds,omitempty"`
}

func topicViewOf(t inspect.Topic) topicView {
	v := topicView{
		Topic: t.Topic, Server: t.Server, Exists: t.Exists, Mode: modeOf(t.Layout), ProducerIDs: t.Layout.Shards,
		Stream: streamView{
			Length: t.Stream.Length, EntriesAdded: t.Stream.EntriesAdded, Deleted: t.Stream.Deleted, FirstID: t.Stream.FirstID,
			FirstAt: timeOf(t.Stream.FirstAt), LastID: t.Stream.LastID, LastAt: timeOf(t.Stream.LastAt), MemoryBytes: t.Stream.Memory,
		},
		Window: windowViewOf(t.Window), Groups: []groupView{}, DeadLetterTopic: t.DeadLetterTopic, DeadLetters: t.DeadLetters, Notes: append([]string{}, t.Notes...),
	}
	if t.LayoutErr != nil {
		v.LayoutError = t.LayoutErr.Error()
	}
	for _, g := range t.Groups {
		gv := groupView{
			Name: g.Name, Lag: g.Lag, Pending: g.Pending, HandedBack: g.HandedBack, OldestPending: g.OldestPending,
			OldestAgeSeconds: g.OldestAge.Seconds(), LastDelivered: g.LastDelivered, EntriesRead: g.EntriesRead, Consumers: []consumerView{},
		}
		for _, c := range g.Consumers {
			gv.Consumers = append(gv.Consumers, consumerView{c.Name, c.Pending, seconds(c.Idle), seconds(c.Inactive)})
		}
		v.Groups = append(v.Groups, gv)
	}
	return v
}

func windowViewOf(w inspect.Window) windowView {
	return windowView{w.InServer, w.Duration.Seconds(), w.MaxIDs, w.Entries, w.ProducerIDs, w.IDs, w.Fill, w.IDsAdded, w.Duplicates}
}

// seconds leaves out what is not known.
func seconds(d time.Duration) *float64 {
	if d < 0 {
		return nil
	}
	s := d.Seconds()
	return &s
}

func showTopic(p *screen.Page, t inspect.Topic, now time.Time) {
	length := screen.Count(t.Stream.Length) + " entries"
	if t.Stream.Deleted > 0 {
		length += ", " + screen.Count(t.Stream.Deleted) + " more were trimmed or deleted"
	}
	if !t.Exists {
		length = "there is none"
	}
	memory := ""
	if t.Exists && t.Stream.Memory >= 0 {
		memory = screen.Bytes(t.Stream.Memory)
	}
	p.Facts(
		screen.Fact{Name: "topic", Value: screen.Printable(t.Topic)},
		screen.Fact{Name: "server", Value: t.Server},
		screen.Fact{Name: "mode", Value: layoutText(t)},
		screen.Fact{Name: "stream", Value: length},
		screen.Fact{Name: "oldest entry", Value: at(t.Stream.FirstID, t.Stream.FirstAt, now)},
		screen.Fact{Name: "newest entry", Value: at(t.Stream.LastID, t.Stream.LastAt, now)},
		screen.Fact{Name: "memory", Value: memory},
		screen.Fact{Name: "window", Value: windowText(t)},
		screen.Fact{Name: "remembered", Value: fillText(t.Window)},
		screen.Fact{Name: "duplicates", Value: duplicatesText(t.Window)},
		screen.Fact{Name: "dead letters", Value: deadText(t)},
	)
	groupTables(p, t.Groups)
	if len(t.Notes) > 0 {
		p.Gap()
		p.Sentences("- ", t.Notes...)
	}
}

func at(id string, t, now time.Time) string {
	if id == "" {
		return ""
	}
	return id + " (" + screen.Duration(now.Sub(t)) + " ago)"
}

func layoutText(t inspect.Topic) string {
	switch {
	case t.LayoutErr != nil:
		return "the layout record can't be read: " + t.LayoutErr.Error()
	case !t.HasLayout:
		return "none: no publisher of this library has set it up, nothing is recognised"
	case t.Layout.Mode == publisher.ModeLatch:
		return "latch: a key in Redis for each event"
	}
	return fmt.Sprintf("%s: the server remembers, %s for each producer", t.Layout.Mode, screen.Plural(t.Layout.Shards, "producer ID", "producer IDs"))
}

func windowText(t inspect.Topic) string {
	w := t.Window
	switch {
	case t.Layout.Mode == publisher.ModeLatch && w.Duration == 0:
		return "no latch was found that shows it"
	case t.Layout.Mode == publisher.ModeLatch:
		return screen.Duration(w.Duration) + ", any number of events"
	case w.InServer && w.Entries > 0:
		return roomText(t)
	case w.InServer:
		return fmt.Sprintf("%s, or %s IDs of a producer ID", screen.Duration(w.Duration), screen.Count(w.MaxIDs))
	}
	return ""
}

// roomText says when the server forgets. The keys of a producer are not spread evenly over its producer
// IDs, so the room that is sure is less than that of all of them.
func roomText(t inspect.Topic) string {
	w := t.Window
	text := fmt.Sprintf("%s, or %s events of a producer, whichever is over first", screen.Duration(w.Duration), screen.Count(w.Entries))
	if t.Layout.Shards > 1 {
		text += fmt.Sprintf(" (its %d producer IDs hold %s each, and fill unevenly)", t.Layout.Shards, screen.Count(w.MaxIDs))
	}
	return text
}

func fillText(w inspect.Window) string {
	if !w.InServer {
		return ""
	}
	return fmt.Sprintf("%s under %s, %.0f %% of the room", screen.Plural(w.IDs, "ID", "IDs"), screen.Plural(w.ProducerIDs, "producer ID", "producer IDs"), 100*w.Fill)
}

func duplicatesText(w inspect.Window) string {
	if !w.InServer {
		return ""
	}
	return fmt.Sprintf("%s caught by the server, of %s", screen.Count(w.Duplicates), screen.Plural(w.Duplicates+w.IDsAdded, "publish", "publishes"))
}

func deadText(t inspect.Topic) string {
	switch {
	case t.DeadLetters < 0:
		return "the user may not ask"
	case t.DeadLetters == 0:
		return "none"
	}
	return fmt.Sprintf("%s in %s; see `idemctl dead list %s`", screen.Count(t.DeadLetters), screen.Printable(t.DeadLetterTopic), quote(t.Topic))
}

func groupTables(p *screen.Page, groups []inspect.Group) {
	if len(groups) == 0 {
		return
	}
	var rows, consumers [][]string
	for _, g := range groups {
		oldest := ""
		if g.OldestPending != "" {
			oldest = screen.Duration(g.OldestAge)
		}
		rows = append(rows, []string{screen.Printable(g.Name), screen.Known(g.Lag), screen.Count(g.Pending), oldest, screen.Count(g.HandedBack), screen.Count(len(g.Consumers))})
		for _, c := range g.Consumers {
			consumers = append(consumers, []string{screen.Printable(g.Name), screen.Printable(c.Name), screen.Count(c.Pending), ago(c.Idle)})
		}
	}
	p.Gap()
	p.Table([]string{"GROUP", "LAG", "PENDING", "OLDEST", "HANDED BACK", "CONSUMERS"}, rows, 1, 2, 3, 4, 5)
	if len(consumers) > 0 {
		p.Gap()
		p.Table([]string{"GROUP", "CONSUMER", "PENDING", "LAST SEEN"}, consumers, 2)
	}
}

func ago(d time.Duration) string {
	if d < 0 {
		return "?"
	}
	return screen.Duration(d) + " ago"
}
