package publisher

import (
	"errors"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/internal/layout"
)

// Defaults of [Window].
const (
	DefaultWindowDuration = time.Hour
	DefaultWindowEntries  = 100_000
)

// Window is how long and how much a topic remembers: a key published again
// within Duration, while fewer than Entries other keys came after it, is not
// added again.
type Window struct {
	// Duration is a multiple of a second, up to 24 h; 0 means one hour. In Latch
	// mode it is the time to live of the latch, and only a multiple of a
	// millisecond.
	Duration time.Duration
	// Entries is the number of keys, up to about 1,200,000; 0 means 100,000, in mode
	// IDMPAuto 10,000, which is the most there. One
	// producer ID holds 10,000 on the server, so more are spread over several:
	// "payment-service", "payment-service/1", … Latch mode has no such bound.
	Entries int
}

func (w Window) withDefaults(fallback Window) Window {
	if w.Duration == 0 {
		w.Duration = fallback.Duration
	}
	if w.Entries == 0 {
		w.Entries = fallback.Entries
	}
	return w
}

func (w Window) validate(mode Mode) error {
	var faults []error
	if w.Duration < 0 || w.Duration > layout.MaxDuration {
		faults = append(faults, fmt.Errorf("Window.Duration %v is outside 1 s to %v", w.Duration, layout.MaxDuration))
	} else if unit := w.unit(mode); w.Duration%unit != 0 || w.Duration < unit {
		faults = append(faults, fmt.Errorf("Window.Duration %v is not a positive multiple of %v", w.Duration, unit))
	}
	if w.Entries < 0 {
		faults = append(faults, fmt.Errorf("Window.Entries %d is negative", w.Entries))
	} else if mode == ModeIDMPAuto && w.Entries > layout.MaxShardEntries {
		faults = append(faults, fmt.Errorf("Window.Entries %d: mode idmpauto has no key to spread, and holds %d", w.Entries, layout.MaxShardEntries))
	} else if layout.ShardsFor(w.Entries) == 0 {
		faults = append(faults, fmt.Errorf("Window.Entries %d needs more than %d producer IDs of %d entries each",
			w.Entries, layout.MaxShards, layout.MaxShardEntries))
	}
	return errors.Join(faults...)
}

func (w Window) unit(mode Mode) time.Duration {
	if mode == ModeLatch {
		return time.Millisecond
	}
	return time.Second
}
