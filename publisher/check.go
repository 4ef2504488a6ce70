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

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
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
	// Exists tells whether the stream does, Made whether the layout record does.
	// Without it, Layout and Window are what the first publish will make.
	Exists, Made bool
	Layout       Layout
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

// Lasts is how long the window of the topic lasts at a steady rate of new keys: its
// duration, or less when it is full before.
func (r TopicReport) Lasts(perSecond float64) time.Duration {
	if r.Window.Entries == 0 || perSecond <= 0 {
		return r.Window.Duration
	}
	full := time.Duration(float64(r.Window.Entries) / perSecond * float64(time.Second))
	return min(r.Window.Duration, full)
}

// Lasts is that of the topic whose window lasts the shortest, each topic getting
// the whole rate; 0 without topics.
func (r Report) Lasts(perSecond float64) time.Duration {
	var shortest time.Duration
	for i, t := range r.Topics {
		if d := t.Lasts(perSecond); i == 0 || d < shortest {
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
	e := p.engine
	if p.closed.Load() {
		return Report{}, ErrClosed
	}
	client, done := preflight.Bounded(e.client)
	defer done()
	e = newEngine(e.cfg, e.logger)
	e.client = client
	defer e.stop()
	r := Report{MaxmemoryPolicy: "unknown", Persistence: "unknown", Connections: flights*len(topics) + 1}
	var faults []error
	for _, name := range topics {
		if err := checkTopic(name); err != nil {
			faults = append(faults, err)
			continue
		}
		t := newTopic(e, name)
		tr, info, err := t.check(ctx, &r)
		if err != nil {
			faults = append(faults, fmt.Errorf("topic %q: %w", name, err))
		}
		r.Topics = append(r.Topics, tr)
		if r.Server == "" && (err == nil || info.Name != "") {
			r.Server = info.String()
		}
	}
	if looks := ofOneInstance(e.cfg.ProducerID); looks != "" {
		r.warn("The ProducerID %q %s: %v. Name the service instead.", e.cfg.ProducerID, looks, errOfOneInstance)
	}
	key := "idempotent"
	if len(topics) > 0 {
		key = topics[0]
	}
	if err := e.checkServer(ctx, key, &r); err != nil {
		faults = append(faults, err)
	}
	preflight.Pool(e.cfg.Client, r.Connections, fmt.Sprintf("%d topics need up to", len(topics)), r.warn)
	return r, errors.Join(faults...)
}

func (r *Report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

func (t *topic) check(ctx context.Context, r *Report) (TopicReport, server.Info, error) {
	tr := TopicReport{Topic: t.name}
	info, err := server.Probe(ctx, t.engine.client, rediskey.LayoutKey(t.name))
	mode := t.engine.cfg.Mode // as far as it is known to a user who may not even ask the server what it can do
	switch {
	case err == nil:
		tr.Layout = t.wanted(info)
		mode = tr.Layout.Mode
	case !server.IsRefusedByACL(err):
		return tr, info, err
	}
	missing, askErr := t.missingRights(ctx, mode, r)
	if tr.Missing = missing; askErr != nil {
		return tr, info, askErr
	}
	if len(tr.Missing) > 0 {
		if err == nil {
			err = t.usable(tr.Layout, info)
		}
		return tr, info, errors.Join(t.lacks(tr.Missing), err)
	}
	if err != nil {
		return tr, info, t.explain(err)
	}
	record, err := t.engine.client.HGetAll(ctx, rediskey.LayoutKey(t.name)).Result()
	if err != nil {
		return tr, info, t.explain(err)
	}
	layout, err := parseLayout(record)
	if err != nil {
		return tr, info, err
	}
	if tr.Made = layout.Mode != Auto; tr.Made {
		if wanted := t.wanted(server.Info{IDMP: layout.Mode != Latch}); wanted.Mode != layout.Mode || wanted.Shards != layout.Shards {
			r.warn("Topic %q has the layout %v with %d shards, the configuration asks for %v with %d; the layout is obeyed.",
				t.name, layout.Mode, layout.Shards, wanted.Mode, wanted.Shards)
		}
		tr.Layout = layout
	}
	stream, exists, err := server.ReadStreamInfo(ctx, t.engine.client, t.name)
	if err != nil {
		return tr, info, t.explain(err)
	}
	if tr.Exists = exists; exists {
		t.checkTraps(ctx, stream, tr.Layout, r)
	}
	t.checkWindow(&tr, stream, r)
	if err := t.checkTrimming(ctx, &tr, r); err != nil {
		return tr, info, err
	}
	return tr, info, t.usable(tr.Layout, info)
}

// checkWindow works out the window as the next set-up would leave it.
func (t *topic) checkWindow(tr *TopicReport, stream server.StreamInfo, r *Report) {
	duration, maxSize := int64(tr.Layout.Duration/time.Second), int64(maxShardEntries)
	if stream.IIDsTracked > 0 {
		duration, maxSize = stream.IDMPDuration, stream.IDMPMaxSize
	}
	if tr.Layout.Mode != Latch && (duration != int64(t.cfg.Window.Duration/time.Second) || maxSize != maxShardEntries) {
		r.warn("Topic %q has a window of %d s and %d ids a producer, the configuration asks for %v; it stays, since changing "+
			"it would forget %d keys.", t.name, duration, maxSize, t.cfg.Window.Duration, stream.IIDsTracked)
	}
	tr.Window = effectiveWindow(tr.Layout, duration, maxSize, t.cfg.Window)
	if tr.Layout.Mode == Latch {
		tr.Memory = int64(t.cfg.Window.Entries) * latchBytes
	} else {
		tr.Memory = int64(tr.Window.Entries) * idmpBytes
		if tr.Window.Entries < t.cfg.Window.Entries {
			r.warn("Topic %q remembers %d keys, the configuration asks for %d.", t.name, tr.Window.Entries, t.cfg.Window.Entries)
		}
	}
}

// idleGroup is how long no consumer of a group must have been seen for Check to
// call the group forgotten.
const idleGroup = 24 * time.Hour

func (t *topic) checkTrimming(ctx context.Context, tr *TopicReport, r *Report) error {
	if !t.engine.cfg.KeepUnacked || (t.maxlen <= 0 && t.cfg.MaxAge <= 0) {
		return nil
	}
	probe := server.NewCommand(ctx, 1, "xadd", rediskey.LayoutKey(t.name), "nomkstream", "acked", "maxlen", "~", 1, "*", "probe", "probe")
	if err := t.engine.client.Process(ctx, probe); err != nil && !errors.Is(err, redis.Nil) && !isWrongType(err) {
		return fmt.Errorf("%w: KeepUnacked needs Redis 8.2 or newer: %w", ErrModeUnsupported, err)
	}
	if !tr.Exists {
		r.warn("Topic %q has no consumer group yet: KeepUnacked protects nothing until there is one.", t.name)
		return nil
	}
	groups, err := t.engine.client.XInfoGroups(ctx, t.name).Result()
	if err != nil {
		return err
	}
	if len(groups) == 0 {
		r.warn("Topic %q has no consumer group: KeepUnacked protects nothing until there is one.", t.name)
	}
	for _, g := range groups {
		consumers, err := t.engine.client.XInfoConsumers(ctx, t.name, g.Name).Result()
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
func (e *engine) checkServer(ctx context.Context, key string, r *Report) error {
	r.MaxmemoryPolicy = cmp.Or(preflight.Eviction(ctx, e.client, key,
		"streams, layouts and latches, and with them what keeps events from being added twice", r.warn), r.MaxmemoryPolicy)
	e.checkPersistence(ctx, key, r)
	if e.cfg.MinReplicas == 0 {
		return nil
	}
	info, err := server.InfoSection(ctx, e.client, key, "replication")
	if err != nil {
		return nil //nolint:nilerr // a user who may not ask learns it from the first publish
	}
	if n, err := strconv.Atoi(info["connected_slaves"]); err == nil && n < e.cfg.MinReplicas {
		return fmt.Errorf("%w: MinReplicas is %d, and %d replicas are connected", ErrNotReplicated, e.cfg.MinReplicas, n)
	}
	return nil
}

func (e *engine) checkPersistence(ctx context.Context, key string, r *Report) {
	persistence, err := server.InfoSection(ctx, e.client, key, "persistence")
	if err != nil || persistence["aof_enabled"] == "" {
		r.warn("The server's persistence is unknown: %s.", server.WhyNoInfo(err))
		return
	}
	var kinds []string
	if persistence["aof_enabled"] == "1" {
		kinds = append(kinds, "append-only file")
	}
	if node, err := server.Node(ctx, e.client, key); err == nil {
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
