package dedupe_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// handle delivers an event, as often as it must until it was handled, and returns the
// number of runs.
func handle(t *testing.T, store dedupe.Store, during func()) (runs int) {
	t.Helper()
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "payments", Retention: time.Hour, Delay: 10 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = once.Close(context.WithoutCancel(t.Context())) }()
	key := testserver.Topic(t)
	for range 2 {
		for end := time.Now().Add(time.Minute); ; {
			msg := message.NewMessage("1", nil)
			msg.Metadata.Set(eventkey.MetadataKey, key)
			_, err := once.Run(t.Context(), msg, "charge", func(context.Context) ([]*message.Message, error) {
				if runs++; runs == 1 {
					during()
				}
				return nil, nil
			})
			if err == nil {
				break
			}
			if time.Now().After(end) {
				t.Fatal(err)
			}
		}
	}
	return runs
}

// An outage as long as a usual failover begins while a handler runs: its record is made,
// and it does not run again.
func TestOutageOfSixSecondsDuringTheCommit(t *testing.T) {
	t.Parallel()
	link := faultlink.New(t, testserver.Shared(t, testserver.Redis86).Addr())
	runs := handle(t, newRedis(t, link.Client()), func() {
		link.Refuse()
		link.Cut()
		time.AfterFunc(6*time.Second, link.Accept)
	})
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}

// A record that takes longer to send than its lease: the claim is renewed meanwhile.
func TestRecordThatTakesLongerThanTheLease(t *testing.T) {
	t.Parallel()
	link := faultlink.New(t, testserver.Shared(t, testserver.Redis70).Addr())
	client, k, o := link.Client(), newKey(t), options()
	o.Lease = 8 * time.Second
	var renewals, records atomic.Int64
	client.AddHook(scriptHook(func(cmd redis.Cmder, send func() error) error {
		switch {
		case !isRecord(cmd):
			renewals.Add(1)
		case records.Add(1) == 1:
			<-time.After(2 * o.Lease)
		}
		return send()
	}))
	c := mustClaim(t, newRedis(t, client), k, o)
	if err := c.Commit(t.Context(), [][]byte{[]byte("large")}); err != nil || renewals.Load() < 2 || records.Load() == 0 {
		t.Errorf("commit after %d renewals: %v", renewals.Load(), err)
	}
}

// A renewal may come after the commit: it does not take the claim for lost.
func TestRenewalBehindTheCommit(t *testing.T) {
	t.Parallel()
	client, k, o := testserver.Shared(t, testserver.Redis86).Client(), newKey(t), options()
	o.Lease = 8 * time.Second
	var delayed atomic.Int64
	client.AddHook(scriptHook(func(cmd redis.Cmder, send func() error) error {
		err := send()
		if err == nil && isRecord(cmd) {
			delayed.Add(1)
			<-time.After(2 * o.Lease) // the reply is on its way
		}
		return err
	}))
	if err := mustClaim(t, newRedis(t, client), k, o).Commit(t.Context(), nil); err != nil || delayed.Load() != 1 {
		t.Errorf("commit: %v, %d replies were late", err, delayed.Load())
	}
}

// isRecord tells the script that makes a record: verb, script, 1, key, and four more.
func isRecord(cmd redis.Cmder) bool { return len(cmd.Args()) == 8 }

// scriptHook is called in place of each script and each SET, with what sends it.
type scriptHook func(cmd redis.Cmder, send func() error) error

func (scriptHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h scriptHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		return h(cmds[0], func() error { return next(ctx, cmds) })
	}
}
func (h scriptHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		return h(cmd, func() error { return next(ctx, cmd) })
	}
}

// replyError is one of the server's.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

// Each answer that means "not now" is waited out by every step, three times over.
func TestNotNowOnEveryStep(t *testing.T) {
	t.Parallel()
	for _, text := range faultlink.NotNow {
		refusal := replyError(text)
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			client := testserver.Shared(t, testserver.Redis86).Client(func(o *redis.Options) { o.MaxRetries = -1 })
			var left atomic.Int64
			client.AddHook(scriptHook(func(cmd redis.Cmder, send func() error) error {
				if left.Add(-1) >= 0 {
					cmd.SetErr(refusal)
					return refusal
				}
				return send()
			}))
			s, ctx := newRedis(t, client), t.Context()
			step := func(what string, do func() error) {
				t.Helper()
				left.Store(3)
				if err := do(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
				if n := left.Swap(0); n > 0 {
					t.Errorf("%s: it was not sent again", what)
				}
			}
			k, o := newKey(t), options()
			o.Lease = 8 * time.Second
			var c dedupe.Claim
			step("claim", func() (err error) { c, err = s.Claim(ctx, k, o); return err })
			if c == nil {
				t.FailNow()
			}
			step("renewal", func() error {
				<-time.After(2 * o.Lease)
				return context.Cause(c.Context())
			})
			step("commit", func() error { return c.Commit(ctx, [][]byte{[]byte("out")}) })
			step("lookup", func() error { _, err := s.Lookup(ctx, k); return err })
			step("settle", func() error { return c.Settle(ctx) })
			if d := mustAsk(t, s, k, options()); d.State() != dedupe.StateDone || len(d.Outputs()) != 0 {
				t.Errorf("%v with %d outputs", d.State(), len(d.Outputs()))
			}
			step("forget", func() error { return s.Forget(ctx, k) })
			c = mustClaim(t, s, k, options())
			step("rollback", func() error { return c.Rollback(ctx) })
			mustClaim(t, s, k, options())
		})
	}
}

