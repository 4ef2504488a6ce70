package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The broker is down for the first publish, and the reply of the second is lost: one
// run, and the produced message is in the stream once.
func TestRedisProducedMessagePublishFails(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in, out := s.Client(), testserver.Topic(t), testserver.Topic(t)
		publishEvents(t, client, in, "pay:1", "pay:2")
		var runs atomic.Int64
		once := rig.NewOnce(t, newRedisStore(t, client))
		start(t, func(r *message.Router) {
			pub := &failing{Publisher: newPublisher(t, client), before: 1, after: 2}
			r.AddHandler(rig.HandlerName, in, newSubscriber(t, client), out, pub, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
				runs.Add(1)
				return []*message.Message{rig.NewMessage("", "receipt"), rig.NewMessage("", "mail")}, nil
			}))
		})
		settled(t, client, in)
		wantEntries(t, client, out, 4)
		if runs.Load() != 2 {
			t.Errorf("%d runs for 2 events", runs.Load())
		}
	})
}

// 100 handled entries come again, since somebody destroyed the group: no run, all acked.
func TestGroupRecreated(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in := s.Client(), testserver.Topic(t)
		var keys []string
		for n := range 100 {
			keys = append(keys, fmt.Sprint("pay:", n))
		}
		publishEvents(t, client, in, keys...)
		var runs atomic.Int64
		seen := &rig.Log{}
		once := rig.NewOnce(t, newRedisStore(t, client), seen.Into)
		run := func() {
			svc := start(t, func(r *message.Router) {
				r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), once.Consumer(func(*message.Message) error { runs.Add(1); return nil }))
			})
			settled(t, client, in)
			svc.close()
		}
		run()
		if err := client.XGroupDestroy(t.Context(), in, group).Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.XGroupCreate(t.Context(), in, group, "0").Err(); err != nil {
			t.Fatal(err)
		}
		run()
		if runs.Load() != 100 || seen.Count("skipped") != 100 {
			t.Errorf("%d runs, %d skipped", runs.Load(), seen.Count("skipped"))
		}
	})
}

// Fails, goes to the poison topic, comes back by Watermill's Requeuer inside the
// publisher's window: it is processed, and only then skipped.
func TestRequeue(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in, poison := s.Client(), testserver.Topic(t), testserver.Topic(t)
		publishEvents(t, client, in, "pay:1")
		var runs atomic.Int64
		once, pub := rig.NewOnce(t, newRedisStore(t, client)), newPublisher(t, client)
		start(t, func(r *message.Router) {
			queue, err := wmiddleware.PoisonQueue(pub, poison)
			if err != nil {
				t.Fatal(err)
			}
			r.AddMiddleware(queue)
			r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), once.Consumer(func(*message.Message) error {
				if runs.Add(1) < 3 {
					return errors.New("no funds")
				}
				return nil
			}))
		})
		rq, err := requeuer.NewRequeuer(requeuer.Config{
			Subscriber: newSubscriber(t, client), SubscribeTopic: poison, Publisher: newPublisher(t, client),
			GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return in, nil },
		}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		stopped := make(chan error, 1)
		go func() { stopped <- rq.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		}()
		testserver.Eventually(t, 20*time.Second, func() error {
			if n := runs.Load(); n < 3 {
				return fmt.Errorf("%d runs", n)
			}
			return errors.Join(isSettled(client, in), isSettled(client, poison))
		})
		wantEntries(t, client, in, 3)
		wantEntries(t, client, poison, 2)
		if runs.Load() != 3 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}

func TestTwoHandlersOneFails(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in := s.Client(), testserver.Topic(t)
		publishEvents(t, client, in, "pay:1")
		var charge, ship atomic.Int64
		once := rig.NewOnce(t, newRedisStore(t, client))
		start(t, func(r *message.Router) {
			// Both read by one group here: the message goes to both by one function.
			inner := func(name string, fn func() error) func(msg *message.Message) error {
				return func(msg *message.Message) error {
					_, err := once.Run(msg.Context(), msg, name, func(context.Context) ([]*message.Message, error) { return nil, fn() })
					return err
				}
			}
			first := inner("charge", func() error { charge.Add(1); return nil })
			second := inner("ship", func() error {
				if ship.Add(1) < 3 {
					return errors.New("no truck")
				}
				return nil
			})
			r.AddConsumerHandler("both", in, newSubscriber(t, client), func(msg *message.Message) error {
				return errors.Join(first(msg), second(msg))
			})
		})
		settled(t, client, in)
		if charge.Load() != 1 || ship.Load() != 3 {
			t.Errorf("charge ran %d times, ship %d times, want 1 and 3", charge.Load(), ship.Load())
		}
	})
}

