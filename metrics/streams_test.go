package metrics_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/metrics"
)

// silent is a server that takes connections and never answers.
type silent struct {
	net.Listener
	conns []net.Conn // of the goroutine that accepts, until it ends
}

func newSilent(t *testing.T) *silent {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &silent{Listener: l}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			s.conns = append(s.conns, conn)
		}
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
		for _, c := range s.conns {
			c.Close()
		}
	})
	return s
}

// within is a bound for hangs, not for speed.
const within = 30 * time.Second

// A server that never answers keeps no scrape, also where the client has no time-outs of its
// own, and the scrapes that come meanwhile don't pile up.
func TestScrapeOfAServerThatHangs(t *testing.T) {
	server := newSilent(t)
	options := &redis.Options{Addr: server.Addr().String(), ReadTimeout: -1, DialTimeout: time.Minute, MaxRetries: 10}
	client := redis.NewClient(options)
	defer client.Close()
	for name, c := range map[string]redis.UniversalClient{
		"heeds contexts": client,
		"does not":       deaf{client, newGate(t)},
	} {
		t.Run(name, func(t *testing.T) {
			streams, err := metrics.NewStreams(metrics.StreamsConfig{Client: c, Topics: []string{"orders", "refunds"}, Timeout: 100 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			const scrapes = 5
			began := time.Now()
			var all sync.WaitGroup
			for range scrapes {
				all.Go(func() {
					got := scrape(t, streams)
					got.want(t, scraped{`stream_up{topic="orders"}`: 0, `stream_up{topic="refunds"}`: 0})
					if len(got) != 3 {
						t.Errorf("series of a server that is silent: %v", got)
					}
				})
			}
			all.Wait()
			if took := time.Since(began); took > within {
				t.Errorf("%d scrapes took %v", scrapes, took)
			}
			if d, ok := c.(deaf); ok && d.gate.calls() != 1 {
				t.Errorf("%d scrapes ask at once", d.gate.calls())
			}
		})
	}
}

// deaf is a client that ends no command with its context.
type deaf struct {
	redis.UniversalClient
	gate *gate
}

func (d deaf) Pipelined(context.Context, func(redis.Pipeliner) error) ([]redis.Cmder, error) {
	d.gate.wait()
	return nil, errors.New("the connection was closed")
}

// gate holds its callers until the end of the test.
type gate struct {
	mu   sync.Mutex
	n    int
	open chan struct{}
}

func newGate(t *testing.T) *gate {
	g := &gate{open: make(chan struct{})}
	t.Cleanup(func() { close(g.open) })
	return g
}

func (g *gate) wait() {
	g.mu.Lock()
	g.n++
	g.mu.Unlock()
	<-g.open
}

func (g *gate) calls() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.n
}

func TestInvalidConfigOfStreams(t *testing.T) {
	_, err := metrics.NewStreams(metrics.StreamsConfig{Topics: []string{"orders", "", "orders", "\xff"}, MaxGroups: -1, Timeout: time.Microsecond})
	if err == nil {
		t.Fatal("no error")
	}
	for _, words := range []string{"Client is nil", "Topics[1] is empty", `Topics has "orders" twice`, "Topics[3]", "MaxGroups -1 is negative", "Timeout 1µs is below"} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("no %q in: %v", words, err)
		}
	}
	ring := redis.NewRing(&redis.RingOptions{})
	defer ring.Close()
	if _, err := metrics.NewStreams(metrics.StreamsConfig{Client: ring}); err == nil || !strings.Contains(err.Error(), "Ring") {
		t.Errorf("a ring: %v", err)
	}
}
