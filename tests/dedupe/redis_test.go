package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/storetest"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// newRedis makes a store that is closed with the test.
func newRedis(t testing.TB, client redis.UniversalClient) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

func options() dedupe.ClaimOptions {
	return dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: 30 * time.Second, Retention: time.Hour, Fingerprint: []byte("one")}
}

func newKey(t testing.TB) dedupe.Key {
	return dedupe.Key{Namespace: "payments", Topic: "orders", Handler: "charge", Event: testserver.Topic(t)}
}

func mustClaim(t testing.TB, s dedupe.Store, k dedupe.Key, o dedupe.ClaimOptions) dedupe.Claim {
	t.Helper()
	c := mustAsk(t, s, k, o)
	if c.State() != dedupe.StateClaimed {
		t.Fatalf("state %v, want claimed", c.State())
	}
	return c
}

func mustAsk(t testing.TB, s dedupe.Store, k dedupe.Key, o dedupe.ClaimOptions) dedupe.Claim {
	t.Helper()
	c, err := s.Claim(context.Background(), k, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Rollback(context.Background()) })
	return c
}

func TestRedisConformance(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind) // the suite purges
			storetest.Run(t, storetest.Config{
				Open: func(t testing.TB) dedupe.Store { return newRedis(t, server.As(t).Client()) },
				Cut: func(t testing.TB) (dedupe.Store, func()) {
					link := faultlink.New(t, server.Addr())
					return newRedis(t, link.Client()), func() { link.Stall(faultlink.Both) }
				},
			})
		})
	}
}

func TestRedisConformanceOnACluster(t *testing.T) {
	t.Parallel()
	cluster := testserver.StartCluster(t, testserver.Redis70)
	client := cluster.ClusterClient()
	storetest.Run(t, storetest.Config{Open: func(t testing.TB) dedupe.Store { return newRedis(t, client) }})
}

// The whole suite holds when one reply in six gets lost: every step is sent again, and
// survives it.
func TestRedisConformanceOnALossyLink(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis86)
	var links atomic.Uint64
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) dedupe.Store {
			link := faultlink.New(t, server.Addr())
			link.LoseRate(1./6, links.Add(1), "SET", "EVALSHA", "EVAL")
			return newRedis(t, link.Client())
		},
	})
}

// Each step with its reply lost, once and three times.
func TestReplyOfAStepLost(t *testing.T) {
	server := testserver.Shared(t, testserver.Redis70)
	for lost := range 4 {
		link := faultlink.New(t, server.Addr())
		s, other := newRedis(t, link.Client()), newRedis(t, server.Client())
		outs := [][]byte{[]byte("out")}

		k := newKey(t)
		link.LoseNext(lost, "SET")
		c := mustClaim(t, s, k, options())
		if st := mustAsk(t, other, k, options()).State(); st != dedupe.StateInProgress {
			t.Errorf("%d lost: another got %v", lost, st)
		}
		link.LoseNext(lost, "EVALSHA", "EVAL")
		if err := c.Commit(t.Context(), outs); err != nil {
			t.Errorf("%d lost: commit: %v", lost, err)
		}
		if d := mustAsk(t, other, k, options()); d.State() != dedupe.StateDone || len(d.Outputs()) != 1 {
			t.Errorf("%d lost: %v with %d outputs", lost, d.State(), len(d.Outputs()))
		}
		link.LoseNext(lost, "EVALSHA", "EVAL")
		if err := c.Settle(t.Context()); err != nil {
			t.Errorf("%d lost: settle: %v", lost, err)
		}
		if d := mustAsk(t, other, k, options()); d.State() != dedupe.StateDone || len(d.Outputs()) != 0 {
			t.Errorf("%d lost: %v with %d outputs after the settle", lost, d.State(), len(d.Outputs()))
		}

		k = newKey(t)
		c = mustClaim(t, s, k, options())
		link.LoseNext(lost, "EVALSHA", "EVAL")
		if err := c.Rollback(t.Context()); err != nil {
			t.Errorf("%d lost: rollback: %v", lost, err)
		}
		if err := mustClaim(t, other, k, options()).Rollback(t.Context()); err != nil {
			t.Error(err)
		}
		if lost > 0 && link.Stats().Lost < 4*lost {
			t.Errorf("the link lost %d replies, want %d", link.Stats().Lost, 4*lost)
		}
	}
}

