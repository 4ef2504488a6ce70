package testserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/internal/port"
)

const (
	masters = 3
	slots   = 16384
)

// Cluster is a cluster of three masters without replicas.
type Cluster struct {
	t     testing.TB
	nodes []*Server
}

// StartCluster starts one and returns when every node serves all slots.
func StartCluster(t testing.TB, kind Kind, opts ...Option) *Cluster {
	t.Helper()
	c := &Cluster{t: t}
	buses := make([]int, masters)
	for i := range masters {
		bus, release, err := port.Reserve()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		buses[i] = bus
		base := func(p int) []setting {
			return append(plain(p), []setting{
				{"cluster-enabled", "yes"}, {"cluster-port", strconv.Itoa(bus)},
				{"cluster-config-file", "nodes.conf"}, {"cluster-node-timeout", "2000"},
			}...)
		}
		c.nodes = append(c.nodes, startNode(t, kind, recipe{base: base}, opts))
	}
	for i, n := range c.nodes {
		first, last := i*slots/masters, (i+1)*slots/masters-1
		// Epochs of their own spare them the settling of a conflict.
		c.must(n, "CLUSTER", "SET-CONFIG-EPOCH", i+1)
		c.must(n, "CLUSTER", "ADDSLOTSRANGE", first, last)
		for j := range i {
			host, p, _ := net.SplitHostPort(c.nodes[j].Addr())
			c.must(n, "CLUSTER", "MEET", host, p, buses[j])
		}
	}
	Eventually(t, startWithin, c.isReady)
	return c
}

func (c *Cluster) isReady() error {
	for _, n := range c.nodes {
		info, err := n.do("CLUSTER", "INFO")
		if err != nil {
			return err
		}
		text := fmt.Sprint(info)
		for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384", "cluster_known_nodes:3", "cluster_size:3"} {
			if !strings.Contains(text, want) {
				return fmt.Errorf("%s: no %s in\n%s", n.Addr(), want, text)
			}
		}
	}
	return nil
}

func (c *Cluster) must(n *Server, args ...any) {
	c.t.Helper()
	if _, err := n.do(args...); err != nil {
		c.t.Fatalf("%v: %v", args, err)
	}
}

// Nodes returns the masters; methods that take a node take its place here.
func (c *Cluster) Nodes() []*Server { return c.nodes }

// Addrs are the addresses of all nodes.
func (c *Cluster) Addrs() []string {
	addrs := make([]string, len(c.nodes))
	for i, n := range c.nodes {
		addrs[i] = n.Addr()
	}
	return addrs
}

// ClusterClient returns a new client, closed with the test.
func (c *Cluster) ClusterClient(change ...func(*redis.ClusterOptions)) *redis.ClusterClient {
	options := &redis.ClusterOptions{Addrs: c.Addrs()}
	for _, f := range change {
		f(options)
	}
	client := redis.NewClusterClient(options)
	c.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Slot returns the slot of a key and the node that serves it.
func (c *Cluster) Slot(ctx context.Context, key string) (slot, node int, err error) {
	client, done := c.direct(0)
	defer done()
	n, err := client.ClusterKeySlot(ctx, key).Result()
	if err != nil {
		return 0, 0, err
	}
	shards, err := client.ClusterShards(ctx).Result()
	if err != nil {
		return 0, 0, err
	}
	for _, shard := range shards {
		for _, r := range shard.Slots {
			if n < r.Start || n > r.End || len(shard.Nodes) == 0 {
				continue
			}
			for i, server := range c.nodes {
				if server.port == int(shard.Nodes[0].Port) {
					return int(n), i, nil
				}
			}
		}
	}
	return 0, 0, fmt.Errorf("nobody serves slot %d", n)
}

// MigrateSlot moves a slot with all its keys from one node to another.
func (c *Cluster) MigrateSlot(ctx context.Context, slot, from, to int) error {
	m, err := c.BeginMigration(ctx, slot, from, to)
	if err != nil {
		return err
	}
	return m.Finish(ctx)
}

// Migration is a slot on its way. Until Finish the old node answers for keys that it
// still has and sends clients with ASK to the new one for others; a command or script
// with several keys of which some have moved gets TRYAGAIN.
type Migration struct {
	c              *Cluster
	slot, from, to int
}

// BeginMigration sets a slot migrating, and importing at its new node. No key moves yet.
func (c *Cluster) BeginMigration(ctx context.Context, slot, from, to int) (*Migration, error) {
	if from == to {
		return nil, errors.New("a slot migrates from one node to another")
	}
	source, sourceDone := c.direct(from)
	defer sourceDone()
	target, targetDone := c.direct(to)
	defer targetDone()
	sourceID, err := source.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return nil, err
	}
	targetID, err := target.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return nil, err
	}
	// Importing first: the other way round a redirected client would be sent back.
	if err := target.Do(ctx, "CLUSTER", "SETSLOT", slot, "IMPORTING", sourceID).Err(); err != nil {
		return nil, fmt.Errorf("importing slot %d: %w", slot, err)
	}
	if err := source.Do(ctx, "CLUSTER", "SETSLOT", slot, "MIGRATING", targetID).Err(); err != nil {
		return nil, fmt.Errorf("migrating slot %d: %w", slot, err)
	}
	return &Migration{c: c, slot: slot, from: from, to: to}, nil
}

// Keys returns the keys of the slot that have not moved yet, up to a thousand.
func (m *Migration) Keys(ctx context.Context) ([]string, error) {
	source, done := m.c.direct(m.from)
	defer done()
	return source.ClusterGetKeysInSlot(ctx, m.slot, 1000).Result()
}

// Move moves these keys.
func (m *Migration) Move(ctx context.Context, keys ...string) error {
	if len(keys) == 0 {
		return nil
	}
	source, done := m.c.direct(m.from)
	defer done()
	host, p, err := net.SplitHostPort(m.c.nodes[m.to].Addr())
	if err != nil {
		return err
	}
	args := []any{"MIGRATE", host, p, "", 0, 5000, "KEYS"}
	for _, k := range keys {
		args = append(args, k)
	}
	return source.Do(ctx, args...).Err()
}

// Finish moves what is left and gives the slot to its new node.
func (m *Migration) Finish(ctx context.Context) error {
	for {
		keys, err := m.Keys(ctx)
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		if err := m.Move(ctx, keys...); err != nil {
			return err
		}
	}
	target, done := m.c.direct(m.to)
	defer done()
	targetID, err := target.Do(ctx, "CLUSTER", "MYID").Text()
	if err != nil {
		return err
	}
	// The new node first: were the old one to forget the slot first, nobody would serve it.
	others := []int{m.to, m.from}
	for i := range m.c.nodes {
		if i != m.to && i != m.from {
			others = append(others, i)
		}
	}
	for _, i := range others {
		client, done := m.c.direct(i)
		err := client.Do(ctx, "CLUSTER", "SETSLOT", m.slot, "NODE", targetID).Err()
		done()
		if err != nil {
			return fmt.Errorf("giving slot %d to node %d, told node %d: %w", m.slot, m.to, i, err)
		}
	}
	return nil
}

// direct returns a client of one node that follows no redirection.
func (c *Cluster) direct(node int) (client *redis.Client, done func()) {
	client = redis.NewClient(&redis.Options{
		Addr: c.nodes[node].Addr(), MaxRetries: -1, PoolSize: 1, ContextTimeoutEnabled: true, ReadTimeout: 10 * time.Second,
	})
	return client, func() { _ = client.Close() }
}
