package testserver_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func set(t *testing.T, c *redis.Client, key, value string) {
	t.Helper()
	if err := c.Set(t.Context(), key, value, 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestEveryKindIsWhatItsNameSays(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		info, err := s.Client().Info(t.Context(), "server").Result()
		if err != nil {
			t.Fatal(err)
		}
		product, series, _ := strings.Cut(string(s.Kind()), "-")
		// A suite may have moved on to a newer series, never to an older major one.
		field := product + "_version:" + series[:1]
		if !strings.Contains(info, field) {
			t.Errorf("no %s in\n%s", field, info)
		}
		err = s.Client().Do(t.Context(), "XADD", testserver.Topic(t), "IDMP", "p", "i", "*", "f", "v").Err()
		if s.Kind().HasIDMP() != (err == nil) {
			t.Errorf("HasIDMP %v, XADD IDMP: %v", s.Kind().HasIDMP(), err)
		}
	})
}

func TestSharedIsOneServer(t *testing.T) {
	a, b := testserver.Shared(t, testserver.Redis70), testserver.Shared(t, testserver.Redis70)
	if a.Addr() != b.Addr() {
		t.Errorf("two servers: %s, %s", a.Addr(), b.Addr())
	}
	if x, y := testserver.Topic(t), testserver.Topic(t); x == y {
		t.Errorf("the same topic twice: %s", x)
	}
}

func TestKillLosesWhatWasNotWrittenAndRestartKeepsWhatWas(t *testing.T) {
	for _, appendonly := range []string{"yes", "no"} {
		t.Run("appendonly "+appendonly, func(t *testing.T) {
			s := testserver.Start(t, testserver.Redis86,
				testserver.Set("appendonly", appendonly), testserver.Set("appendfsync", "always"))
			c := s.Client()
			set(t, c, "key", "value")
			addr := s.Addr()
			s.Kill()
			if conn, err := net.Dial("tcp4", addr); err == nil {
				_ = conn.Close()
				t.Fatal("the killed server still listens")
			}
			s.Restart()
			n, err := c.Exists(t.Context(), "key").Result()
			if err != nil {
				t.Fatal(err)
			}
			if kept := n == 1; kept != (appendonly == "yes") {
				t.Errorf("appendonly %s: kept %v", appendonly, kept)
			}
			if s.Addr() != addr {
				t.Errorf("was at %s, is at %s", addr, s.Addr())
			}
		})
	}
}

func TestStopSaves(t *testing.T) {
	s := testserver.Start(t, testserver.Valkey81, testserver.Set("save", "3600 1"))
	c := s.Client()
	set(t, c, "key", "value")
	s.Stop()
	s.Restart()
	if v := c.Get(t.Context(), "key").Val(); v != "value" {
		t.Errorf("after a graceful stop the key holds %q\n%s", v, s.Log())
	}
}

func TestRestartWaitsForLoading(t *testing.T) {
	s := testserver.Start(t, testserver.Redis70,
		// Always: by default a write waits while the disk is busy with the one before, and the
		// restart kills the server.
		testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always"), testserver.Set("key-load-delay", "200"), testserver.Set("loading-process-events-interval-bytes", "1024"))
	c := s.Client()
	pipe := c.Pipeline()
	for i := range 2000 {
		pipe.Set(t.Context(), fmt.Sprint("key", i), "value", 0)
	}
	if _, err := pipe.Exec(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Restart()
	if n, err := s.Client(noRetry).DBSize(t.Context()).Result(); n != 2000 || err != nil {
		t.Errorf("%d keys, %v", n, err)
	}
}

func noRetry(o *redis.Options) { o.MaxRetries = -1 }

func impatient(o *redis.Options) {
	noRetry(o)
	o.ReadTimeout = 2 * time.Second
}

func TestFreezeHoldsAndThawGoesOn(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	c := s.Client(impatient)
	set(t, c, "before", "1")
	s.Freeze()
	err := c.Set(t.Context(), "during", "1", 0).Err()
	var late net.Error
	if !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("the frozen server answers: %v", err)
	}
	s.Thaw()
	// What was sent to the frozen server is run when it thaws.
	testserver.Eventually(t, 5*time.Second, func() error { return c.Get(t.Context(), "during").Err() })
}

func TestUserIsBoundByItsRules(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		c := s.User("user-"+testserver.Topic(t), "~*", "+@all", "-eval")
		set(t, c, testserver.Topic(t), "value")
		if err := c.Eval(t.Context(), "return 1", nil).Err(); err == nil || !strings.HasPrefix(err.Error(), "NOPERM") {
			t.Errorf("EVAL by a user without it: %v", err)
		}
	})
}

func TestServersStartSideBySide(t *testing.T) {
	const n = 8
	addrs := make([]string, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { addrs[i] = testserver.Start(t, testserver.Redis70).Addr() })
	}
	wg.Wait()
	seen := map[string]bool{}
	for _, a := range addrs {
		if a == "" || seen[a] {
			t.Errorf("address %q twice", a)
		}
		seen[a] = true
	}
}

func TestNeedsSkipsByName(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	r := &recorder{TB: t}
	s.As(r).Needs("XADD")
	if r.skipped != "" {
		t.Errorf("skipped: %s", r.skipped)
	}
	s.As(r).Needs("xcfgset")
	if !strings.Contains(r.skipped, "redis-7.0 has no XCFGSET") {
		t.Errorf("said %q", r.skipped)
	}
}

func TestMissingServer(t *testing.T) {
	t.Setenv(testserver.Folder, t.TempDir())
	r := &recorder{TB: t}
	t.Setenv("CI", "")
	r.run(func() { testserver.Start(r, testserver.Redis86) })
	t.Setenv("CI", "true")
	r.run(func() { testserver.Start(r, testserver.Redis86) })
	for _, said := range []string{r.skipped, r.failed} {
		if !strings.Contains(said, "make servers") || !strings.Contains(said, testserver.Folder) {
			t.Errorf("the message lacks a hint: %q", said)
		}
	}
}

func TestSharedServerIsNotTakenDown(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	r := &recorder{TB: t}
	s.As(r).Kill()
	if !strings.Contains(r.failed, "shared") {
		t.Errorf("Kill of a shared server: %q", r.failed)
	}
	if err := s.Client().Ping(context.Background()).Err(); err != nil {
		t.Error(err)
	}
}

// recorder is a test that keeps what it was told.
type recorder struct {
	testing.TB
	skipped, failed string
}

type over struct{}

// run runs what ends by Skip or Fatal.
func (r *recorder) run(f func()) {
	defer func() {
		if p := recover(); p != nil && p != (over{}) {
			panic(p)
		}
	}()
	f()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.skipped = fmt.Sprintf(format, args...)
	if !strings.Contains(r.skipped, " has no ") {
		panic(over{})
	}
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.failed = fmt.Sprintf(format, args...)
	panic(over{})
}

func (r *recorder) Errorf(format string, args ...any) { r.failed = fmt.Sprintf(format, args...) }
