package publisher

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/span"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Report is what [Publisher.Check] found. It writes nothing.
type Report struct {
	// Server is product and version, "redis 8.6.3".
	Server string
	// Topics has one report for each topic asked for.
	Topics []TopicReport
	// MaxmemoryPolicy is the eviction policy; anything but "noeviction" may evict
	// streams and latches. Persistence is what survives a restart: "append-only
	// file", "snapshots", both or "none". Both are "unknown" where the user may not
	// ask.
	MaxmemoryPolicy, Persistence string
	// Connections is how many the client's pool should have for these topics.
	Connections int
	// Warnings are complete sentences about what an operator should look at.
	Warnings []string
}

// TopicReport is what Check found about one topic.
type TopicReport struct {
	Topic string
	// Exists reports whether the stream does, HasLayout whether the layout record does.
	// Without it, Layout and Window are what the first publish will make.
	Exists, HasLayout bool
	Layout            Layout
	// Window is the effective one; Entries is 0 in mode Latch, which remembers as
	// many keys as there is memory for.
	Window Window
	// Memory estimates the bytes that remembering takes when the window is full, in
	// mode Latch for the wanted number of entries.
	Memory int64
	// Missing names what the user has no right to: commands, such as "XGROUP CREATE", and
	// patterns of keys, such as "~orders".
	Missing []string
}

// What remembering one key takes on the server, in bytes, with keys of about 20
// bytes; measured by TestMemoryOfKeys.
const (
	idmpBytes  = 120
	latchBytes = 240
)

// TimeToOverflow is how long the window of the topic lasts at a steady rate of new keys: its
// duration, or less when it is full before.
func (r TopicReport) TimeToOverflow(perSecond float64) time.Duration {
	if r.Window.Entries == 0 || perSecond <= 0 {
		return r.Window.Duration
	}
	full := time.Duration(float64(r.Window.Entries) / perSecond * float64(time.Second))
	return min(r.Window.Duration, full)
}

// TimeToOverflow is that of the topic whose window lasts the shortest, each topic getting
// the whole rate; 0 without topics.
func (r Report) TimeToOverflow(perSecond float64) time.Duration {
	var shortest time.Duration
	for i, t := range r.Topics {
		if d := t.TimeToOverflow(perSecond); i == 0 || d < shortest {
			shortest = d
		}
	}
	return shortest
}

// Check looks at server and topics before there is traffic. The error says why it
// could not look, or that a publish would fail; it is joined from all topics, and
// the report is as complete as it could be. It ends when ctx does, whether or not the
// client heeds contexts, if that is a *redis.Client or *redis.ClusterClient: it asks over
// connections of its own.
func (p *Publisher) Check(ctx context.Context, topics ...string) (Report, error) {
	if p.closed.Load() {
		return Report{}, ErrClosed
	}
	cfg := &p.engine.cfg
	client, done := preflight.Bounded(cfg.Client)
	defer done()
	r := Report{MaxmemoryPolicy: "unknown", Persistence: "unknown", Connections: batch.Senders*len(topics) + 1}
	c := checker{cfg: cfg, streams: cfg.streams(), client: client, report: &r}
	c.streams.Client = client
	var faults []error
	for _, name := range topics {
		if err := checkTopic(name); err != nil {
			faults = append(faults, err)
			continue
		}
		tr, info, err := c.topic(name).check(ctx)
		if err != nil {
			faults = append(faults, fmt.Errorf("topic %q: %w", name, err))
		}
		r.Topics = append(r.Topics, tr)
		if r.Server == "" && (err == nil || info.Name != "") {
			r.Server = info.String()
		}
	}
	if looks := ofOneInstance(cfg.ProducerID); looks != "" {
		r.warn("The ProducerID %q %s: %v. Name the service instead.", cfg.ProducerID, looks, errOfOneInstance)
	}
	key := "idempotent"
	if len(topics) > 0 {
		key = topics[0]
	}
	if err := c.checkServer(ctx, key); err != nil {
		faults = append(faults, err)
	}
	preflight.Pool(cfg.Client, r.Connections, fmt.Sprintf("%d topics need up to", len(topics)), r.warn)
	return r, errors.Join(faults...)
}

