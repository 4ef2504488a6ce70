package testserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// downAfter is how long a primary must be silent before Sentinel calls it down. Sentinel
// sends its first PING a second after it has met a server: with less than that it calls
// every new primary down and fails over to and fro. The rest is for a busy machine.
const downAfter = 4 * time.Second

// Sentinel is a primary with a replica, watched by a Sentinel.
type Sentinel struct {
	MasterName string

	t        testing.TB
	sentinel *Server
	servers  []*Server // the first one is the primary at the start
}

// StartSentinel starts them and returns when the replica is in step and Sentinel could
// promote it. Options are those of the primary and the replica.
func StartSentinel(t testing.TB, kind Kind, opts ...Option) *Sentinel {
	t.Helper()
	const name = "watched"
	primary := Start(t, kind, opts...)
	replica := Start(t, kind, append([]Option{Set("replicaof", spaced(primary.Addr()))}, opts...)...)
	watch := func(int) []setting {
		return []setting{
			{"sentinel monitor", name + " " + spaced(primary.Addr()) + " 1"},
			{"sentinel down-after-milliseconds", name + " " + ms(downAfter)},
			{"sentinel failover-timeout", name + " 3000"},
		}
	}
	s := &Sentinel{
		MasterName: name, t: t,
		sentinel: startNode(t, kind, recipe{base: watch, args: []string{"--sentinel"}}, nil),
		servers:  []*Server{primary, replica},
	}
	Eventually(t, startWithin, func() error { return s.isReady(replica) })
	return s
}

func spaced(addr string) string { return strings.Replace(addr, ":", " ", 1) }

func ms(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }

// isReady asks both sides: Sentinel learns of replicas a while after they are in step.
func (s *Sentinel) isReady(replica *Server) error {
	_, err := replica.admin(func(ctx context.Context, c *redis.Client) (any, error) {
		info, err := c.Info(ctx, "replication").Result()
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = fmt.Errorf("replica not in step:\n%s", info)
		}
		return nil, err
	})
	if err != nil {
		return err
	}
	_, err = s.sentinel.admin(func(ctx context.Context, c *redis.Client) (any, error) {
		replicas, err := redis.NewSentinelClient(c.Options()).Replicas(ctx, s.MasterName).Result()
		if err != nil {
			return nil, err
		}
		if len(replicas) != 1 || replicas[0]["flags"] != "slave" || replicas[0]["master-link-status"] != "ok" {
			return nil, fmt.Errorf("Sentinel sees the replicas %v", replicas)
		}
		return nil, nil
	})
	return err
}

// Addrs are the addresses of the Sentinels.
func (s *Sentinel) Addrs() []string { return []string{s.sentinel.Addr()} }

// FailoverClient returns a client that asks Sentinel for the primary, closed with the
// test.
func (s *Sentinel) FailoverClient(change ...func(*redis.FailoverOptions)) *redis.Client {
	options := &redis.FailoverOptions{MasterName: s.MasterName, SentinelAddrs: s.Addrs()}
	for _, c := range change {
		c(options)
	}
	client := redis.NewFailoverClient(options)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// Servers returns primary and replica in the order of their start.
func (s *Sentinel) Servers() []*Server { return s.servers }

// Primary returns the server that Sentinel names as the primary.
func (s *Sentinel) Primary() *Server {
	s.t.Helper()
	p, err := s.primary()
	if err != nil {
		s.t.Fatal(err)
	}
	return p
}

func (s *Sentinel) primary() (*Server, error) {
	p, err := s.sentinel.admin(func(ctx context.Context, c *redis.Client) (any, error) {
		hostPort, err := c.Do(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", s.MasterName).StringSlice()
		if err != nil {
			return nil, err
		}
		addr := strings.Join(hostPort, ":")
		for _, server := range s.servers {
			if server.Addr() == addr {
				return server, nil
			}
		}
		return nil, fmt.Errorf("Sentinel names %s, which is none of ours", addr)
	})
	if err != nil {
		return nil, err
	}
	return p.(*Server), nil
}

// KillPrimary kills the primary and returns it, to restart it later. WaitPromotion
// waits for the other one.
func (s *Sentinel) KillPrimary() *Server {
	s.t.Helper()
	p := s.Primary()
	p.Kill()
	return p
}

// WaitPromotion waits until another server than old is the primary for Sentinel and for
// itself, and returns it. The test fails when that takes longer than the time given.
func (s *Sentinel) WaitPromotion(old *Server, within time.Duration) *Server {
	s.t.Helper()
	var promoted *Server
	Eventually(s.t, within, func() error {
		p, err := s.primary()
		if err != nil {
			return err
		}
		if p == old {
			return fmt.Errorf("%s is still the primary", old.Addr())
		}
		promoted = p
		_, err = p.admin(func(ctx context.Context, c *redis.Client) (any, error) {
			info, err := c.Info(ctx, "replication").Result()
			if err == nil && !strings.Contains(info, "role:master") {
				err = fmt.Errorf("%s is not promoted yet", p.Addr())
			}
			return nil, err
		})
		return err
	})
	return promoted
}
