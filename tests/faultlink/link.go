// Package faultlink is a link to a Redis server that a test can spoil: it loses the
// reply of a command that the server ran, answers a command in the server's place, stalls,
// slows, cuts and refuses connections.
//
// It is a proxy of our own because what matters most here, losing one reply and no
// other, needs to know where a reply ends and which command it answers. Proxies that
// pass bytes, such as Toxiproxy, can't; what they can is little, and that one brings an
// HTTP server and its metrics along.
package faultlink

import (
	"context"
	"errors"
	"net"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/internal/port"
)

// Direction is the way that bytes go.
type Direction uint8

// The directions.
const (
	Requests Direction = 1 << iota // from the client to the server
	Replies                        // from the server to the client
	Both     = Requests | Replies
)

// Stats counts what a link did.
type Stats struct {
	Accepted int // connections from clients
	Lost     int // replies that the server gave and the client did not get
	Answered int // commands that the link answered in the server's place
	Cut      int // connections that the link ended, those of lost replies among them
}

// Link is a proxy in front of one server. Its methods may be called at any time from
// any goroutine.
type Link struct {
	t        testing.TB
	upstream string
	port     int
	done     chan struct{}
	wg       sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while refusing
	conns    map[*conn]struct{}
	lose     rule
	answer   *answer
	stalled  Direction
	changed  chan struct{} // closed when stalled or delay changes
	delay    map[Direction]time.Duration
	stats    Stats
}

// New starts a link to the server at upstream. It ends with the test.
func New(t testing.TB, upstream string) *Link {
	t.Helper()
	number, release, err := port.Reserve()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	l := &Link{
		t: t, upstream: upstream, port: number,
		done: make(chan struct{}), changed: make(chan struct{}),
		conns: map[*conn]struct{}{}, delay: map[Direction]time.Duration{},
	}
	if err := l.listen(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.close)
	return l
}

// Addr is where clients connect to.
func (l *Link) Addr() string { return port.Addr(l.port) }

// Client returns a new client behind the link, closed with the test.
func (l *Link) Client(change ...func(*redis.Options)) *redis.Client {
	options := &redis.Options{Addr: l.Addr()}
	for _, c := range change {
		c(options)
	}
	client := redis.NewClient(options)
	l.t.Cleanup(func() { _ = client.Close() }) // the test may have closed it itself
	return client
}

// Dialer returns a dialer for the options of a Cluster or Sentinel client. These learn
// the addresses of servers from servers; the dialer puts the links in between.
func Dialer(links ...*Link) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		for _, l := range links {
			if l.upstream == addr {
				addr = l.Addr()
				break
			}
		}
		var d net.Dialer
		return d.DialContext(ctx, network, addr)
	}
}

// Stats returns the counts so far.
func (l *Link) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Stall lets no byte pass in a direction. Connections stay open, new ones are accepted.
// With Replies alone the server runs what it is sent, and the client waits.
func (l *Link) Stall(d Direction) { l.change(func() { l.stalled |= d }) }

// Resume ends every stall. What was held back goes on its way.
func (l *Link) Resume() { l.change(func() { l.stalled = 0 }) }

// Slow delays what passes, by its direction. Zero is no delay.
func (l *Link) Slow(requests, replies time.Duration) {
	l.change(func() { l.delay[Requests], l.delay[Replies] = requests, replies })
}

// change wakes whoever waits for the state that it changes.
func (l *Link) change(f func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f()
	close(l.changed)
	l.changed = make(chan struct{})
}

// Cut ends all connections and returns their number. New ones are accepted.
func (l *Link) Cut() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.conns)
	for c := range l.conns {
		c.close()
	}
	clear(l.conns)
	l.stats.Cut += n
	return n
}

// Refuse lets no new connection in: nobody listens any more. Open ones stay; Cut ends them.
func (l *Link) Refuse() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		_ = l.listener.Close()
		l.listener = nil
	}
}

// Accept lets connections in again.
func (l *Link) Accept() {
	l.t.Helper()
	if err := l.listen(); err != nil {
		l.t.Errorf("faultlink: %v", err)
	}
}

// Heal ends every fault.
func (l *Link) Heal() {
	l.t.Helper()
	l.Lose(nil)
	l.setAnswer(nil)
	l.Slow(0, 0)
	l.Resume()
	l.Accept()
}

func (l *Link) listen() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.listener != nil {
		return nil
	}
	listener, err := net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(l.port))
	// A process that another test is just starting has, until it runs its own program, what
	// was open here at that moment: the listener that found the port free.
	for end := time.Now().Add(10 * time.Second); errors.Is(err, syscall.EADDRINUSE) && time.Now().Before(end); {
		<-time.After(5 * time.Millisecond)
		listener, err = net.Listen("tcp4", "127.0.0.1:"+strconv.Itoa(l.port))
	}
	if err != nil {
		return err
	}
	l.listener = listener
	l.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			l.wg.Go(func() { l.serve(client) })
		}
	})
	return nil
}

func (l *Link) close() {
	close(l.done)
	l.Refuse()
	l.Cut()
	l.wg.Wait()
}

// serve carries one connection until either side ends it.
func (l *Link) serve(client net.Conn) {
	server, err := net.DialTimeout("tcp4", l.upstream, 5*time.Second)
	if err != nil {
		_ = client.Close() // the server is down: so is the connection
		return
	}
	c := newConn(l, client, server)
	l.mu.Lock()
	l.stats.Accepted++
	l.conns[c] = struct{}{}
	l.mu.Unlock()
	select {
	case <-l.done: // the link was closed before it knew of this connection
		c.close()
	default:
	}
	var pumps sync.WaitGroup
	for _, pump := range []func() error{c.pumpRequests, c.pumpReplies} {
		pumps.Go(func() {
			if err := pump(); errors.Is(err, errProtocol) {
				l.t.Errorf("faultlink: %v", err)
			}
			c.close()
		})
	}
	pumps.Wait()
	l.mu.Lock()
	delete(l.conns, c)
	l.mu.Unlock()
}

// wait returns when bytes of a connection may pass in a direction.
func (l *Link) wait(c *conn, d Direction) error {
	l.mu.Lock()
	delay := l.delay[d]
	l.mu.Unlock()
	if delay > 0 {
		// What arrives meanwhile waits its turn in the kernel: right for request and
		// reply, and too slow for more than one chunk under way on a connection.
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-c.done:
			return net.ErrClosed
		}
	}
	for {
		l.mu.Lock()
		stalled, changed := l.stalled&d != 0, l.changed
		l.mu.Unlock()
		if !stalled {
			return nil
		}
		select {
		case <-changed:
		case <-c.done:
			return net.ErrClosed
		}
	}
}
