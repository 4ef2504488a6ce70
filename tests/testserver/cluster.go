package testserver

import (
	"context"
	"fmt"
	"net"
	"slices"
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
				{"cluster-config-file", "nodes.conf"}, {"cluster-node-timeout", "10000"},
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
	return c.agree()
}

// agree reports whether all nodes see the same epochs and the same owners of slots.
func (c *Cluster) agree() error {
	var first string
	for _, n := range c.nodes {
		text, err := n.do("CLUSTER", "NODES")
		if err != nil {
			return err
		}
		var view []string
		for line := range strings.Lines(fmt.Sprint(text)) {
			// id ip:port flags primary ping pong epoch link slots...
			f := strings.Fields(line)
			if len(f) < 8 {
				return fmt.Errorf("%s: CLUSTER NODES says %q", n.Addr(), line)
			}
			// Slots on their way, in brackets, are known to their two nodes only.
			slots := slices.DeleteFunc(f[8:], func(s string) bool { return s[0] == '[' })
			view = append(view, fmt.Sprint(f[0], " epoch ", f[6], " slots ", slots))
		}
		slices.Sort(view)
		switch all := strings.Join(view, "\n"); first {
		case "":
			first = all
		case all:
		default:
			return fmt.Errorf("the nodes disagree:\n%s\n%s", first, all)
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

// direct returns a client of one node that follows no redirection.
func (c *Cluster) direct(node int) (client *redis.Client, done func()) {
	client = redis.NewClient(&redis.Options{
		Addr: c.nodes[node].Addr(), MaxRetries: -1, PoolSize: 1, ContextTimeoutEnabled: true, ReadTimeout: 10 * time.Second,
	})
	return client, func() { _ = client.Close() }
}
