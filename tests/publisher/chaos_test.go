package publisher_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// TestFaultEverythingAtOnce publishes from several publishers, each event from more
// than one of them and again until it is acknowledged, over links that lose, stall,
// cut, slow and refuse, to a server that is killed and restarted. In the end every
// event is in the stream once, and exactly one of its publishes returned Added.
func TestFaultEverythingAtOnce(t *testing.T) {
	length := 2 * time.Minute
	if testing.Short() {
		length = 8 * time.Second
	}
	for _, c := range []setup{{"idmp", testserver.Redis86, publisher.ModeIDMP}, {"latch", testserver.Redis70, publisher.ModeLatch}} {
		t.Run(c.name, func(t *testing.T) {
			s := testserver.Start(t, c.kind, testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always"))
			topic := testserver.Topic(t)
			const publishers = 4
			var links []*faultlink.Link
			var ps []*publisher.Publisher
			for i := range publishers {
				link := faultlink.New(t, s.Addr())
				link.LoseRate(0.05, uint64(i+1), "XADD", "EVAL", "EVALSHA")
				links = append(links, link)
				ps = append(ps, newPublisher(t, link.Client(), mode(c.mode), func(c *publisher.Config) { c.RetryFor = time.Second }))
			}
			ctx, stop := context.WithTimeout(t.Context(), length)
			defer stop()

			var faults sync.WaitGroup
			faults.Go(func() { trouble(ctx, s, links) })
			var workers sync.WaitGroup
			var next, added, attempts atomic.Int64
			for w := range 16 {
				workers.Go(func() {
					for ctx.Err() == nil {
						n := int(next.Add(1))
						// Twice, from two publishers at once, as a client does that has
						// timed out and asks another instance.
						var both sync.WaitGroup
						for k := range 2 {
							both.Go(func() {
								p := ps[(w+k)%publishers]
								for {
									attempts.Add(1)
									callCtx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
									receipts, err := p.Send(callCtx, topic, payment(n))
									cancel()
									if err == nil {
										if receipts[0].Verdict == publisher.VerdictAdded {
											added.Add(1)
										}
										return
									}
									if publisher.IsPermanent(err) || errors.Is(err, publisher.ErrClosed) {
										t.Errorf("event %d: %v", n, err)
										return
									}
								}
							})
						}
						both.Wait()
					}
				})
			}
			workers.Wait()
			faults.Wait()
			list := payloads(t, s.Client(), topic)
			events := int(next.Load())
			unique := slices.Compact(slices.Sorted(slices.Values(list)))
			if len(list) != events || len(unique) != events {
				t.Errorf("%d events, %d entries, %d different", events, len(list), len(unique))
			}
			// An event whose append was acknowledged to nobody is Duplicate for all.
			if a := int(added.Load()); a > events {
				t.Errorf("%d returned Added for one of %d events", a, events)
			}
			lost := 0
			for _, l := range links {
				lost += l.Stats().Lost
			}
			t.Logf("%d events, %d calls, %d replies lost, %d entries, %d returned Added", events, attempts.Load(), lost, len(list), added.Load())
		})
	}
}

// trouble makes one fault after the other until ctx ends, and mends the last.
func trouble(ctx context.Context, s *testserver.Server, links []*faultlink.Link) {
	random := rand.New(rand.NewPCG(7, 7))
	pause := func(d time.Duration) {
		select {
		case <-ctx.Done():
		case <-time.After(d):
		}
	}
	for ctx.Err() == nil {
		link := links[random.IntN(len(links))]
		switch random.IntN(6) {
		case 0:
			link.Stall(faultlink.Replies)
			pause(300 * time.Millisecond)
			link.Resume()
		case 1:
			link.Cut()
		case 2:
			link.Refuse()
			link.Cut()
			pause(200 * time.Millisecond)
			link.Accept()
		case 3:
			link.Slow(20*time.Millisecond, 20*time.Millisecond)
			pause(200 * time.Millisecond)
			link.Slow(0, 0)
		case 4:
			s.Freeze()
			pause(200 * time.Millisecond)
			s.Thaw()
		case 5:
			s.Kill()
			pause(100 * time.Millisecond)
			s.Restart()
		}
		pause(time.Duration(random.IntN(300)) * time.Millisecond)
	}
}
