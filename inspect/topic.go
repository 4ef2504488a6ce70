package inspect

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/span"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher"
)

// handbackConsumer is the consumer, known to operators, that has what subscriptions of package
// subscriber gave back.
const handbackConsumer = "handback"

// Topic looks at one topic. A stream that is not there, or that has no layout record, is no
// error; a key of another type is ErrWrongType. XINFO STREAM has the first and the last entry
// in it; nothing else is read of entries.
func (i *Inspector) Topic(ctx context.Context, topic string) (Topic, error) {
	if topic == "" {
		return Topic{}, errors.New("inspect: the topic is empty")
	}
	look := looking{inspector: i, Topic: Topic{Topic: topic, DeadLetterTopic: rediskey.DeadLetter(topic), DeadLetters: -1}}
	look.Stream.Memory = -1
	if err := look.ask(ctx); err != nil {
		return look.Topic, explain(topic, err)
	}
	if look.Exists {
		if err := look.askGroups(ctx); err != nil {
			return look.Topic, explain(topic, err)
		}
	}
	if look.Layout.Mode == publisher.ModeLatch {
		look.askLatches(ctx)
	}
	look.note()
	return look.Topic, nil
}

// looking is a look at a topic under way.
type looking struct {
	inspector *Inspector
	Topic
	clock server.Clock
}

func (l *looking) say(format string, args ...any) {
	l.Notes = append(l.Notes, fmt.Sprintf(format, args...))
}

// ask asks all that does not depend on the groups, in one round trip.
func (l *looking) ask(ctx context.Context) error {
	topic := l.Topic.Topic
	client := l.inspector.client
	record := redis.NewMapStringStringCmd(ctx, "hgetall", rediskey.LayoutKey(topic))
	info := server.NewStreamInfoCommand(ctx, topic)
	groups := server.NewCommand(ctx, 2, "xinfo", "groups", topic)
	dead := redis.NewIntCmd(ctx, "xlen", rediskey.DeadLetter(topic))
	memory := redis.NewIntCmd(ctx, "memory", "usage", topic)
	memory.SetFirstKeyPos(2)
	server.ProcessAll(ctx, client, []redis.Cmder{info, record, groups, dead, memory})

	stream, err := info.Info()
	switch {
	case server.IsMissingKey(err):
	case err != nil:
		return err
	default:
		l.Exists = true
		l.setStream(stream)
		if err := groups.Err(); err != nil {
			return err
		}
		l.setGroups(groups.Val())
	}
	l.setLayout(record)
	l.setWindow(stream)
	if l.DeadLetters = known(dead); l.DeadLetters < 0 {
		l.say("The number of dead letters is not known: %v.", dead.Err())
	}
	if memory.Err() == nil {
		l.Stream.Memory = memory.Val()
	} else if !errors.Is(memory.Err(), redis.Nil) {
		l.say("The memory that the stream takes is not known: %v.", memory.Err())
	}
	l.Server = preflight.Server(ctx, client, topic)
	if l.clock, err = server.ReadClock(ctx, client, topic); err != nil {
		l.say("Ages go by the local clock, since the server's is not known: %v.", err)
	}
	return nil
}

func (l *looking) setStream(info server.StreamInfo) {
	s := &l.Stream
	s.Length, s.EntriesAdded = info.Length, info.Added
	s.Deleted = max(info.Added-info.Length, 0)
	s.FirstID, s.LastID, s.GeneratedID = info.First, info.Newest, info.Last.String()
	s.FirstAt, s.LastAt = timeOf(info.First), timeOf(info.Newest)
}

// timeOf is when an entry was added, by its ID.
func timeOf(id string) time.Time {
	parsed, err := streamid.Parse(id)
	if err != nil {
		return time.Time{}
	}
	return time.UnixMilli(int64(parsed.MS)).UTC() //nolint:gosec // milliseconds of a time
}

func (l *looking) setLayout(record *redis.MapStringStringCmd) {
	if l.LayoutErr = record.Err(); l.LayoutErr != nil {
		return
	}
	l.HasLayout = len(record.Val()) > 0
	found, err := layout.Parse(record.Val())
	l.Layout, l.LayoutErr = layoutOf(found), err
}

func (l *looking) setWindow(info server.StreamInfo) {
	w := &l.Window
	// In mode Latch what the server has is for other programs that add with IDMP.
	if info.IDMPMaxSize == 0 || l.Layout.Mode == publisher.ModeLatch {
		return
	}
	w.InServer = true
	w.Duration, w.MaxIDs = time.Duration(info.IDMPDuration)*time.Second, info.IDMPMaxSize
	w.ProducerIDs, w.IDs, w.IDsAdded, w.Duplicates = info.PIDsTracked, info.IIDsTracked, info.IIDsAdded, info.Duplicates
	if shards := l.Layout.Shards; shards > 0 && l.Layout.Mode != publisher.ModeLatch {
		w.Entries = layout.Capacity(shards, int(info.IDMPMaxSize))
	}
	if room := w.MaxIDs * max(w.ProducerIDs, int64(l.Layout.Shards)); room > 0 {
		w.Fill = float64(w.IDs) / float64(room)
	}
}

