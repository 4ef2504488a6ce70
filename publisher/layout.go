package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/slot"
)

// hashVersion names the function that spreads keys over shards; see shardOf.
const hashVersion = 1

var errWindowDiffers = errors.New("window is not the configured one")

// Layout says how the keys of a topic are remembered. It stands in a hash beside
// the stream, is made together with it, and every instance obeys it whatever its
// own configuration would choose. So a rolling deploy or a server upgrade can't
// split one key over two mechanisms or two shards.
type Layout struct {
	// Mode is IDMP, IDMPAuto or Latch.
	Mode Mode
	// Shards is the number of producer IDs for each logical producer.
	Shards int
	// Duration is the window that the stream gets when it is made; 0 in mode Latch,
	// where each publisher's own is the time to live of its latches.
	Duration time.Duration
}

func (l Layout) fields() []any {
	return []any{
		"mode", l.Mode.String(), "shards", strconv.Itoa(l.Shards), "hash", strconv.Itoa(hashVersion),
		"duration", strconv.FormatInt(int64(l.Duration/time.Second), 10),
	}
}

// parseLayout reads the record; it is zero where there is none.
func parseLayout(fields map[string]string) (Layout, error) {
	if fields["mode"] == "" {
		return Layout{}, nil
	}
	mode, err := parseMode(fields["mode"])
	if err != nil {
		return Layout{}, fmt.Errorf("%w: %w", ErrLayout, err)
	}
	shards, err := strconv.Atoi(fields["shards"])
	if err != nil || shards < 1 {
		return Layout{}, fmt.Errorf("%w: %q shards", ErrLayout, fields["shards"])
	}
	if fields["hash"] != strconv.Itoa(hashVersion) {
		return Layout{}, fmt.Errorf("%w: hash version %q; this library knows %d", ErrLayout, fields["hash"], hashVersion)
	}
	seconds, err := strconv.ParseInt(fields["duration"], 10, 64)
	if err != nil || seconds < 0 || seconds > int64(maxDuration/time.Second) || (seconds == 0) != (mode == Latch) {
		return Layout{}, fmt.Errorf("%w: a duration of %q seconds", ErrLayout, fields["duration"])
	}
	return Layout{Mode: mode, Shards: shards, Duration: time.Duration(seconds) * time.Second}, nil
}

// state is what is known of a topic that was set up. It does not change.
type state struct {
	layout Layout
	window Window // effective
	// What XINFO said of the window at set-up: another value later means that
	// somebody has made the stream anew.
	duration, maxSize int64
	server            server.Info
	clock             server.Clock
	producerID        string   // Config's
	shardIDs          []string // its producer IDs on the wire
}

// remembersNone tells that a stream tracks no ids, or only such as have expired: the
// server takes those out when it next adds one.
func (s *state) remembersNone(stream server.StreamInfo) bool {
	return stream.IIDsTracked == 0 || s.age(stream.Last) > time.Duration(stream.IDMPDuration)*time.Second
}

// asLaidOut tells that the stream has the window of the layout record. It may have
// another one that was found with ids, and stays until those have expired.
func (s *state) asLaidOut() bool {
	return s.duration == int64(s.layout.Duration/time.Second) && s.maxSize == maxShardEntries
}

// shardID is the producer ID on the wire.
func (s *state) shardID(producer string, shard int) string {
	if producer == s.producerID {
		return s.shardIDs[shard]
	}
	return shardID(producer, shard)
}

// setupState is the part of a topic that knows whether it was set up.
type setupState struct {
	mu      sync.Mutex
	current *state
	// What hooks and log were last told of.
	told       Window
	toldLayout Layout
}

// forget makes the next batch set up again, unless another one has done so.
func (s *setupState) forget(st *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == st {
		s.current = nil
	}
}

// ready sets the topic up if it is not. One flight does it, the others wait.
func (t *topic) ready() (*state, error) {
	t.setup.mu.Lock()
	defer t.setup.mu.Unlock()
	if t.setup.current == nil {
		st, err := t.setUp(t.engine.ctx)
		if err != nil {
			return nil, fmt.Errorf("set up topic %q: %w", t.name, err)
		}
		t.setup.current = st
	}
	return t.setup.current, nil
}