func (r *Report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

// checker fills a report.
type checker struct {
	cfg     *Config
	streams appender.Config
	client  redis.UniversalClient
	report  *Report
}

// topicChecker looks at one topic.
type topicChecker struct {
	*checker
	name     string
	settings TopicConfig
	maxlen   int64
	stream   *appender.Stream
}

func (c *checker) topic(name string) *topicChecker {
	settings, maxlen := c.cfg.forTopic(name)
	// Nothing is set up or appended, so there is nothing to observe.
	stream := appender.New(&c.streams, name, settings.ofStream(maxlen), nil)
	return &topicChecker{checker: c, name: name, settings: settings, maxlen: maxlen, stream: stream}
}

func (t *topicChecker) check(ctx context.Context) (TopicReport, server.Info, error) {
	r := t.report
	tr := TopicReport{Topic: t.name}
	info, err := server.Probe(ctx, t.client, rediskey.LayoutKey(t.name))
	var chosen appender.Layout
	mode := t.streams.Mode // as far as it is known to a user who may not even ask the server what it can do
	switch {
	case err == nil:
		chosen = t.stream.Wanted(info)
		tr.Layout, mode = layoutOf(chosen), chosen.Mode
	case !server.IsRefusedByACL(err):
		return tr, info, err
	}
	missing, askErr := t.stream.MissingRights(ctx, mode, r.warn)
	if tr.Missing = missing; askErr != nil {
		return tr, info, askErr
	}
	if len(tr.Missing) > 0 {
		if err == nil {
			err = t.stream.Usable(chosen, info)
		}
		return tr, info, errors.Join(t.stream.Lacks(tr.Missing), err)
	}
	if err != nil {
		return tr, info, t.stream.Explain(err)
	}
	found, err := appender.ReadLayout(ctx, t.client, t.name)
	if err != nil {
		return tr, info, t.stream.Explain(err)
	}
	if tr.HasLayout = found.Mode != appender.Auto; tr.HasLayout {
		if wanted := t.stream.Wanted(server.Info{IDMP: found.Mode != appender.Latch}); wanted.Mode != found.Mode || wanted.Shards != found.Shards {
			r.warn("Topic %q has the layout %v with %d shards, the configuration asks for %v with %d; the layout is obeyed.",
				t.name, found.Mode, found.Shards, wanted.Mode, wanted.Shards)
		}
		chosen = found
		tr.Layout = layoutOf(chosen)
	}
	stream, exists, err := server.ReadStreamInfo(ctx, t.client, t.name)
	if err != nil {
		return tr, info, t.stream.Explain(err)
	}
	if tr.Exists = exists; exists {
		t.checkTraps(ctx, stream, tr.Layout)
	}
	t.checkWindow(&tr, chosen, stream)
	if err := t.checkTrimming(ctx, tr.Exists); err != nil {
		return tr, info, err
	}
	return tr, info, t.stream.Usable(chosen, info)
}

// checkWindow works out the window as the next set-up would leave it.
func (t *topicChecker) checkWindow(tr *TopicReport, chosen appender.Layout, stream server.StreamInfo) {
	r, wanted := t.report, t.settings.Window
	duration, maxSize := int64(chosen.Duration/time.Second), int64(layout.MaxShardEntries)
	if stream.IIDsTracked > 0 {
		duration, maxSize = stream.IDMPDuration, stream.IDMPMaxSize
	}
	if chosen.Mode != appender.Latch && (duration != int64(wanted.Duration/time.Second) || maxSize != layout.MaxShardEntries) {
		r.warn("Topic %q has a window of %s and %d IDs for each producer ID, the configuration asks for %s and %d; it stays, since changing "+
			"it would forget %d keys.", t.name, span.Text(time.Duration(duration)*time.Second), maxSize, span.Text(wanted.Duration), layout.MaxShardEntries, stream.IIDsTracked)
	}
	tr.Window = Window(layout.EffectiveWindow(chosen, duration, maxSize, layout.Window(wanted)))
	if chosen.Mode == appender.Latch {
		tr.Memory = int64(wanted.Entries) * latchBytes
		return
	}
	tr.Memory = int64(tr.Window.Entries) * idmpBytes
	if tr.Window.Entries < wanted.Entries {
		r.warn("Topic %q remembers %d keys, the configuration asks for %d.", t.name, tr.Window.Entries, wanted.Entries)
	}
}

// idleGroup is how long no consumer of a group must have been seen for Check to
// call the group forgotten.
const idleGroup = 24 * time.Hour

func (t *topicChecker) checkTrimming(ctx context.Context, exists bool) error {
	r := t.report
	if !t.cfg.KeepUnacked || t.maxlen == 0 && t.settings.MaxAge == 0 {
		return nil
	}
	probe := server.NewCommand(ctx, 1, "xadd", rediskey.LayoutKey(t.name), "nomkstream", "acked", "maxlen", "~", 1, "*", "probe", "probe")
	if err := t.client.Process(ctx, probe); err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
		return fmt.Errorf("%w: KeepUnacked needs Redis 8.2 or newer: %w", ErrModeUnsupported, err)
	}
	if !exists {
		r.warn("Topic %q has no consumer group yet: KeepUnacked protects nothing until there is one.", t.name)
		return nil
	}
	groups, err := t.client.XInfoGroups(ctx, t.name).Result()
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		r.warn("Topic %q has no consumer group: KeepUnacked protects nothing until there is one.", t.name)
	}
	for _, g := range groups {
		consumers, err := t.client.XInfoConsumers(ctx, t.name, g.Name).Result()
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(consumers, func(c redis.XInfoConsumer) bool { return c.Idle < idleGroup }) {
			r.warn("Group %q of topic %q has no consumer that was seen in the last %v: with KeepUnacked, what it does not "+
				"acknowledge is never trimmed. Destroy the group if it is forgotten.", g.Name, t.name, idleGroup)
		}
	}
	return nil
}