// setHook is called in place of each SET, with what sends it.
type setHook func(send func() error) error

func (setHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (setHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h setHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		send := func() error { return next(ctx, cmd) }
		if cmd.Name() != "set" {
			return send()
		}
		return h(send)
	}
}

// The reply was lost, and the lease all but over when that showed: the claim is got for
// a whole lease, not for what is left.
func TestReplyOfAClaimLostLate(t *testing.T) {
	t.Parallel()
	server := testserver.Shared(t, testserver.Redis86)
	client, o := server.Client(), options()
	o.Lease = 4 * time.Second
	var isLost atomic.Bool
	client.AddHook(setHook(func(send func() error) error {
		err := send()
		if isLost.Swap(true) || err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		<-time.After(o.Lease * 93 / 100) // a claim ends here at 90
		return io.ErrUnexpectedEOF
	}))
	c := mustClaim(t, newRedis(t, client), newKey(t), o)
	if err := c.Commit(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// A caller that gave up while its claim was on its way leaves nothing behind.
func TestClaimWhoseCallerGaveUp(t *testing.T) {
	server := testserver.Shared(t, testserver.Redis86)
	link := faultlink.New(t, server.Addr())
	// The client itself waits for long.
	s := newRedis(t, link.Client(func(o *redis.Options) { o.ReadTimeout = 30 * time.Second }))
	other, k := newRedis(t, server.Client()), newKey(t)
	if err := mustClaim(t, s, newKey(t), options()).Rollback(t.Context()); err != nil { // the connection stands
		t.Fatal(err)
	}
	link.Stall(faultlink.Replies)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	begin := time.Now()
	if _, err := s.Claim(ctx, k, options()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v, want the context's", err)
	}
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("the caller waited %v", took)
	}
	testserver.Eventually(t, 5*time.Second, func() error { // the server has got it
		r, err := other.Lookup(t.Context(), k)
		if err == nil && r.State != dedupe.StateInProgress {
			err = fmt.Errorf("state %v", r.State)
		}
		return err
	})
	link.Resume()
	testserver.Eventually(t, 10*time.Second, func() error { // long before the lease ends
		c := mustAsk(t, other, k, options())
		if c.State() != dedupe.StateClaimed {
			return fmt.Errorf("state %v", c.State())
		}
		return c.Rollback(t.Context())
	})
}

// As before, but the claim has not got to the server yet: it is deleted after it has
// come, not before.
func TestClaimWhoseCallerGaveUpBeforeItCame(t *testing.T) {
	server := testserver.Shared(t, testserver.Redis86)
	client, release := server.Client(), make(chan struct{})
	client.AddHook(setHook(func(send func() error) error {
		<-release
		return send()
	}))
	s, other, k := newRedis(t, client), newRedis(t, server.Client()), newKey(t)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Claim(ctx, k, options()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("error %v, want the context's", err)
	}
	<-time.After(200 * time.Millisecond) // for a deletion that did not wait
	close(release)
	// It came, and went, long before its lease ends.
	testserver.Eventually(t, 10*time.Second, func() error {
		c := mustAsk(t, other, k, options())
		if c.State() != dedupe.StateClaimed {
			return fmt.Errorf("state %v", c.State())
		}
		return nil
	})
}

// A commit is tried for as long as the lease lasts, and no longer: after that the event
// may be another's.
func TestCommitEndsWithTheLease(t *testing.T) {
	t.Parallel()
	link := faultlink.New(t, testserver.Shared(t, testserver.Redis86).Addr())
	s := newRedis(t, link.Client())
	o := options()
	o.Lease = time.Second
	c := mustClaim(t, s, newKey(t), o)
	link.Stall(faultlink.Both)
	defer link.Resume()
	begin := time.Now()
	if err := c.Commit(t.Context(), nil); err == nil {
		t.Error("no error")
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("took %v, the lease is %v", took, o.Lease)
	}
}

// A server that was restarted has forgotten its scripts.
func TestScriptsFlushed(t *testing.T) {
	server := testserver.Start(t, testserver.Redis80)
	client := server.Client()
	s, k := newRedis(t, client), newKey(t)
	flush := func() {
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	c := mustClaim(t, s, k, options())
	flush()
	if err := c.Commit(t.Context(), [][]byte{{}}); err != nil {
		t.Error(err)
	}
	flush()
	if err := c.Settle(t.Context()); err != nil {
		t.Error(err)
	}
}

// A server that is gone for a while is waited for; one that stays away is an error in
// bounded time, and nothing is held.
func TestRedisAway(t *testing.T) {
	t.Parallel()
	server := testserver.Start(t, testserver.Redis70)
	client := server.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	server.Kill()
	s, o := newRedis(t, client), options()
	o.Lease = 500 * time.Millisecond
	begin := time.Now()
	if _, err := s.Claim(t.Context(), newKey(t), o); err == nil {
		t.Error("a claim from a server that is away")
	}
	if took := time.Since(begin); took > 20*time.Second {
		t.Errorf("%v for a lease of %v", took, o.Lease)
	}
	patient := newRedis(t, client)
	got := make(chan error, 1)
	k := newKey(t)
	go func() {
		c, err := patient.Claim(context.Background(), k, options())
		if err == nil {
			err = c.Commit(context.Background(), nil)
		}
		got <- err
	}()
	server.Restart()
	select {
	case err := <-got:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the claim hangs")
	}
}

func TestCorruptRecord(t *testing.T) {
	server := testserver.Shared(t, testserver.Redis70)
	client := server.Client()
	s := newRedis(t, client)
	ctx := t.Context()
	cutOff := "d" + strings.Repeat("x", 27) + "\xff"
	for name, put := range map[string]func(key string) error{
		"empty":          func(key string) error { return client.Set(ctx, key, "", 0).Err() },
		"another kind":   func(key string) error { return client.Set(ctx, key, "payment-service", 0).Err() },
		"too short":      func(key string) error { return client.Set(ctx, key, "dxx", 0).Err() },
		"output cut off": func(key string) error { return client.Set(ctx, key, cutOff, 0).Err() },
		"a list":         func(key string) error { return client.LPush(ctx, key, "x").Err() },
	} {
		k := newKey(t)
		if err := put(redisstore.Config{}.Name(k)); err != nil {
			t.Fatal(err)
		}
		if c, err := s.Claim(ctx, k, options()); !errors.Is(err, dedupe.ErrCorrupt) {
			t.Errorf("%s: claim %v, error %v, want ErrCorrupt", name, c, err)
		}
		if _, err := s.Lookup(ctx, k); !errors.Is(err, dedupe.ErrCorrupt) {
			t.Errorf("%s: lookup: %v, want ErrCorrupt", name, err)
		}
		if n := client.Exists(ctx, redisstore.Config{}.Name(k)).Val(); n != 1 {
			t.Errorf("%s: the record is gone", name)
		}
		if err := s.Forget(ctx, k); err != nil {
			t.Errorf("%s: forget: %v", name, err)
		}
		if err := mustClaim(t, s, k, options()).Rollback(ctx); err != nil {
			t.Error(err)
		}
	}
}

func TestRedisMissingRight(t *testing.T) {
	server := testserver.Start(t, testserver.Redis70)
	for _, rights := range [][]string{{"~*", "+@all", "-set"}, {"~*", "+@all", "-eval", "-evalsha"}, {"~other:*", "+@all"}} {
		s, k, o := newRedis(t, server.User(fmt.Sprintf("u%d", len(strings.Join(rights, ""))), rights...)), newKey(t), options()
		o.Lease = time.Second
		c, err := s.Claim(t.Context(), k, o)
		if err == nil {
			err = c.Commit(t.Context(), nil)
		}
		if err == nil || !strings.Contains(err.Error(), "idem:done:*") {
			t.Errorf("%v: error %v names no right", rights, err)
		}
	}
}
