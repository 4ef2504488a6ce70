// Package testserver starts the Redis and Valkey servers that a test asks for: on free
// loopback ports, in folders of their own, ended with the test.
//
//	s := testserver.Start(t, testserver.Redis86, testserver.Set("appendonly", "yes"))
//	client := s.Client()
//	s.Kill()
//	s.Restart()
//
// A test that only needs some server takes [Shared] and names its streams by [Topic];
// its package's TestMain calls [Main]. [StartSentinel] and [StartCluster] start more
// than one. `make servers` brings the programs.
package testserver

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// Server is a running server, as one test sees it.
type Server struct {
	*node
	t        testing.TB
	kind     Kind
	isShared bool
}

// Start starts a server for this test alone.
func Start(t testing.TB, kind Kind, opts ...Option) *Server {
	t.Helper()
	return startNode(t, kind, recipe{base: plain}, opts)
}

func startNode(t testing.TB, kind Kind, r recipe, opts []Option) *Server {
	t.Helper()
	r.program = kind.program(t)
	for _, o := range opts {
		o(&r)
	}
	n, err := newNode(r, t.TempDir())
	if err != nil {
		t.Fatalf("%s: %v", kind, err)
	}
	t.Cleanup(n.end)
	return &Server{node: n, t: t, kind: kind}
}

// As returns the same server for another test, such as a subtest: what it makes ends
// with that one.
func (s *Server) As(t testing.TB) *Server {
	other := *s
	other.t = t
	return &other
}

// Addr is its host:port. It stays the same over restarts.
func (s *Server) Addr() string { return s.addr() }

// Kind says what it is.
func (s *Server) Kind() Kind { return s.kind }

// Dir is the folder that holds its data.
func (s *Server) Dir() string { return s.dir }

// Log is what the server has logged so far.
func (s *Server) Log() string { return s.log() }

// Patient is an option of a client that must not give up on a large reply, or on a busy machine.
func Patient(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = time.Minute, time.Minute }

// Client returns a new client, closed with the test.
func (s *Server) Client(change ...func(*redis.Options)) *redis.Client {
	return newClient(s.t, s.addr(), change)
}

func newClient(t testing.TB, addr string, change []func(*redis.Options)) *redis.Client {
	options := &redis.Options{Addr: addr}
	for _, c := range change {
		c(options)
	}
	client := redis.NewClient(options)
	t.Cleanup(func() { _ = client.Close() }) // the test may have closed it itself
	return client
}

// Needs skips the test when the server lacks a command, and names it.
func (s *Server) Needs(command string) {
	s.t.Helper()
	known, err := s.do("COMMAND", "INFO", command)
	if err != nil {
		s.t.Fatalf("COMMAND INFO %s: %v", command, err)
	}
	if infos, _ := known.([]any); len(infos) == 0 || infos[0] == nil {
		s.t.Skipf("%s has no %s", s.kind, strings.ToUpper(command))
	}
}

// User makes an ACL user with these rules, such as "~*", "+@all", "-eval", and returns
// a client logged in as it. Both end with the test.
func (s *Server) User(name string, rules ...string) *redis.Client {
	s.t.Helper()
	const password = "secret"
	args := []any{"ACL", "SETUSER", name, "reset", "on", ">" + password}
	for _, r := range rules {
		args = append(args, r)
	}
	if _, err := s.do(args...); err != nil {
		s.t.Fatalf("ACL SETUSER %s: %v", name, err)
	}
	if s.isShared {
		s.t.Cleanup(func() {
			_, _ = s.do("ACL", "DELUSER", name)
		})
	}
	return s.Client(func(o *redis.Options) { o.Username, o.Password = name, password })
}

// admin runs a command of the harness' own, over a connection that does not stay.
func (s *Server) admin(run func(context.Context, *redis.Client) (any, error)) (any, error) {
	client := redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1, PoolSize: 1, ContextTimeoutEnabled: true, ReadTimeout: adminWithin})
	defer client.Close()
	// The test's own context has ended when its cleanups run.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.t.Context()), adminWithin)
	defer cancel()
	return run(ctx, client)
}

func (s *Server) do(args ...any) (any, error) {
	return s.admin(func(ctx context.Context, c *redis.Client) (any, error) { return c.Do(ctx, args...).Result() })
}

// Kill ends it by SIGKILL, as a crash would, and returns when it is gone.
func (s *Server) Kill() {
	s.t.Helper()
	if s.isOwn("Kill") {
		s.kill()
	}
}

// Stop ends it by SIGTERM: it writes what it is configured to write.
func (s *Server) Stop() {
	s.t.Helper()
	if !s.isOwn("Stop") {
		return
	}
	if proc := s.take(); proc != nil {
		if err := proc.terminate(stopWithin); err != nil {
			s.t.Errorf("stopping %s: %v", s.kind, err)
		}
	}
}

// Restart starts it again on the same data, port and settings, after killing it if it
// still runs, and returns when it has loaded its data and answers.
func (s *Server) Restart() {
	s.t.Helper()
	if !s.isOwn("Restart") {
		return
	}
	s.kill()
	if err := s.start(); err != nil {
		s.t.Errorf("restarting %s: %v", s.kind, err)
	}
}

// Freeze stops it by SIGSTOP: its connections stay open, and the kernel still accepts
// new ones and takes what is sent, but nothing answers until Thaw.
func (s *Server) Freeze() {
	s.t.Helper()
	s.signal("Freeze", (*process).freeze)
}

// Thaw lets it run on.
func (s *Server) Thaw() {
	s.t.Helper()
	s.signal("Thaw", (*process).thaw)
}

func (s *Server) signal(what string, send func(*process) error) {
	s.t.Helper()
	if !s.isOwn(what) {
		return
	}
	proc := s.running()
	if proc == nil {
		s.t.Errorf("%s: %s is down", what, s.kind)
		return
	}
	if err := send(proc); err != nil {
		s.t.Errorf("%s: %v", what, err)
	}
}

// isOwn keeps a test from taking down the server of the others. It does not stop the
// test: these methods may be called from any goroutine.
func (s *Server) isOwn(what string) bool {
	s.t.Helper()
	if s.isShared {
		s.t.Errorf("%s on a shared server: use Start", what)
	}
	return !s.isShared
}
