package publisher

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/server"
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

// check refuses a layout that none of ours can be: nothing is sent under it.
func (l Layout) check() error {
	if l.Mode == Auto || int(l.Mode) >= len(modeNames) || l.Shards < 1 {
		return fmt.Errorf("%w: mode %v with %d producer IDs", ErrLayout, l.Mode, l.Shards)
	}
	return nil
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
// has t.setup.busy.
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
// has t.setup.busy.
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
