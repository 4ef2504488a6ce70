package publisher_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// clusters has each mode on a cluster once.
func clusters() []setup {
	return []setup{
		{"idmp", testserver.Redis86, publisher.ModeIDMP},
		{"latch", testserver.Redis86, publisher.ModeLatch},
		{"latch-7.0", testserver.Redis70, publisher.ModeLatch},
		{"latch-valkey", testserver.Valkey91, publisher.ModeLatch},
	}
}

// There is no CROSSSLOT on a cluster, for any name of a topic.
func TestClusterTopics(t *testing.T) {
	t.Parallel()
	for _, c := range clusters() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			client := testserver.StartCluster(t, c.kind).ClusterClient()
			p := newPublisher(t, client, mode(c.mode))
			for _, topic := range []string{"orders", "x:{eu}:y", "a{}b", "foo}bar", "{", "}{", "a b", "{a}", "{a}{b}", "ü", "\x00\xff"} {
				msgs := payments(0, 20)
				for i, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate} {
					for _, r := range mustPublish(t, p, topic, payments(0, 20)...) {
						wantVerdict(t, r, want)
					}
					_ = i
				}
				wantEntries(t, client, topic, len(msgs))
				if _, err := p.Check(t.Context(), topic); err != nil {
					t.Errorf("Check of %q: %v", topic, err)
				}
				if n, err := client.Exists(t.Context(), rediskey.LayoutKey(topic)).Result(); err != nil || n != 1 {
					t.Errorf("no layout record of %q: %v", topic, err)
				}
			}
		})
	}
}

// The slot moves to another node and back while there are
// publishers. Nothing is lost, nothing doubled.
func TestSlotMigratesWhilePublishing(t *testing.T) {
	t.Parallel()
	for _, c := range clusters() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := testserver.StartCluster(t, c.kind)
			client := cluster.ClusterClient()
			const topic = "orders"
			p := newPublisher(t, client, mode(c.mode), func(c *publisher.Config) { c.RetryFor = 20 * time.Second })
			mustPublish(t, p, topic, payment(0))

			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var wg sync.WaitGroup
			var published atomic.Int64
			published.Store(1)
			var in sync.Map
			in.Store(string(payment(0).Payload), true)
			for g := range 8 {
				wg.Go(func() {
					for n := 1; ctx.Err() == nil; n++ {
						msgs := payments(g*1_000_000+n*10, g*1_000_000+n*10+5)
						if err := p.Publish(topic, msgs...); err != nil {
							t.Error(err)
							return
						}
						for _, msg := range msgs {
							in.Store(string(msg.Payload), true)
						}
						published.Add(5)
						select { // a bounded number of latches, so that the move ends
						case <-ctx.Done():
						case <-time.After(5 * time.Millisecond):
						}
					}
				})
			}
			moved := 0
			for range 2 {
				number, from, err := cluster.Slot(ctx, topic)
				if err != nil {
					t.Fatal(err)
				}
				before := published.Load()
				m, err := cluster.BeginMigration(ctx, number, from, (from+1)%3)
				if err != nil {
					t.Fatal(err)
				}
				// The stream goes first, and the slot stays half moved for a while: those
				// who look for the stream's side keys get ASK and TRYAGAIN.
				if err := m.Move(ctx, topic); err != nil {
					t.Fatal(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(300 * time.Millisecond):
				}
				if err := m.Finish(ctx); err != nil {
					t.Fatal(err)
				}
				moved++
				testserver.Eventually(t, 15*time.Second, func() error {
					if published.Load() < before+100 {
						return fmt.Errorf("only %d published since the move", published.Load()-before)
					}
					return nil
				})
			}
			stop()
			wg.Wait()
			stored := payloads(t, client, topic)
			unique := slices.Compact(slices.Sorted(slices.Values(stored)))
			if len(stored) != len(unique) || int64(len(stored)) != published.Load() {
				t.Errorf("%d published, %d entries, %d different", published.Load(), len(stored), len(unique))
			}
			for _, payload := range unique {
				if _, ok := in.Load(payload); !ok {
					t.Errorf("%s is there and was not acknowledged", payload)
				}
			}
			t.Logf("%d published over %d moves", published.Load(), moved)
		})
	}
}