// checkServer looks at what endangers the whole server's memory of keys. The error is
// that too few replicas are connected.
func (c *checker) checkServer(ctx context.Context, key string) error {
	r := c.report
	r.MaxmemoryPolicy = cmp.Or(preflight.Eviction(ctx, c.client, key,
		"streams, layouts and latches, and with them what keeps events from being added twice", r.warn), r.MaxmemoryPolicy)
	c.checkPersistence(ctx, key)
	if c.cfg.MinReplicas == 0 {
		return nil
	}
	info, err := server.InfoSection(ctx, c.client, key, "replication")
	if err != nil {
		return nil //nolint:nilerr // a user who may not ask learns it from the first publish
	}
	if n, err := strconv.Atoi(info["connected_slaves"]); err == nil && n < c.cfg.MinReplicas {
		return fmt.Errorf("%w: MinReplicas is %d, and %d replicas are connected", ErrNotReplicated, c.cfg.MinReplicas, n)
	}
	return nil
}

func (c *checker) checkPersistence(ctx context.Context, key string) {
	r := c.report
	persistence, err := server.InfoSection(ctx, c.client, key, "persistence")
	if err != nil || persistence["aof_enabled"] == "" {
		r.warn("The server's persistence is unknown: %s.", server.WhyNoInfo(err))
		return
	}
	var kinds []string
	if persistence["aof_enabled"] == "1" {
		kinds = append(kinds, "append-only file")
	}
	if node, err := server.Node(ctx, c.client, key); err == nil {
		if save, err := node.ConfigGet(ctx, "save").Result(); err == nil && save["save"] != "" {
			kinds = append(kinds, "snapshots")
		}
	}
	r.Persistence = strings.Join(kinds, " and ")
	switch r.Persistence {
	case "":
		r.Persistence = "none"
		r.warn("The server has no append-only file, nor snapshots as far as the user may see: a restart loses everything, " +
			"events and the memory of their keys alike.")
	case "snapshots":
		r.warn("The server has snapshots and no append-only file: a restart loses what came since the last one, events and " +
			"the memory of their keys alike.")
	}
}
