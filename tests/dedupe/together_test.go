package dedupe_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// roundTrips counts what goes to the server.
type roundTrips struct{ alone, together, commands atomic.Int64 }

func (*roundTrips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *roundTrips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.alone.Add(1)
		r.commands.Add(1)
		return next(ctx, cmd)
	}
}

func (r *roundTrips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.together.Add(1)
		r.commands.Add(int64(len(cmds)))
		return next(ctx, cmds)
	}
}

// handleTwice has every event come to two of 64 handlers, and returns how often each ran.
func handleTwice(t *testing.T, s dedupe.Store, keys []dedupe.Key) []atomic.Int64 {
	runs := make([]atomic.Int64, len(keys))
	events := make(chan int)
	var handlers sync.WaitGroup
	for range 64 {
		handlers.Go(func() {
			for n := range events {
				for done := false; !done; {
					c, err := s.Claim(t.Context(), keys[n], options())
					if err != nil {
						t.Error(err)
						break
					}
					done = c.State() == dedupe.StateDone
					if c.State() == dedupe.StateClaimed {
						runs[n].Add(1)
						if err := c.Commit(t.Context(), nil); err != nil {
							t.Error(err)
						}
					}
				}
			}
		})
	}
	for range 2 {
		for n := range keys {
			events <- n
		}
	}
	close(events)
	handlers.Wait()
	return runs
}

func newKeys(t *testing.T, n int) []dedupe.Key {
	keys := make([]dedupe.Key, n)
	for i := range keys {
		keys[i] = newKey(t)
		keys[i].Event = fmt.Sprint(keys[i].Event, "-", i)
	}
	return keys
}

// Handlers that run at the same time share pipelines, and each event is handled once, also
// when one reply in fifty gets lost.
func TestManyHandlersAtOnce(t *testing.T) {
	t.Parallel()
	server := testserver.Shared(t, testserver.Redis86)
	for name, rate := range map[string]float64{"as it should": 0, "over a lossy link": 0.02} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			link := faultlink.New(t, server.Addr())
			link.LoseRate(rate, 7, "SET", "EVALSHA", "EVAL")
			client := link.Client()
			var trips roundTrips
			client.AddHook(&trips)
			runs := handleTwice(t, newRedis(t, client), newKeys(t, 3000))
			for n := range runs {
				if runs := runs[n].Load(); runs != 1 {
					t.Fatalf("event %d was handled %d times", n, runs)
				}
			}
			if all, sent := trips.commands.Load(), trips.alone.Load()+trips.together.Load(); rate == 0 && sent > all/2 {
				t.Errorf("%d commands went out in %d parts", all, sent)
			}
		})
	}
}

// On a cluster too, while slots move.
func TestManyHandlersAtOnceWhileSlotsMove(t *testing.T) {
	t.Parallel()
	cluster := testserver.StartCluster(t, testserver.Redis86)
	client := cluster.ClusterClient()
	var trips roundTrips
	client.OnNewNode(func(n *redis.Client) { n.AddHook(&trips) })
	keys := newKeys(t, 4000)
	stop, moved := make(chan struct{}), make(chan struct{})
	var moves atomic.Int64
	go func() {
		defer close(moved)
		for n := 0; ; n = (n + 97) % len(keys) {
			select {
			case <-stop:
				return
			default:
			}
			slot, from, err := cluster.Slot(t.Context(), redisstore.Config{}.Name(keys[n]))
			if err == nil {
				err = cluster.MigrateSlot(t.Context(), slot, from, (from+1)%len(cluster.Nodes()))
			}
			if err != nil {
				t.Error(err)
				return
			}
			moves.Add(1)
		}
	}()
	runs := handleTwice(t, newRedis(t, client), keys)
	close(stop)
	<-moved
	for n := range runs {
		if runs := runs[n].Load(); runs != 1 {
			t.Fatalf("event %d was handled %d times", n, runs)
		}
	}
	if trips.together.Load() == 0 || moves.Load() == 0 {
		t.Errorf("%d pipelines, %d slots were moved", trips.together.Load(), moves.Load())
	}
}

// A slot is half moved to a master that hangs: handlers of its events wait, and nobody else,
// also not those of the master that it comes from.
func TestManyHandlersWhileASlotIsHalfMovedToAMasterThatHangs(t *testing.T) {
	t.Parallel()
	cluster := testserver.StartCluster(t, testserver.Redis86, testserver.Set("cluster-require-full-coverage", "no"), testserver.Set("cluster-node-timeout", "60000"))
	s := newRedis(t, cluster.ClusterClient())
	var keys []dedupe.Key // of the first master
	for _, k := range newKeys(t, 300) {
		if _, node, err := cluster.Slot(t.Context(), redisstore.Config{}.Name(k)); err == nil && node == 0 {
			keys = append(keys, k)
		}
	}
	moving, others := keys[0], keys[1:]
	slot, _, err := cluster.Slot(t.Context(), redisstore.Config{}.Name(moving))
	if err != nil {
		t.Fatal(err)
	}
	// Then the client knows the cluster, and the events share pipelines.
	if err := mustClaim(t, s, keys[1], options()).Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := cluster.BeginMigration(t.Context(), slot, 0, 1); err != nil {
		t.Fatal(err)
	}
	cluster.Nodes()[1].Freeze()
	defer cluster.Nodes()[1].Thaw()

	ctx, stop := context.WithCancel(t.Context())
	var waiting, handlers sync.WaitGroup
	for range 16 {
		waiting.Go(func() {
			for ctx.Err() == nil {
				_, _ = s.Claim(ctx, moving, options())
			}
		})
	}
	var handled atomic.Int64
	for n := range 16 {
		handlers.Go(func() {
			for i := n; i < len(others); i += 16 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				c, err := s.Claim(ctx, others[i], options())
				if err == nil {
					err = c.Commit(ctx, nil)
				}
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
				handled.Add(1)
			}
		})
	}
	handlers.Wait()
	stop()
	waiting.Wait()
	if n := int(handled.Load()); n != len(others) {
		t.Errorf("%d of %d events were handled", n, len(others))
	}
}
