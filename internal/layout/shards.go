package layout

import (
	"crypto/sha256"
	"encoding/binary"
	"math"
	"sort"
	"strconv"
	"time"
)

// What the server takes for one producer ID (Redis 8.6: XCFGSET).
const (
	MaxShardEntries = 10_000
	MaxDuration     = 86_400 * time.Second
)

// MaxShards bounds the producer IDs that one logical producer may take: XINFO,
// which every transaction asks, grows with them.
const MaxShards = 128

// HashVersion names the function that spreads keys over shards; see ShardOf.
const HashVersion = 1

// Window is how long and how many keys are remembered; see publisher.Window.
type Window struct {
	Duration time.Duration
	Entries  int
}

// EffectiveWindow is what the server does, given its settings and the layout.
func EffectiveWindow(l Layout, duration, maxSize int64, wanted Window) Window {
	if l.Mode == Latch {
		return Window{Duration: wanted.Duration} // as many as there is memory for
	}
	return Window{Duration: time.Duration(duration) * time.Second, Entries: Capacity(l.Shards, int(maxSize))}
}

// ShardsFor returns how many producer IDs hold the newest entries keys, 0 when
// more than MaxShards would be needed.
func ShardsFor(entries int) int {
	for n := 1; n <= MaxShards; n++ {
		if fits(entries, n, MaxShardEntries) {
			return n
		}
	}
	return 0
}

// Capacity is the inverse of ShardsFor: how many keys n producer IDs of maxSize
// entries hold for sure.
func Capacity(n, maxSize int) int {
	return sort.Search(n*maxSize, func(entries int) bool { return !fits(entries+1, n, maxSize) })
}

// fits reports whether n producer IDs of maxSize entries hold the newest entries
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

// ShardOf spreads keys over n shards. Hash version 1: the first eight bytes of
// the key's SHA-256, big-endian, modulo n. It stands in the layout record, since
// every instance must find the same shard.
func ShardOf(key string, n int) int {
	if n <= 1 {
		return 0
	}
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint64(sum[:8]) % uint64(n))
}

// ShardID names a shard's producer ID; shard 0 is the bare one. The slash is why
// a ProducerID must not have one.
func ShardID(producer string, shard int) string {
	if shard == 0 {
		return producer
	}
	return producer + "/" + strconv.Itoa(shard)
}
