package testserver_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestCluster(t *testing.T) {
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel() // it mostly waits
			c := testserver.StartCluster(t, kind)
			t.Run("spreads keys", func(t *testing.T) { spreadsKeys(t, c) })
			t.Run("holds a slot between two nodes", func(t *testing.T) { holdsASlot(t, c) })
			t.Run("migrates a slot under traffic", func(t *testing.T) { migratesUnderTraffic(t, c) })
		})
	}
}

func spreadsKeys(t *testing.T, c *testserver.Cluster) {
	client := c.ClusterClient()
	for i := range 30 {
		if err := client.Set(t.Context(), fmt.Sprint("key", i), i, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes() {
		if size := n.Client().DBSize(t.Context()).Val(); size == 0 || size == 30 {
			t.Errorf("%s holds %d of 30 keys", n.Addr(), size)
		}
	}
}

func holdsASlot(t *testing.T, c *testserver.Cluster) {
	ctx := t.Context()
	client := c.ClusterClient()
	const moved, stays, stream = "{held}:moved", "{held}:stays", "{held}:stream"
	for _, k := range []string{moved, stays} {
		if err := client.Set(ctx, k, k, 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	add := []any{"XADD", stream, "*", "f", "v"}
	if c.Nodes()[0].Kind().HasIDMP() {
		add = []any{"XADD", stream, "IDMP", "producer", "id", "*", "f", "v"}
	}
	id, err := client.Do(ctx, add...).Text()
	if err != nil {
		t.Fatal(err)
	}
	slot, from, err := c.Slot(ctx, moved)
	if err != nil {
		t.Fatal(err)
	}
	to := (from + 1) % len(c.Nodes())
	m, err := c.BeginMigration(ctx, slot, from, to)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Move(ctx, moved); err != nil {
		t.Fatal(err)
	}
	if keys, err := m.Keys(ctx); len(keys) != 2 || err != nil {
		t.Errorf("left: %v, %v", keys, err)
	}
	source := c.Nodes()[from].Client()
	if err := source.Get(ctx, moved).Err(); !redis.HasErrorPrefix(err, "ASK") {
		t.Errorf("the key that moved: %v", err)
	}
	if err := source.Get(ctx, stays).Err(); err != nil {
		t.Errorf("the key that stays: %v", err)
	}
	if err := source.MGet(ctx, moved, stays).Err(); !redis.HasErrorPrefix(err, "TRYAGAIN") {
		t.Errorf("both keys: %v", err)
	}
	for _, k := range []string{moved, stays} {
		if v, err := client.Get(ctx, k).Result(); v != k || err != nil {
			t.Errorf("%s by a cluster client: %q, %v", k, v, err)
		}
	}
	if err := m.Finish(ctx); err != nil {
		t.Fatal(err)
	}
	if _, owner, err := c.Slot(ctx, moved); owner != to || err != nil {
		t.Errorf("served by %d, %v; want %d", owner, err, to)
	}
	if err := source.Get(ctx, stays).Err(); !redis.HasErrorPrefix(err, "MOVED") {
		t.Errorf("the old node: %v", err)
	}
	if v, err := c.Nodes()[to].Client().MGet(ctx, moved, stays).Result(); fmt.Sprint(v) != fmt.Sprint([]string{moved, stays}) || err != nil {
		t.Errorf("the new node: %v, %v", v, err)
	}
	if c.Nodes()[0].Kind().HasIDMP() {
		// Idempotent ids travel with their stream.
		if again, err := client.Do(ctx, add...).Text(); again != id || err != nil {
			t.Errorf("was %s, again %s, %v", id, again, err)
		}
	}
}

func migratesUnderTraffic(t *testing.T, c *testserver.Cluster) {
	client := c.ClusterClient()
	const key = "{busy}:n"
	slot, from, err := c.Slot(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	type result struct {
		n   int64
		err error
	}
	running, ended := make(chan struct{}), make(chan result)
	stopTraffic := make(chan struct{})
	go func() {
		var r result
		for r.err == nil {
			select {
			case <-stopTraffic:
				ended <- r
				return
			default:
			}
			if r.err = client.Incr(ctx, key).Err(); r.err == nil {
				r.n++
			}
			if r.n == 1 {
				close(running)
			}
		}
		ended <- r
	}()
	<-running
	at := from
	for range 6 {
		to := (at + 1) % len(c.Nodes())
		if err := c.MigrateSlot(ctx, slot, at, to); err != nil {
			t.Error(err)
			break
		}
		at = to
	}
	close(stopTraffic)
	r := <-ended
	if r.err != nil {
		t.Errorf("a client saw %v", r.err)
	}
	got, err := client.Get(ctx, key).Int64()
	if err != nil || got != r.n {
		t.Errorf("%d of %d are there, %v", got, r.n, err)
	}
	if _, owner, err := c.Slot(ctx, key); owner != at || err != nil {
		t.Errorf("served by %d, %v; want %d", owner, err, at)
	}
}