// A handler six times slower than its lease, while duplicates arrive at other consumers,
// ours and watermill-redisstream's: one run, a bounded number of looks, no failure.
func TestHandlerSlowerThanItsLease(t *testing.T) {
	t.Parallel()
	for _, theirs := range []bool{false, true} {
		t.Run(fmt.Sprint("redisstream: ", theirs), func(t *testing.T) {
			t.Parallel()
			client, in := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
			if err := client.XGroupCreateMkStream(t.Context(), in, group, "0").Err(); err != nil {
				t.Fatal(err)
			}
			var runs, inside atomic.Int64
			running := make(chan struct{}, 1)
			seen, poison := &rig.Log{}, &rig.Published{}
			const lease = 3500 * time.Millisecond // renewed also when the machine stalls for 2 s
			slow := func(*message.Message) error {
				runs.Add(1)
				inside.Store(1)
				running <- struct{}{}
				timer := time.NewTimer(6 * lease)
				defer timer.Stop()
				<-timer.C
				inside.Store(0)
				return nil
			}
			for range 2 {
				once := rig.NewOnce(t, newRedisStore(t, client), seen.Into, func(c *middleware.Config) { c.Lease, c.Delay = lease, 200*time.Millisecond })
				var sub message.Subscriber = newSubscriber(t, client, func(c *subscriber.Config) { c.MaxInFlight = 2 })
				if theirs {
					var err error
					if sub, err = redisstream.NewSubscriber(redisstream.SubscriberConfig{
						Client: client, Unmarshaller: foreign{}, ConsumerGroup: group, BlockTime: 50 * time.Millisecond, NackResendSleep: redisstream.NoSleep,
					}, nil); err != nil {
						t.Fatal(err)
					}
				}
				start(t, func(r *message.Router) {
					r.AddMiddleware(documented(poison)...)
					r.AddConsumerHandler(rig.HandlerName, in, noClose{sub}, once.Consumer(slow))
				})
			}
			publishForeign(t, client, in, "pay:1")
			<-running
			const duplicates = 3 // redisstream's busy consumer reads one of them ahead
			for range duplicates {
				publishForeign(t, client, in, "pay:1")
			}
			settled(t, client, in)
			if runs.Load() != 1 || inside.Load() != 0 || seen.Count("skipped") != duplicates || seen.Count("failed") != 0 || len(poison.Messages()) != 0 {
				t.Errorf("%d runs, told %v, %d poisoned", runs.Load(), seen.Events, len(poison.Messages()))
			}
			if n := seen.Count("delayed"); n < 2 || n > 1000 {
				t.Errorf("%d looks in %v at a delay of 200 ms", n, 6*lease)
			}
		})
	}
}

// noClose keeps a Router from closing the client behind redisstream's subscriber.
type noClose struct{ message.Subscriber }

func (noClose) Close() error { return nil }

// foreign reads the entries of publishForeign.
type foreign struct{}

func (foreign) Unmarshal(values map[string]any) (*message.Message, error) {
	msg := rig.NewMessage(fmt.Sprint(values["idempotency_key"]), "")
	return msg, nil
}

// The link to the store is cut under a running handler. It ends by its own clock before
// another may start; its result is refused.
func TestCutOffFromTheStore(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis70)
	client, in := s.Client(), testserver.Topic(t)
	link := faultlink.New(t, s.Addr())
	const lease = 10 * time.Second // ends here a second before it ends there
	if err := client.XGroupCreateMkStream(t.Context(), in, group, "0").Err(); err != nil {
		t.Fatal(err)
	}
	var ended, began atomic.Int64
	var cause error
	var mu sync.Mutex
	running := make(chan struct{})
	seen := &rig.Log{}
	first := rig.NewOnce(t, newRedisStore(t, link.Client()), seen.Into, func(c *middleware.Config) { c.Lease, c.StoreTimeout = lease, 500*time.Millisecond })
	start(t, func(r *message.Router) {
		r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), first.Consumer(func(msg *message.Message) error {
			select {
			case <-running:
				return nil // the redelivery, should it come here
			default:
			}
			close(running)
			<-msg.Context().Done()
			mu.Lock()
			cause = context.Cause(msg.Context())
			mu.Unlock()
			ended.Store(time.Now().UnixNano())
			return nil // as though it had succeeded
		}))
	})
	publishForeign(t, client, in, "pay:1")
	<-running
	link.Stall(faultlink.Both)
	second := rig.NewOnce(t, newRedisStore(t, client), func(c *middleware.Config) { c.Lease = lease })
	start(t, func(r *message.Router) {
		// A group of its own has the event at once; to the store it is the same handler.
		sub := newSubscriber(t, client, func(c *subscriber.Config) { c.Group = "takes-over" })
		r.AddConsumerHandler(rig.HandlerName, in, sub, second.Consumer(func(*message.Message) error {
			began.CompareAndSwap(0, time.Now().UnixNano())
			return nil
		}))
	})
	testserver.Eventually(t, 30*time.Second, func() error {
		if began.Load() == 0 {
			return errors.New("nobody took over")
		}
		if seen.Count("lease lost") == 0 {
			return errors.New("the first one does not know")
		}
		return nil
	})
	mu.Lock()
	if !errors.Is(cause, dedupe.ErrLeaseLost) {
		t.Errorf("cause %v, want ErrLeaseLost", cause)
	}
	mu.Unlock()
	if ended.Load() == 0 || ended.Load() > began.Load() {
		t.Errorf("the second run began %v before the first one's context ended", time.Duration(ended.Load()-began.Load()))
	}
	link.Heal()
	settled(t, client, in)
	if seen.Count("handled") != 0 && seen.Count("lease lost") == 0 {
		t.Errorf("told %v", seen.Events)
	}
}

