package publisher_test

import (
	"context"
	"net"
	"sync"
)

// switchable dials its own address, whatever address is asked for: a service name
// that moves to another server.
type switchable struct {
	mu   sync.Mutex
	addr string
}

func (s *switchable) set(addr string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.addr = addr
}

func (s *switchable) dial(ctx context.Context, network, _ string) (net.Conn, error) {
	s.mu.Lock()
	addr := s.addr
	s.mu.Unlock()
	return (&net.Dialer{}).DialContext(ctx, network, addr)
}

func hostPort(addr string) (host, port string) {
	host, port, _ = net.SplitHostPort(addr)
	return host, port
}
