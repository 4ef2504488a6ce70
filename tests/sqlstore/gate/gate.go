// Package gate is a link to a database that a test can spoil: it goes silent, it is cut, and
// it loses the answer to one request. Package faultlink is the same for Redis, whose
// protocol it reads.
package gate

import (
	"context"
	"net"
	"sync"
	"testing"
	"time"
)

// Gate is a proxy in front of one server.
type Gate struct {
	upstream string
	listener net.Listener
	wg       sync.WaitGroup

	mu    sync.Mutex
	open  chan struct{} // closed while bytes pass
	shut  func(request []byte) bool
	lose  func(request []byte) bool
	conns map[net.Conn]struct{}
	over  bool
	away  bool
}

// New starts a gate to the server at upstream. It ends with the test.
func New(t testing.TB, upstream string) *Gate {
	t.Helper()
	var config net.ListenConfig
	listener, err := config.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &Gate{upstream: upstream, listener: listener, open: make(chan struct{}), conns: make(map[net.Conn]struct{})}
	close(g.open)
	g.wg.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			g.wg.Go(func() { g.serve(client) })
		}
	})
	t.Cleanup(g.end)
	return g
}

// Addr is where clients connect to.
func (g *Gate) Addr() string { return g.listener.Addr().String() }

// Shut lets no byte pass, in either direction. Connections stay, and new ones are
// accepted.
func (g *Gate) Shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.close()
}

// close must be called with the lock.
func (g *Gate) close() {
	select {
	case <-g.open:
		g.open = make(chan struct{})
	default:
	}
}

// Open lets bytes pass again, those that were held back first.
func (g *Gate) Open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

// Cut cuts all connections, and each new one at once, as when the server is away, until
// Back is called.
func (g *Gate) Cut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away = true
	for c := range g.conns {
		_ = c.Close()
	}
}

// Back ends Cut.
func (g *Gate) Back() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.away = false
}

// ShutAt shuts the gate in front of the first request that is picked.
func (g *Gate) ShutAt(request func([]byte) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = request
}

// Lose loses the answer to the first request that is picked: when the server has given
// it, the connection is cut.
func (g *Gate) Lose(request func([]byte) bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lose = request
}

func (g *Gate) end() {
	_ = g.listener.Close()
	g.Open()
	g.mu.Lock()
	g.over = true
	for c := range g.conns {
		_ = c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}

func (g *Gate) serve(client net.Conn) {
	dialer := net.Dialer{Timeout: 5 * time.Second}
	server, err := dialer.DialContext(context.Background(), "tcp4", g.upstream)
	if err != nil {
		_ = client.Close()
		return
	}
	g.mu.Lock()
	g.conns[client], g.conns[server] = struct{}{}, struct{}{}
	over := g.over || g.away
	g.mu.Unlock()
	var once sync.Once
	cut := func() {
		once.Do(func() {
			_, _ = client.Close(), server.Close()
			g.mu.Lock()
			defer g.mu.Unlock()
			delete(g.conns, client)
			delete(g.conns, server)
		})
	}
	if over {
		cut()
	}
	lost := make(chan struct{}) // closed when the next answer is to be lost
	var pumps sync.WaitGroup
	pumps.Go(func() {
		defer cut()
		pump(server, client, func(b []byte) bool {
			if g.picks(&g.shut, b) {
				g.Shut()
			}
			if g.picks(&g.lose, b) {
				close(lost)
			}
			g.wait()
			return true
		})
	})
	pumps.Go(func() {
		defer cut()
		pump(client, server, func([]byte) bool {
			g.wait()
			select {
			case <-lost:
				return false
			default:
				return true
			}
		})
	})
	pumps.Wait()
}

// picks asks a rule, which is over once it has picked something.
func (g *Gate) picks(rule *func([]byte) bool, b []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if *rule == nil || !(*rule)(b) {
		return false
	}
	*rule = nil
	return true
}

func (g *Gate) wait() {
	g.mu.Lock()
	open := g.open
	g.mu.Unlock()
	<-open
}

// pump carries bytes until either side ends or pass says no.
func pump(to, from net.Conn, pass func([]byte) bool) {
	b := make([]byte, 64<<10)
	for {
		n, err := from.Read(b)
		if n > 0 {
			if !pass(b[:n]) {
				return
			}
			if _, err := to.Write(b[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}