// watchStream is how many times the set-up insists on an untouched stream. After
// that only the layout record is watched, or other producers that keep adding to an
// existing stream would keep it from being set up.
const watchStream = 6

// maxSetUps bounds one try of the set-up; the batch that waits for it has a deadline.
const maxSetUps = 50

// setUp makes stream, settings and layout in one step. Two instances that start at
// once both watch the layout record; the second one's transaction fails, and it
// then finds, and obeys, what the first has made.
func (t *topic) setUp(ctx context.Context) (*state, error) {
	client, layoutKey := t.engine.client, slot.LayoutKey(t.name)
	info, err := server.Probe(ctx, client, layoutKey)
	if err != nil {
		return nil, err
	}
	clock, err := server.ReadClock(ctx, client, layoutKey)
	if err != nil {
		t.engine.logger.Debug("No server time, ages are by the local clock", watermill.LogFields{"topic": t.name, "error": err.Error()})
	}
	for try := 1; try <= maxSetUps; try++ {
		keys := []string{layoutKey, t.name}
		if try > watchStream {
			keys = keys[:1]
		}
		st := &state{server: info, clock: clock}
		err := client.Watch(ctx, func(tx *redis.Tx) error { return t.setUpOnce(ctx, tx, st) }, keys...)
		if errors.Is(err, redis.TxFailedErr) {
			if !t.engine.sleep(time.Duration(rand.Int64N(int64(5 * time.Millisecond)))) {
				return nil, ErrClosed
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		st.producerID = t.engine.cfg.ProducerID
		for shard := range st.layout.Shards {
			st.shardIDs = append(st.shardIDs, shardID(st.producerID, shard))
		}
		t.tellLayout(st.layout)
		t.tellWindow(st)
		return st, nil
	}
	return nil, errContended
}

// setUpOnce reads what is there and completes it. The stream gets the window of the
// layout record, whoever sets it up; but existing settings of a stream that tracks
// ids stay, since another value would make the server forget those ids.
func (t *topic) setUpOnce(ctx context.Context, tx *redis.Tx, st *state) error {
	layoutKey := slot.LayoutKey(t.name)
	fields, err := tx.HGetAll(ctx, layoutKey).Result()
	if err != nil {
		return err
	}
	layout, err := parseLayout(fields)
	if err != nil {
		return err
	}
	missing := layout.Mode == Auto
	if missing {
		layout = t.wanted(st.server)
	}
	if err := t.usable(layout, st.server); err != nil {
		return err
	}
	st.layout = layout

	stream, exists, err := server.ReadStreamInfo(ctx, tx, t.name)
	if err != nil {
		return err
	}
	st.duration, st.maxSize = stream.IDMPDuration, stream.IDMPMaxSize
	t.saw(stream.Last)
	var cmds []redis.Cmder
	if !exists {
		// An empty stream without a dummy entry: a group made and destroyed.
		const group = "idempotent-setup"
		cmds = append(cmds,
			server.NewCommand(ctx, 2, "xgroup", "create", t.name, group, "$", "mkstream"),
			server.NewCommand(ctx, 2, "xgroup", "destroy", t.name, group))
		if !missing {
			// The stream was deleted: its latches are void, see latch.lua.
			cmds = append(cmds, server.NewCommand(ctx, 1, "hincrby", layoutKey, "generation", 1))
		}
	}
	duration := int64(layout.Duration / time.Second)
	if layout.Mode != Latch && st.remembersNone(stream) && (stream.IDMPDuration != duration || stream.IDMPMaxSize != maxShardEntries) {
		cmds = append(cmds, t.configure(ctx, layout))
		st.duration, st.maxSize = duration, maxShardEntries
	}
	st.window = effectiveWindow(layout, st.duration, st.maxSize, t.cfg.Window)
	if len(cmds) == 0 && !missing {
		return nil
	}
	// The record is written even where it is there: that makes a set-up that
	// goes on at the same time start over.
	cmds = append(cmds, server.NewCommand(ctx, 1, append([]any{"hset", layoutKey}, layout.fields()...)...))
	_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	return server.FirstError(err, cmds)
}

// configure sets the window of the layout record.
func (t *topic) configure(ctx context.Context, l Layout) server.Command {
	return server.NewCommand(ctx, 1, "xcfgset", t.name, "idmp-duration", int64(l.Duration/time.Second), "idmp-maxsize", maxShardEntries)
}

func queue(ctx context.Context, pipe redis.Pipeliner, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if err := pipe.Process(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}

// wanted is the layout that this publisher makes where there is none.
func (t *topic) wanted(info server.Info) Layout {
	mode := t.engine.cfg.Mode
	if mode == Auto {
		if mode = Latch; info.IDMP {
			mode = IDMP
		}
	}
	l := Layout{Mode: mode, Shards: 1}
	if mode == IDMP {
		l.Shards = shardsFor(t.cfg.Window.Entries)
	}
	if mode != Latch {
		l.Duration = t.cfg.Window.Duration
	}
	return l
}

// usable tells whether this publisher can obey the layout on this server.
func (t *topic) usable(l Layout, info server.Info) error {
	if l.Mode != Latch && !info.IDMP {
		return fmt.Errorf("%w: mode %v needs Redis 8.6.2 or newer, this is %v; use mode auto or latch for a new topic", ErrModeUnsupported, l.Mode, info)
	}
	if l.Mode == IDMPAuto && t.engine.cfg.Mode != IDMPAuto {
		return fmt.Errorf("%w: it was made for mode idmpauto, where the server compares contents; this publisher is in mode %v and sends more than the content", ErrLayout, t.engine.cfg.Mode)
	}
	return nil
}

// effectiveWindow is what the server does, given its settings and the layout.
func effectiveWindow(l Layout, duration, maxSize int64, wanted Window) Window {
	if l.Mode == Latch {
		return Window{Duration: wanted.Duration} // as many as there is memory for
	}
	return Window{Duration: time.Duration(duration) * time.Second, Entries: capacity(l.Shards, int(maxSize))}
}

// tellLayout reports a layout that differs from the configured one, once. The caller
// holds t.setup.mu.
func (t *topic) tellLayout(have Layout) {
	wanted := t.wanted(server.Info{IDMP: have.Mode != Latch})
	if have.Mode == wanted.Mode && have.Shards == wanted.Shards || have == t.setup.toldLayout {
		return // a difference of the window alone is tellWindow's
	}
	t.setup.toldLayout = have
	t.engine.logger.Info("Topic has another layout than configured; obeying it", watermill.LogFields{
		"topic": t.name, "mode": have.Mode.String(), "shards": have.Shards,
		"wanted_mode": wanted.Mode.String(), "wanted_shards": wanted.Shards,
	})
	t.engine.onLayout(LayoutEvent{Topic: t.name, Layout: have, Wanted: wanted})
}

// tellWindow reports the effective window once, and when it has changed. The caller
// holds t.setup.mu.
func (t *topic) tellWindow(st *state) {
	if t.setup.told == st.window {
		return
	}
	t.setup.told = st.window
	ev := WindowEvent{Topic: t.name, Kind: WindowEffective, Wanted: t.cfg.Window, Effective: st.window}
	fields := watermill.LogFields{
		"topic": t.name, "mode": st.layout.Mode.String(), "shards": st.layout.Shards, "server": st.server.String(),
		"window": st.window.Duration.String(),
	}
	if st.window.Entries > 0 {
		fields["window_entries"] = st.window.Entries
	}
	t.engine.logger.Info("Publishing idempotently", fields)
	t.engine.onWindow(ev)
	if st.layout.Mode != Latch && (st.duration != int64(t.cfg.Window.Duration/time.Second) || st.maxSize != maxShardEntries) {
		t.engine.logger.Error("The window stays as it is, since changing it would forget the keys that are remembered", errWindowDiffers,
			fields.Add(watermill.LogFields{"wanted_window": t.cfg.Window.Duration.String(), "wanted_entries": t.cfg.Window.Entries}))
		ev.Kind = WindowDiffers
		t.engine.onWindow(ev)
	}
}