// After the run hardly any answer is final: a right that is missing for a moment, or what
// nobody has heard of, is no reason to do it all again.
func TestCommitOutlastsWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	for _, refusal := range []replyError{"NOPERM User app has no permissions to run the 'evalsha' command", "ERR upstream is sad", "NOAUTH Authentication required."} {
		client := testserver.Shared(t, testserver.Redis86).Client()
		c := mustClaim(t, newRedis(t, client), newKey(t), options())
		var left atomic.Int64
		left.Store(5)
		client.AddHook(scriptHook(func(_ redis.Cmder, send func() error) error {
			if left.Add(-1) >= 0 {
				return refusal
			}
			return send()
		}))
		if err := c.Commit(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
}

// The first try has made the record, and its reply was lost; what comes after it does not
// say that nothing was recorded.
func TestCommitOfUnknownOutcomeIsNotRefused(t *testing.T) {
	t.Parallel()
	link := faultlink.New(t, testserver.Shared(t, testserver.Redis86).Addr())
	client, k, o := link.Client(), newKey(t), options()
	o.Lease = 2 * time.Second
	s := newRedis(t, client)
	c := mustClaim(t, s, k, o)
	link.LoseNext(1, "EVALSHA", "EVAL")
	var sent atomic.Bool
	client.AddHook(scriptHook(func(_ redis.Cmder, send func() error) error {
		if link.Stats().Lost > 0 && sent.Load() {
			return replyError("NOPERM User app has no permissions to run the 'evalsha' command")
		}
		sent.Store(true)
		return send()
	}))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := c.Commit(ctx, nil)
	for _, bad := range []error{nil, dedupe.ErrRefused, dedupe.ErrLeaseLost, dedupe.ErrTooLarge, dedupe.ErrAborted} {
		if errors.Is(err, bad) {
			t.Errorf("error %v matches %v", err, bad)
		}
	}
	if st := mustAsk(t, newRedis(t, link.Client()), k, options()).State(); st != dedupe.StateDone {
		t.Errorf("state %v", st)
	}
}

// A server that can't save refuses writes for two seconds while a handler runs: one run.
func TestServerCannotSaveWhileAHandlerRuns(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			admin := server.Client()
			runs := handle(t, newRedis(t, server.Client()), func() {
				refuseWrites(t, server, admin)
				time.AfterFunc(2*time.Second, func() {
					_ = admin.ConfigSet(context.Background(), "stop-writes-on-bgsave-error", "no")
				})
			})
			if runs != 1 {
				t.Errorf("%d runs", runs)
			}
		})
	}
}

// refuseWrites makes a snapshot fail, after which the server refuses writes: MISCONF.
func refuseWrites(t *testing.T, server *testserver.Server, admin *redis.Client) {
	t.Helper()
	ctx := t.Context()
	// What is to be replaced is a folder that is not empty.
	if err := os.MkdirAll(filepath.Join(server.Dir(), "dump.rdb", "full"), 0o755); err != nil {
		t.Error(err)
	}
	for name, value := range map[string]string{"save": "900 1000000", "stop-writes-on-bgsave-error": "yes"} {
		if err := admin.ConfigSet(ctx, name, value).Err(); err != nil {
			t.Error(err)
		}
	}
	if err := admin.BgSave(ctx).Err(); err != nil {
		t.Error(err)
	}
	testserver.Eventually(t, 20*time.Second, func() error {
		err := admin.Set(ctx, "probe", 1, 0).Err()
		if redis.HasErrorPrefix(err, "MISCONF") {
			return nil
		}
		return fmt.Errorf("SET: %v, want MISCONF", err) //nolint:errorlint // it may be nil
	})
}

// A full server refuses claims, so that no handler runs, but takes the records of those
// that have run, renews their claims, and gives up what is given up.
func TestFullServerTakesRecords(t *testing.T) {
	t.Parallel()
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			client := server.Client(testserver.Patient)
			s, o := newRedis(t, client), options()
			o.Lease = 8 * time.Second
			recorded, k := mustClaim(t, s, newKey(t), o), newKey(t)
			rolledBack := mustClaim(t, s, k, options())
			if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			<-time.After(2 * o.Lease)
			if err := context.Cause(recorded.Context()); err != nil {
				t.Errorf("renewal: %v", err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := recorded.Commit(ctx, [][]byte{bytes.Repeat([]byte("x"), 1000)}); err != nil {
				t.Errorf("commit: %v", err)
			}
			if err := recorded.Settle(t.Context()); err != nil {
				t.Errorf("settle: %v", err)
			}
			if err := rolledBack.Rollback(t.Context()); err != nil {
				t.Errorf("rollback: %v", err)
			}
			o.Lease = 100 * time.Millisecond
			if c, err := s.Claim(t.Context(), newKey(t), o); !redis.HasErrorPrefix(err, "OOM") {
				t.Errorf("claim: %v, %v", c, err)
			}
		})
	}
}
