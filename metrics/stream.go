package metrics

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// streamDescs are all that a Streams exports.
var streamDescs []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("idempotent_"+name, help, labels, nil)
	streamDescs = append(streamDescs, d)
	return d
}

var (
	descCollect    = describe("streams_collect_seconds", "How long the last scrape of the streams took.")
	descUp         = describe("stream_up", "1 where the server answered for this topic, else 0.", "topic")
	descLength     = describe("stream_length", "Entries in the stream.", "topic")
	descAdded      = describe("stream_entries_added_total", "Entries that were ever added to the stream.", "topic")
	descLastEntry  = describe("stream_last_entry_timestamp_seconds", "When the newest entry was added, by its ID.", "topic")
	descGroups     = describe("stream_groups", "Consumer groups of the stream.", "topic")
	descDead       = describe("stream_dead_letters", "Entries in the topic's stream of dead letters.", "topic")
	descWindow     = describe("stream_window_seconds", "How long the server remembers an ID (Redis 8.6).", "topic")
	descWindowSize = describe("stream_window_max_ids", "How many IDs the server remembers at most for one producer ID (Redis 8.6).", "topic")
	descProducers  = describe("stream_producer_ids", "Producer IDs that the server remembers (Redis 8.6).", "topic")
	descIDs        = describe("stream_ids", "IDs that the server remembers, of all producer IDs (Redis 8.6).", "topic")
	descIDsAdded   = describe("stream_ids_added_total", "IDs that were ever added (Redis 8.6).", "topic")
	descDuplicates = describe("stream_duplicates_total", "Duplicates that the server has refused, of all producers (Redis 8.6).", "topic")
	descLag        = describe("stream_group_lag", "Entries that the group has not read yet, where the server knows it.", "topic", "group")
	descPending    = describe("stream_group_pending", "Entries that were read and are not acknowledged.", "topic", "group")
	descOldest     = describe("stream_group_oldest_pending_seconds", "Age of the oldest pending entry, by its ID and the local clock; 0 where there is none.", "topic", "group")
	descConsumers  = describe("stream_group_consumers", "Consumers of the group.", "topic", "group")
)

// stream is what is known of a topic.
type stream struct {
	topic  string
	up     bool
	exists bool
	info   *redis.XInfoStream
	dead   int64 // -1: not known
	groups []streamGroup
	total  int // of groups
}

type streamGroup struct {
	redis.XInfoGroup
	oldest time.Duration
}

// ask reads all topics in two round trips: the groups must be known to ask for what they have
// pending.
func (s *Streams) ask(ctx context.Context) []*stream {
	client, done := preflight.Bounded(s.cfg.Client)
	defer done()
	list := s.none()
	infos := make([]*redis.XInfoStreamCmd, len(list))
	groups := make([]*redis.XInfoGroupsCmd, len(list))
	dead := make([]*redis.IntCmd, len(list))
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error { // each command has its own error
		for i, st := range list {
			infos[i], groups[i] = p.XInfoStream(ctx, st.topic), p.XInfoGroups(ctx, st.topic)
			dead[i] = p.XLen(ctx, subscriber.DeadLetterTopic(st.topic))
		}
		return nil
	})
	if infos[0] == nil { // the client returned without having run the function
		return list
	}
	for i, st := range list {
		st.dead = -1
		if n, err := dead[i].Result(); err == nil {
			st.dead = n
		}
		info, err := infos[i].Result()
		st.up = err == nil && info != nil || server.IsMissingKey(err)
		if err != nil || info == nil {
			continue
		}
		st.exists, st.info = true, info
		st.setGroups(groups[i].Val(), s.cfg.MaxGroups)
	}
	askPending(ctx, client, list)
	return list
}

// setGroups keeps the first ones by name. A label value must be UTF-8, and two groups must
// not become one by that.
func (st *stream) setGroups(all []redis.XInfoGroup, limit int) {
	st.total = len(all)
	slices.SortFunc(all, func(a, b redis.XInfoGroup) int { return cmp.Compare(a.Name, b.Name) })
	seen := make(map[string]bool)
	for _, g := range all {
		label := strings.ToValidUTF8(g.Name, "\uFFFD")
		if len(st.groups) < limit && !seen[label] {
			seen[label] = true
			st.groups = append(st.groups, streamGroup{XInfoGroup: g})
		}
	}
}

// askPending adds how long the oldest pending entries have waited since they were added: their
// idle time would tell when a consumer has last renewed them.
func askPending(ctx context.Context, client redis.UniversalClient, list []*stream) {
	type question struct {
		group *streamGroup
		cmd   *redis.XPendingCmd
	}
	var asked []question
	_, _ = client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for _, st := range list {
			for i := range st.groups {
				if g := &st.groups[i]; g.Pending > 0 {
					asked = append(asked, question{g, p.XPending(ctx, st.topic, g.Name)})
				}
			}
		}
		return nil
	})
	for _, q := range asked {
		q.group.oldest = -1
		pending, err := q.cmd.Result()
		if err != nil {
			continue
		}
		if id, err := streamid.Parse(pending.Lower); err == nil {
			q.group.oldest = since(id)
		} else if pending.Count == 0 { // acknowledged meanwhile
			q.group.oldest = 0
		}
	}
}

func since(id streamid.ID) time.Duration {
	return max(0, time.Since(time.UnixMilli(int64(id.MS)))) //nolint:gosec // milliseconds of a time
}

// export sends what is known.
func (st *stream) export(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, append([]string{st.topic}, labels...)...)
	}
	counter := func(d *prometheus.Desc, v int64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), st.topic)
	}
	gauge(descUp, float64(index(st.up)))
	if !st.up {
		return
	}
	if st.dead >= 0 {
		gauge(descDead, float64(st.dead))
	}
	if !st.exists {
		gauge(descLength, 0)
		gauge(descGroups, 0)
		return
	}
	gauge(descLength, float64(st.info.Length))
	gauge(descGroups, float64(st.total))
	counter(descAdded, st.info.EntriesAdded)
	if id, err := streamid.Parse(st.info.LastGeneratedID); err == nil && !id.IsZero() {
		gauge(descLastEntry, float64(id.MS)/1000)
	}
	if st.info.IDMPMaxSize > 0 { // else the server has no IDMP
		gauge(descWindow, float64(st.info.IDMPDuration))
		gauge(descWindowSize, float64(st.info.IDMPMaxSize))
		gauge(descProducers, float64(st.info.PIDsTracked))
		gauge(descIDs, float64(st.info.IIDsTracked))
		counter(descIDsAdded, st.info.IIDsAdded)
		counter(descDuplicates, st.info.IIDsDuplicates)
	}
	for _, g := range st.groups {
		label := strings.ToValidUTF8(g.Name, "\uFFFD")
		if g.Lag >= 0 {
			gauge(descLag, float64(g.Lag), label)
		}
		gauge(descPending, float64(g.Pending), label)
		gauge(descConsumers, float64(g.Consumers), label)
		if g.oldest >= 0 {
			gauge(descOldest, g.oldest.Seconds(), label)
		}
	}
}

func index(second bool) int {
	if second {
		return 1
	}
	return 0
}
