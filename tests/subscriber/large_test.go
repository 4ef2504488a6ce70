package subscriber_test

import (
	"context"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// thinLink is a way to a server that passes so many bytes a second, for all connections
// together, and counts them. 0 is without a limit.
type thinLink struct {
	perSecond int
	bytes     atomic.Int64

	mu   sync.Mutex
	free time.Time // when it may pass the next bytes
}

func (l *thinLink) client(t *testing.T, s *testserver.Server) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: s.Addr(), // and the defaults of go-redis otherwise
		Dialer: func(ctx context.Context, network, addr string) (net.Conn, error) {
			var d net.Dialer
			conn, err := d.DialContext(ctx, network, addr)
			return &thinConn{Conn: conn, link: l}, err
		},
	})
	t.Cleanup(func() { client.Close() })
	return client
}

type thinConn struct {
	net.Conn
	link *thinLink
}

func (c *thinConn) Read(p []byte) (int, error) {
	l := c.link
	if l.perSecond > 0 {
		p = p[:min(len(p), 64<<10)]
	}
	n, err := c.Conn.Read(p)
	l.bytes.Add(int64(n))
	if l.perSecond == 0 || n < 1024 {
		return n, err
	}
	l.mu.Lock()
	now := time.Now()
	if l.free.Before(now) {
		l.free = now
	}
	l.free = l.free.Add(time.Duration(n) * time.Second / time.Duration(l.perSecond))
	until := l.free
	l.mu.Unlock()
	<-time.After(time.Until(until))
	return n, err
}

// Entries of which a few take longer than the client's read time-out: the batches become as
// small as they have to be.
func TestLargeEntriesOverAThinLink(t *testing.T) {
	t.Parallel()
	const entries = 12
	s := testserver.Start(t, testserver.Redis86)
	topic, ctx := testserver.Topic(t), context.Background()
	payloads := make([]string, entries)
	for i := range payloads {
		payloads[i] = string(rune('a'+i%2)) + "/" + strings.Repeat("x", 2_500_000)
	}
	publish(t, s.Client(), topic, payloads...)
	for name, set := range map[string]func(*subscriber.Config){
		"fan out": func(c *subscriber.Config) { c.Group, c.FanOut = "", true },
		"group":   func(c *subscriber.Config) { c.Group = "plain" },
		// What a dead consumer has left is read for the sake of its keys.
		"order by key, taken over": func(c *subscriber.Config) {
			c.Group = "ordered"
			orderKey(c)
		},
	} {
		t.Run(name, func(t *testing.T) { // one after the other: they share the link
			if name == "order by key, taken over" {
				if err := s.Client().XGroupCreate(ctx, topic, "ordered", "0").Err(); err != nil {
					t.Fatal(err)
				}
				read := &redis.XReadGroupArgs{Group: "ordered", Consumer: "handback", Count: entries, Streams: []string{topic, ">"}}
				for _, e := range s.Client().XReadGroup(ctx, read).Val()[0].Messages {
					if err := s.Client().Do(ctx, "XCLAIM", topic, "ordered", "handback", 0, e.ID, "IDLE", 3_600_000, "JUSTID").Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			link := &thinLink{perSecond: 4_000_000}
			messages, cancel := subscribe(t, newSubscriber(t, link.client(t, s), set, func(c *subscriber.Config) {
				c.MinIdle, c.Heartbeat, c.Block = 60*time.Second, 15*time.Second, 500*time.Millisecond
			}), topic)
			defer cancel()
			for range entries {
				select {
				case msg := <-messages:
					msg.Ack()
				case <-time.After(time.Minute):
					t.Fatal("no message within a minute")
				}
			}
		})
	}
}

// What an idle subscription reads does not depend on how large the entries are.
func TestIdleSubscriptionReadsNoEntries(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	for name, set := range map[string]func(*subscriber.Config){
		"fan out": func(c *subscriber.Config) { c.Group, c.FanOut = "", true },
		"group":   func(*subscriber.Config) {},
		"ordered": orderKey,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			topic := testserver.Topic(t)
			publish(t, s.Client(), topic, "a/"+strings.Repeat("x", 2_000_000))
			link := &thinLink{}
			messages, _ := subscribe(t, newSubscriber(t, link.client(t, s), set, func(c *subscriber.Config) {
				c.MinIdle, c.Heartbeat, c.Block = time.Second, 50*time.Millisecond, 10*time.Millisecond
			}), topic)
			receive(t, messages).Ack()
			<-time.After(100 * time.Millisecond)
			before := link.bytes.Load()
			<-time.After(time.Second) // some twenty heartbeats
			if read := link.bytes.Load() - before; read > 1_000_000 {
				t.Errorf("%d bytes read in a second, with nothing to read", read)
			}
		})
	}
}
