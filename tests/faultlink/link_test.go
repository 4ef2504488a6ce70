package faultlink_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

const within = 10 * time.Second

// pair is a link with a client behind it that repeats nothing, and a client of the
// server itself.
func pair(t *testing.T, change ...func(*redis.Options)) (l *faultlink.Link, behind, direct *redis.Client) {
	t.Helper()
	s := testserver.Shared(t, testserver.Redis86)
	l = faultlink.New(t, s.Addr())
	change = append([]func(*redis.Options){func(o *redis.Options) { o.MaxRetries = -1 }}, change...)
	return l, l.Client(change...), s.Client()
}

func resp2(o *redis.Options) { o.Protocol = 2 }

func wantInt(t *testing.T, c *redis.Client, key string, want int) {
	t.Helper()
	if got, err := c.Get(context.Background(), key).Int(); got != want || err != nil {
		t.Errorf("%s is %d, %v; want %d", key, got, err, want)
	}
}

func TestStallOfReplies(t *testing.T) {
	l, behind, direct := pair(t)
	key := testserver.Topic(t)
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	l.Stall(faultlink.Replies)
	replied := make(chan error, 1)
	go func() { replied <- behind.Incr(t.Context(), key).Err() }()
	testserver.Eventually(t, within, func() error { return direct.Get(t.Context(), key).Err() })
	select {
	case err := <-replied:
		t.Fatalf("the reply passed: %v", err)
	default:
	}
	l.Resume()
	if err := <-replied; err != nil {
		t.Errorf("after the stall: %v", err)
	}
	if s := l.Stats(); s.Cut != 0 {
		t.Errorf("a stall cut connections: %+v", s)
	}
}

func TestStallOfRequests(t *testing.T) {
	l, behind, direct := pair(t, func(o *redis.Options) { o.ReadTimeout = 2 * time.Second })
	key := testserver.Topic(t)
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	l.Stall(faultlink.Both)
	var late net.Error
	if err := behind.Incr(t.Context(), key).Err(); !errors.As(err, &late) || !late.Timeout() {
		t.Errorf("through a stalled link: %v", err)
	}
	if n := direct.Exists(t.Context(), key).Val(); n != 0 {
		t.Error("the command reached the server")
	}
	// A link that ends while stalled must not wait for anybody: the cleanup shows it.
}

func TestCutEndsABlockedRead(t *testing.T) {
	l, behind, direct := pair(t)
	key := testserver.Topic(t)
	ended := make(chan error, 1)
	go func() { ended <- behind.BLPop(t.Context(), within, key).Err() }()
	testserver.Eventually(t, within, func() error {
		if info := direct.Info(t.Context(), "clients").Val(); !strings.Contains(info, "blocked_clients:1") {
			return errors.New("nobody blocks")
		}
		return nil
	})
	if n := l.Cut(); n != 1 {
		t.Errorf("cut %d connections", n)
	}
	select {
	case err := <-ended:
		if err == nil || errors.Is(err, redis.Nil) {
			t.Errorf("the read ended with %v", err)
		}
	case <-time.After(within / 2):
		t.Error("the read goes on")
	}
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Errorf("a new connection: %v", err)
	}
	if s := l.Stats(); s.Cut != 1 || s.Lost != 0 || s.Accepted != 2 {
		t.Errorf("%+v", s)
	}
}

func TestRefuse(t *testing.T) {
	l, behind, _ := pair(t, func(o *redis.Options) { o.PoolSize = 1 })
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	l.Refuse()
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Errorf("an open connection: %v", err)
	}
	if _, err := net.Dial("tcp4", l.Addr()); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a new connection: %v", err)
	}
	l.Cut()
	if err := behind.Ping(t.Context()).Err(); err == nil {
		t.Error("a cut and refused client got through")
	}
	l.Accept()
	testserver.Eventually(t, within, func() error { return behind.Ping(t.Context()).Err() })
}

func TestSlow(t *testing.T) {
	l, behind, _ := pair(t)
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	l.Slow(50*time.Millisecond, 100*time.Millisecond)
	start := time.Now()
	if err := behind.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 150*time.Millisecond {
		t.Errorf("took only %v", took)
	}
	l.Heal()
	start = time.Now()
	for range 20 {
		behind.Ping(t.Context())
	}
	if took := time.Since(start); took > 20*150*time.Millisecond {
		t.Errorf("healed, and 20 commands took %v", took)
	}
}

