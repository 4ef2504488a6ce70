package dedupe_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A failover by Sentinel: what was replicated is there, a claim that was not is lost and
// its owner hears of it, and nothing hangs.
func TestRedisSentinelFailover(t *testing.T) {
	t.Parallel()
	sentinel := testserver.StartSentinel(t, testserver.Redis86)
	client := sentinel.FailoverClient()
	s := newRedis(t, client)
	done, kept, lost := newKey(t), newKey(t), newKey(t)
	outputs := [][]byte{[]byte("receipt")}
	if err := mustClaim(t, s, done, options()).Commit(t.Context(), outputs); err != nil {
		t.Fatal(err)
	}
	keptClaim := mustClaim(t, s, kept, options())
	var replica *testserver.Server
	for _, server := range sentinel.Servers() {
		if server.Addr() != sentinel.Primary().Addr() {
			replica = server
		}
	}
	testserver.Eventually(t, 10*time.Second, func() error {
		return replica.Client().Get(context.Background(), redisstore.Config{}.Name(kept)).Err()
	})
	// What comes now is not replicated.
	replica.Freeze()
	if err := sentinel.Primary().Client().ClientKillByFilter(t.Context(), "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Lease = 20 * time.Second
	lostClaim := mustClaim(t, s, lost, o)
	old := sentinel.KillPrimary()
	replica.Thaw()
	// Asked while there is no primary: it waits for the next one.
	asked := make(chan error, 1)
	go func() {
		c, err := s.Claim(context.Background(), newKey(t), options())
		if err == nil {
			err = c.Commit(context.Background(), nil)
		}
		asked <- err
	}()
	sentinel.WaitPromotion(old, 60*time.Second)
	if err := <-asked; err != nil {
		t.Errorf("asked meanwhile: %v", err)
	}
	if c := mustAsk(t, s, done, options()); c.State() != dedupe.StateDone || len(c.Outputs()) != 1 || string(c.Outputs()[0]) != "receipt" {
		t.Errorf("what was recorded and replicated is %v with %q", c.State(), c.Outputs())
	}
	// A renewal tells.
	select {
	case <-lostClaim.Context().Done():
		if err := context.Cause(lostClaim.Context()); !errors.Is(err, dedupe.ErrLeaseLost) {
			t.Errorf("the lost claim's context ended by %v", err)
		}
	case <-time.After(o.Lease + 5*time.Second):
		t.Error("the owner of the lost claim is not told")
	}
	if err := lostClaim.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrLeaseLost) {
		t.Errorf("commit of the lost claim: %v, want ErrLeaseLost", err)
	}
	if err := mustClaim(t, s, lost, options()).Rollback(t.Context()); err != nil {
		t.Error(err)
	}
	if err := keptClaim.Commit(t.Context(), nil); err != nil {
		t.Errorf("commit of the claim that was replicated: %v", err)
	}
}

// A slot on the move: claims, commits, rollbacks and settlings of keys that have moved
// already and of others.
func TestRedisSlotMigrates(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			cluster := testserver.StartCluster(t, kind)
			client := cluster.ClusterClient(func(o *redis.ClusterOptions) {
				o.MaxRedirects, o.ReadTimeout, o.WriteTimeout = 3, 30*time.Second, 30*time.Second
			})
			s := newRedis(t, client)
			ctx := t.Context()
			for _, claimed := range []string{"before", "meanwhile"} {
				for _, moved := range []bool{false, true} {
					k, name := newKey(t), fmt.Sprintf("claimed %s, moved %v", claimed, moved)
					slot, from, err := cluster.Slot(ctx, redisstore.Config{}.Name(k))
					if err != nil {
						t.Fatal(err)
					}
					var c dedupe.Claim
					if claimed == "before" {
						c = mustClaim(t, s, k, options())
					}
					m, err := cluster.BeginMigration(ctx, slot, from, (from+1)%3)
					if err != nil {
						t.Fatal(err)
					}
					if c == nil {
						c = mustClaim(t, s, k, options())
					}
					if moved {
						if err := m.Move(ctx, redisstore.Config{}.Name(k)); err != nil {
							t.Fatal(err)
						}
					}
					if st := mustAsk(t, s, k, options()).State(); st != dedupe.StateInProgress {
						t.Errorf("%s: another got %v", name, st)
					}
					if err := c.Commit(ctx, [][]byte{{1}}); err != nil {
						t.Errorf("%s: commit: %v", name, err)
					}
					if d := mustAsk(t, s, k, options()); d.State() != dedupe.StateDone || len(d.Outputs()) != 1 {
						t.Errorf("%s: %v with %d outputs", name, d.State(), len(d.Outputs()))
					}
					if err := c.Settle(ctx); err != nil {
						t.Errorf("%s: settle: %v", name, err)
					}
					if err := m.Finish(ctx); err != nil {
						t.Fatal(err)
					}
					if d := mustAsk(t, s, k, options()); d.State() != dedupe.StateDone || len(d.Outputs()) != 0 {
						t.Errorf("%s: %v with %d outputs after the move", name, d.State(), len(d.Outputs()))
					}
				}
			}
		})
	}
}