func (l *looking) setGroups(reply any) {
	for _, r := range recordsOf(reply) {
		l.Groups = append(l.Groups, Group{
			Name: r.text("name"), Lag: r.number("lag"), Pending: max(r.number("pending"), 0),
			LastDelivered: r.text("last-delivered-id"), EntriesRead: r.number("entries-read"),
		})
	}
	slices.SortFunc(l.Groups, func(a, b Group) int { return strings.Compare(a.Name, b.Name) })
}

// askGroups asks what the groups have pending, and about their consumers.
func (l *looking) askGroups(ctx context.Context) error {
	type question struct {
		pending   *redis.XPendingCmd
		consumers server.Command
	}
	questions := make([]question, len(l.Groups))
	var cmds []redis.Cmder
	for i, g := range l.Groups {
		questions[i] = question{redis.NewXPendingCmd(ctx, "xpending", l.Topic.Topic, g.Name),
			server.NewCommand(ctx, 2, "xinfo", "consumers", l.Topic.Topic, g.Name)}
		cmds = append(cmds, questions[i].pending, questions[i].consumers)
	}
	if len(cmds) == 0 {
		return nil
	}
	server.ProcessAll(ctx, l.inspector.client, cmds)
	for i, q := range questions {
		g := &l.Groups[i]
		for _, cmd := range []redis.Cmder{q.pending, q.consumers} {
			// NOGROUP: it was destroyed in between.
			if err := cmd.Err(); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "NOGROUP") {
				return fmt.Errorf("group %q: %w", g.Name, err)
			}
		}
		if p := q.pending.Val(); p != nil {
			g.Pending = p.Count
			if id, err := streamid.Parse(p.Lower); err == nil && p.Count > 0 {
				g.OldestPending = p.Lower
				g.OldestAge = l.age(id)
			}
			g.HandedBack = p.Consumers[handbackConsumer]
		}
		for _, r := range recordsOf(q.consumers.Val()) {
			if r.text("name") == handbackConsumer {
				continue // nobody: see HandedBack
			}
			g.Consumers = append(g.Consumers, Consumer{
				Name: r.text("name"), Pending: max(r.number("pending"), 0), Idle: r.millis("idle"), Inactive: r.millis("inactive"),
			})
		}
		slices.SortFunc(g.Consumers, func(a, b Consumer) int { return strings.Compare(a.Name, b.Name) })
	}
	return nil
}

// age is how long ago an entry was added, by the server's clock.
func (l *looking) age(id streamid.ID) time.Duration {
	return max(l.clock.Now().Sub(time.UnixMilli(int64(id.MS))), 0) //nolint:gosec // milliseconds of a time
}

// forgotten is how long no consumer of a group must have been seen for a note.
const forgotten = 24 * time.Hour

// note says what an operator should look at.
func (l *looking) note() {
	switch {
	case !l.Exists && l.HasLayout:
		l.say("The stream is not there: it was deleted. The next publish makes it anew.")
	case !l.Exists:
		l.say("There is no stream of this name.")
	case !l.HasLayout && l.LayoutErr == nil:
		l.say("No publisher of this library has set the topic up: nothing keeps an event from being added twice.")
	}
	if l.LayoutErr != nil {
		l.say("The layout record is not known: %v.", l.LayoutErr)
	}
	l.noteWindow()
	for _, g := range l.Groups {
		seen := slices.ContainsFunc(g.Consumers, func(c Consumer) bool { return c.Idle >= 0 && c.Idle < forgotten })
		switch {
		case seen || g.Pending == 0 && g.Lag == 0:
		case len(g.Consumers) == 0: // which says nothing of how long that has been so
			l.say("Group %q has entries to read or to settle, and no consumer now: no subscription is running (one that ends takes its consumer along).", g.Name)
		default:
			l.say("Group %q has entries to read or to settle, and none of its %d consumers has asked for any in the last %s.", g.Name, len(g.Consumers), span.Text(forgotten))
		}
	}
}

func (l *looking) noteWindow() {
	guarded := l.Layout.Mode == publisher.ModeIDMP || l.Layout.Mode == publisher.ModeIDMPAuto
	w := &l.Window
	if guarded && l.Exists && !w.InServer {
		l.say("The layout record says %v, and the server has no idempotent IDs: publishing fails.", l.Layout.Mode)
	}
	if guarded && w.InServer {
		if l.Layout.Duration != w.Duration || w.MaxIDs != layout.MaxShardEntries {
			l.say("The window in force is %s and %d IDs for each producer ID; the layout record says %s and %d.", span.Text(w.Duration), w.MaxIDs, span.Text(l.Layout.Duration), layout.MaxShardEntries)
		}
		if w.ProducerIDs > int64(l.Layout.Shards) {
			l.say("The server remembers IDs of %d producer IDs, and one logical producer has %d: others publish to the topic, or instances of one service "+
				"have ProducerIDs of their own, of which each adds an event once.", w.ProducerIDs, l.Layout.Shards)
		}
		l.say("Redis tells how many IDs it remembers of all producer IDs together, not of each.")
	}
}
