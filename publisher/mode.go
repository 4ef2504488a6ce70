package publisher

import (
	"time"

	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
)

// Mode says what makes a second publish of one key harmless.
type Mode uint8

const (
	// ModeAuto is [ModeIDMP] where the topic's server is Redis 8.6.2 or newer, else
	// [ModeLatch]. It decides once for a topic: the layout record keeps the decision,
	// so a server upgrade does not split one key over two mechanisms.
	ModeAuto Mode = iota
	// ModeIDMP sends XADD IDMP with a producer ID and an idempotent ID (Redis 8.6.2
	// or newer).
	ModeIDMP
	// ModeIDMPAuto sends XADD IDMPAUTO: the server hashes the entry. What is sent is
	// made a function of the content: the payload and [Config.ContentMetadata].
	ModeIDMPAuto
	// ModeLatch appends by a script that keeps a key beside the stream for
	// [Window.Duration] (Redis 7.0 or newer, Valkey). The key holds the entry ID
	// and is written after the entry, so it never claims what is not there.
	ModeLatch
)

// The numbers are those of the package that keeps the layout record.
var _ = [1]struct{}{}[appender.Mode(ModeLatch)-appender.Latch]

// String is the name that stands in the layout record and in logs.
func (m Mode) String() string { return appender.Mode(m).String() }

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

func layoutOf(l appender.Layout) Layout {
	return Layout{Mode: Mode(l.Mode), Shards: l.Shards, Duration: l.Duration}
}