func TestServerDown(t *testing.T) {
	s := testserver.Start(t, testserver.Redis70)
	l := faultlink.New(t, s.Addr())
	c := l.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	s.Kill()
	if err := c.Ping(t.Context()).Err(); err == nil {
		t.Error("a dead server answers")
	}
	s.Restart()
	testserver.Eventually(t, within, func() error { return c.Ping(t.Context()).Err() })
}

// What passes must be what came: large, nested, empty, in both protocols.
func TestWhatPassesIsUnchanged(t *testing.T) {
	for name, change := range map[string]func(*redis.Options){"RESP2": resp2, "RESP3": func(*redis.Options) {}} {
		t.Run(name, func(t *testing.T) {
			_, behind, _ := pair(t, change, testserver.Patient)
			direct := testserver.Shared(t, testserver.Redis86).Client(change, testserver.Patient)
			key := testserver.Topic(t)
			large := strings.Repeat("\r\n$5\r\n", 1<<20)
			ctx := t.Context()
			for _, c := range []*redis.Client{behind, direct} {
				if err := c.XAdd(ctx, &redis.XAddArgs{Stream: key, Values: []any{"payload", large, "", ""}}).Err(); err != nil {
					t.Fatal(err)
				}
			}
			for _, args := range [][]any{
				{"XINFO", "STREAM", key, "FULL"}, {"XRANGE", key, "-", "+"}, {"CONFIG", "GET", "max*"},
				{"COMMAND", "INFO", "XADD", "NOSUCH"}, {"GET", "no such key"}, {"XLEN", key}, {"GET", key},
				{"EVAL", "return {1, 'two', {3, false}, redis.status_reply('OK')}", 0}, {"EVAL", "redis.setresp(3); return {map={a=1}, double=1.5}", 0},
				{"XREAD", "STREAMS", key, "$"}, {"ECHO", ""}, {"DEBUG", "PROTOCOL", "attrib"}, {"DEBUG", "PROTOCOL", "verbatim"}, {"DEBUG", "PROTOCOL", "bignum"},
			} {
				got, gotErr := behind.Do(ctx, args...).Result()
				want, wantErr := direct.Do(ctx, args...).Result()
				if fmt.Sprint(got, gotErr) != fmt.Sprint(want, wantErr) {
					t.Errorf("%v: %.200v, %v; direct %.200v, %v", args, got, gotErr, want, wantErr)
				}
			}
		})
	}
}

func TestMessagesPass(t *testing.T) {
	for name, change := range map[string]func(*redis.Options){"RESP2": resp2, "RESP3": func(*redis.Options) {}} {
		t.Run(name, func(t *testing.T) {
			_, behind, direct := pair(t, change)
			channel := testserver.Topic(t)
			sub := behind.Subscribe(t.Context(), channel)
			defer sub.Close()
			if _, err := sub.Receive(t.Context()); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if err := direct.Publish(t.Context(), channel, i).Err(); err != nil {
					t.Fatal(err)
				}
				if m, err := sub.ReceiveMessage(t.Context()); err != nil || m.Payload != fmt.Sprint(i) {
					t.Fatalf("%v, %v", m, err)
				}
			}
		})
	}
}

// A replica behind the link: what a test of WAIT needs.
func TestReplicationPasses(t *testing.T) {
	primary := testserver.Start(t, testserver.Redis86)
	l := faultlink.New(t, primary.Addr())
	host, port, _ := strings.Cut(l.Addr(), ":")
	replica := testserver.Start(t, testserver.Redis86, testserver.Set("replicaof", host+" "+port))
	c := primary.Client()
	write := func(wait time.Duration) int64 {
		conn := c.Conn()
		defer conn.Close()
		conn.Incr(t.Context(), "n")
		return conn.Wait(t.Context(), 1, wait).Val()
	}
	testserver.Eventually(t, within, func() error {
		if n := write(100 * time.Millisecond); n != 1 {
			return fmt.Errorf("%d replicas\n%s", n, replica.Log())
		}
		return nil
	})
	l.Stall(faultlink.Both)
	if n := write(100 * time.Millisecond); n != 0 {
		t.Errorf("%d replicas behind a stalled link", n)
	}
	l.Resume()
	testserver.Eventually(t, within, func() error {
		if n := write(100 * time.Millisecond); n != 1 {
			return fmt.Errorf("%d replicas", n)
		}
		return nil
	})
}

func TestDialerPutsTheLinkInBetween(t *testing.T) {
	l, _, _ := pair(t)
	s := testserver.Shared(t, testserver.Redis86)
	c := s.Client(func(o *redis.Options) { o.Dialer = faultlink.Dialer(l) })
	if err := c.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if n := l.Stats().Accepted; n != 1 {
		t.Errorf("%d connections through the link", n)
	}
}