// The store is away, with Retry and PoisonQueue around: nothing is acknowledged,
// nothing poisoned, no delivery counted; it goes on by itself.
func TestStoreAwayForAWhile(t *testing.T) {
	t.Parallel()
	client, in := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	storage := testserver.Start(t, testserver.Redis70, testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always"))
	var keys []string
	for n := range 20 {
		keys = append(keys, fmt.Sprint("pay:", n))
	}
	publishEvents(t, client, in, keys...)
	poison, seen := &rig.Published{}, &rig.Log{}
	once := rig.NewOnce(t, newRedisStore(t, storage.Client()), seen.Into, func(c *middleware.Config) {
		c.Delay, c.StoreTimeout = 200*time.Millisecond, 4*time.Second
	})
	var runs atomic.Int64
	var counts sync.Map
	storage.Kill()
	start(t, func(r *message.Router) {
		r.AddMiddleware(documented(poison)...)
		r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client, func(c *subscriber.Config) { c.MaxInFlight, c.MaxDeliveries = 4, 2 }), once.Consumer(func(msg *message.Message) error {
			if d, ok := subscriber.DeliveryOf(msg); ok {
				counts.Store(d.Count(), true)
			}
			runs.Add(1)
			return nil
		}))
	})
	testserver.Eventually(t, time.Minute, func() error {
		if n := seen.Count("delayed"); n < 8 {
			return fmt.Errorf("%d delays", n)
		}
		return nil
	})
	if runs.Load() != 0 || len(poison.Messages()) != 0 {
		t.Errorf("%d runs, %d poisoned without the store", runs.Load(), len(poison.Messages()))
	}
	if dead := entries(t, client, subscriber.DeadLetterTopic(in)); dead != 0 {
		t.Errorf("%d dead letters", dead)
	}
	storage.Restart()
	settled(t, client, in)
	if runs.Load() != 20 {
		t.Errorf("%d runs for 20 events", runs.Load())
	}
	counts.Range(func(count, _ any) bool {
		if count != 1 {
			t.Errorf("an outage counted as a delivery: count %v", count)
		}
		return true
	})
}

// A conflict goes to the dead letters at once, with the reason, and holds nothing up.
func TestConflictBecomesADeadLetter(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in := s.Client(), testserver.Topic(t)
		for _, amount := range []string{"1", "2"} {
			p, err := publisher.New(publisher.Config{Client: client, ProducerID: "producer-" + amount}, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Publish(in, rig.NewMessage("pay:1", `{"amount":`+amount+`}`)); err != nil {
				t.Fatal(err)
			}
			_ = p.Close()
		}
		publishEvents(t, client, in, "pay:2")
		var runs atomic.Int64
		once := rig.NewOnce(t, newRedisStore(t, client))
		start(t, func(r *message.Router) {
			r.AddMiddleware(documented(&rig.Published{})...)
			r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), once.Consumer(func(*message.Message) error { runs.Add(1); return nil }))
		})
		settled(t, client, in)
		dead, err := client.XRange(t.Context(), subscriber.DeadLetterTopic(in), "-", "+").Result()
		if err != nil || len(dead) != 1 || dead[0].Values["_dead_reason"] != "conflict" {
			t.Errorf("dead letters %v, %v", dead, err)
		}
		if runs.Load() != 2 {
			t.Errorf("%d runs", runs.Load())
		}
	})
}
