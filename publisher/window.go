package publisher

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"sort"
	"strconv"
	"time"
)

// What the server takes for one producer ID (Redis 8.6: XCFGSET).
const (
	maxShardEntries = 10_000
	maxDuration     = 86_400 * time.Second
)

// Defaults of [Window].
const (
	DefaultDuration = time.Hour
	DefaultEntries  = 100_000
)

// maxShards bounds the producer IDs that one logical producer may take: XINFO,
// which every transaction asks, grows with them.
const maxShards = 128

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
	if w.Duration < 0 || w.Duration > maxDuration {
		faults = append(faults, fmt.Errorf("Window.Duration %v is outside 1 s to %v", w.Duration, maxDuration))
	} else if unit := w.unit(mode); w.Duration%unit != 0 || w.Duration < unit {
		faults = append(faults, fmt.Errorf("Window.Duration %v is not a positive multiple of %v", w.Duration, unit))
	}
	if w.Entries < 0 {
		faults = append(faults, fmt.Errorf("Window.Entries %d is negative", w.Entries))
	} else if mode == IDMPAuto && w.Entries > maxShardEntries {
		faults = append(faults, fmt.Errorf("Window.Entries %d: mode idmpauto has no key to spread, and holds %d", w.Entries, maxShardEntries))
	} else if shardsFor(w.Entries) == 0 {
		faults = append(faults, fmt.Errorf("Window.Entries %d needs more than %d producer IDs of %d entries each",
			w.Entries, maxShards, maxShardEntries))
	}
	return errors.Join(faults...)
}

func (w Window) unit(mode Mode) time.Duration {
	if mode == Latch {
		return time.Millisecond
	}
	return time.Second
}

// shardsFor returns how many producer IDs hold the newest entries keys, 0 when
// more than maxShards would be needed.
func shardsFor(entries int) int {
	for n := 1; n <= maxShards; n++ {
		if fits(entries, n, maxShardEntries) {
			return n
		}
	}
	return 0
}

// capacity is the inverse of shardsFor: how many keys n producer IDs of maxSize
// entries hold for sure.
func capacity(n, maxSize int) int {
	return sort.Search(n*maxSize, func(entries int) bool { return !fits(entries+1, n, maxSize) })
}

// fits tells whether n producer IDs of maxSize entries hold the newest entries
// keys. A hash fills shards unevenly, and each evicts on its own: room for six
// standard deviations (of a Poisson count) leaves the fullest one below its
// limit.
func fits(entries, n, maxSize int) bool {
	if n <= 1 {
		return entries <= maxSize
	}
	mean := float64(entries) / float64(n)
	return mean+6*math.Sqrt(mean) <= float64(maxSize)
}

// shardOf spreads keys over n shards. Hash version 1: the first eight bytes of
// the key's SHA-256, big-endian, modulo n. It stands in the layout record, since
// every instance must find the same shard.
func shardOf(key string, n int) int {
	if n <= 1 {
		return 0
	}
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(n))
}

// shardID names a shard's producer ID; shard 0 is the bare one. The slash is why
// a ProducerID must not have one.
func shardID(producer string, shard int) string {
	if shard == 0 {
		return producer
	}
	return producer + "/" + strconv.Itoa(shard)
}
