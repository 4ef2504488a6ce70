// Package appender appends entries to one stream, each at most once. It keeps the layout
// record beside the stream, sets stream and window up, appends by IDMP or by the latch
// script, reads the originals of duplicates, and notices ids that the server forgot too
// early. It knows no calls and tries nothing twice: that is package batch's business.
package appender

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Config is common to the streams of a publisher; its fields are those of
// publisher.Config.
type Config struct {
	Client         redis.UniversalClient
	ProducerID     string
	Mode           Mode
	KeepUnacked    bool
	MinReplicas    int
	ReplicaTimeout time.Duration
	// Decode reads an entry back.
	Decode func(topic, id string, values map[string]any) (*message.Message, error)
}

// Settings are those of one stream.
type Settings struct {
	Window      Window
	MaxAge      time.Duration // trims older entries, 0: none
	MaxLen      int64         // trims to about so many entries, 0: none
	Fingerprint eventkey.Fingerprint
}

// Observer receives what becomes known of a stream.
type Observer interface {
	// NoClock means that ages are by the local clock, since the server did not say its time.
	NoClock(err error)
	// LayoutDiffers is called once for each layout that is not the wanted one.
	LayoutDiffers(have, wanted Layout)
	// WindowKnown is called once for each window; differs means that the stream has other
	// settings than wanted and keeps them.
	WindowKnown(layout Layout, effective Window, server server.Info, differs bool)
	// Overflowed receives how many ids were forgotten too early since it was last called.
	Overflowed(effective Window, evicted int64)
}

// Stream is one stream with its layout record.
type Stream struct {
	config   *Config
	settings Settings
	name     string
	key      any // name, as an argument of commands
	observer Observer

	mu      sync.Mutex
	current *Session // nil while the stream is not set up

	settingUp      chan struct{} // a semaphore: one caller sets up
	reportedWindow Window        // to the observer; guarded by settingUp
	reportedLayout Layout

	overflow overflow
	newest   atomic.Uint64 // when the newest known entry was added, by its ID in milliseconds
	large    atomic.Bool   // entries are large: don't have XINFO return some
	noEval   atomic.Bool   // the user may not run scripts
}

// New makes a Stream. It sends nothing.
func New(config *Config, name string, settings Settings, observer Observer) *Stream {
	return &Stream{config: config, settings: settings, name: name, key: name, observer: observer, settingUp: make(chan struct{}, 1)}
}

// Ready implements [batch.Stream]. One caller sets up, the others wait.
func (s *Stream) Ready(ctx context.Context) (batch.Session, error) {
	st, err := s.ready(ctx)
	if err != nil {
		return nil, s.Explain(err)
	}
	return st, nil
}

func (s *Stream) ready(ctx context.Context) (*Session, error) {
	if st := s.known(); st != nil {
		return st, nil
	}
	select {
	case s.settingUp <- struct{}{}:
		defer func() { <-s.settingUp }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the set-up of topic %q: %w", s.name, ctx.Err())
	}
	if st := s.known(); st != nil {
		return st, nil
	}
	st, err := s.setUp(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up topic %q: %w", s.name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = st
	return st, nil
}

// known is the session that was set up, nil if there is none.
func (s *Stream) known() *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// forget makes the next append set up again, unless another one has done so.
func (s *Stream) forget(st *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == st {
		s.current = nil
	}
}

// report hands layout and window to the observer where they are news. The caller sets up.
func (s *Stream) report(st *Session) {
	wanted := s.Wanted(server.Info{IDMP: st.layout.Mode != Latch})
	// A difference of the window alone is reported with the window.
	if (st.layout.Mode != wanted.Mode || st.layout.Shards != wanted.Shards) && st.layout != s.reportedLayout {
		s.reportedLayout = st.layout
		s.observer.LayoutDiffers(st.layout, wanted)
	}
	if st.window != s.reportedWindow {
		s.reportedWindow = st.window
		differs := st.layout.Mode != Latch && (st.duration != seconds(s.settings.Window.Duration) || st.maxSize != layout.MaxShardEntries)
		s.observer.WindowKnown(st.layout, st.window, st.server, differs)
	}
}

// FlushOverflow reports what the pause between two reports of an overflow has held back.
func (s *Stream) FlushOverflow() {
	if evicted := s.overflow.takeRest(); evicted > 0 {
		var effective Window
		if st := s.known(); st != nil {
			effective = st.window
		}
		s.observer.Overflowed(effective, evicted)
	}
}

// Window is how long the stream remembers, as far as it is known.
func (s *Stream) Window() time.Duration {
	if st := s.known(); st != nil {
		return max(st.window.Duration, s.settings.Window.Duration)
	}
	return s.settings.Window.Duration
}

// Wanted is the layout that is made where there is none.
func (s *Stream) Wanted(info server.Info) Layout {
	mode := s.config.Mode
	if mode == Auto {
		if mode = Latch; info.IDMP {
			mode = IDMP
		}
	}
	l := Layout{Mode: mode, Shards: 1}
	if mode == IDMP {
		l.Shards = layout.ShardsFor(s.settings.Window.Entries)
	}
	if mode != Latch {
		l.Duration = s.settings.Window.Duration
	}
	return l
}

// Usable returns why a layout can't be obeyed on a server, nil if it can.
func (s *Stream) Usable(l Layout, info server.Info) error {
	if l.Mode != Latch && !info.IDMP {
		return fmt.Errorf("%w: mode %v needs Redis 8.6.2 or newer, this is %v; use mode auto or latch for a new topic", ErrModeUnsupported, l.Mode, info)
	}
	if l.Mode == IDMPAuto && s.config.Mode != IDMPAuto {
		return fmt.Errorf("%w: it was made for mode idmpauto, where the server compares contents; this publisher is in mode %v and sends more than the content", ErrLayout, s.config.Mode)
	}
	return nil
}

// recordID takes in the ID of an entry.
func (s *Stream) recordID(id streamid.ID) {
	for known := s.newest.Load(); id.MS > known; known = s.newest.Load() {
		if s.newest.CompareAndSwap(known, id.MS) {
			return
		}
	}
}

func seconds(d time.Duration) int64 { return int64(d / time.Second) }
