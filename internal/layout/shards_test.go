package layout

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"
)

func TestShards(t *testing.T) {
	for entries, want := range map[int]int{0: 1, 1: 1, 10_000: 1, 10_001: 2, 100_000: 11, 1_000_000: 107, 10_000_000: 0} {
		if got := ShardsFor(entries); got != want {
			t.Errorf("%d entries: %d shards, want %d", entries, got, want)
		}
	}
}

// Capacity is what the shards were chosen for, or more, and no more than they hold.
func TestCapacityCoversTheWindow(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		entries := rapid.IntRange(1, 1_000_000).Draw(t, "entries")
		n := ShardsFor(entries)
		c := Capacity(n, MaxShardEntries)
		if c < entries {
			t.Fatalf("%d entries, capacity %d", entries, c)
		}
		if ShardsFor(c) != n || ShardsFor(c+1) == n {
			t.Fatalf("capacity %d of %d shards is not the most they hold", c, n)
		}
	})
	for n, want := range map[int]int{1: 10_000, 2: 18_835, 11: 103_595} { // the last one stands in docs/operations.md
		if c := Capacity(n, MaxShardEntries); c != want {
			t.Errorf("capacity of %d shards is %d, want %d", n, c, want)
		}
	}
}

// The hash spreads real keys so that none of the shards is overfull.
func TestNoShardIsOverfull(t *testing.T) {
	for _, entries := range []int{20_000, 100_000, 500_000} {
		n := ShardsFor(entries)
		counts := make([]int, n)
		for i := range entries {
			counts[ShardOf(fmt.Sprintf("pay:%d:p%d", i/2, i), n)]++
		}
		for shard, count := range counts {
			if count > MaxShardEntries {
				t.Errorf("%d entries: shard %d of %d has %d", entries, shard, n, count)
			}
		}
	}
}

// Golden: every instance, of every version, must find the same shard.
func TestShardOfIsStable(t *testing.T) {
	got := fmt.Sprint(ShardOf("pay:1001:p9001", 11), ShardOf("pay:1001:p9002", 11), ShardOf("", 11), ShardOf("é", 128), ShardOf("x", 1))
	if want := goldenShards; got != want {
		t.Errorf("shards %s, want %s", got, want)
	}
	if ShardID("payment-service", 0) != "payment-service" || ShardID("payment-service", 10) != "payment-service/10" {
		t.Error("names of shards")
	}
}

const goldenShards = "0 9 3 83 0"
