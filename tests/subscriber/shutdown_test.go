package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A Router ends with three messages in hand: each is handled once, and nothing is left.
func TestShutdownWithWorkInHand(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	ends := map[string]func(*message.Router, context.CancelFunc) error{
		"Router.Close":          func(r *message.Router, _ context.CancelFunc) error { return r.Close() },
		"context of Router.Run": func(_ *message.Router, cancel context.CancelFunc) error { cancel(); return nil },
	}
	for name, end := range ends {
		t.Run(name, func(t *testing.T) {
			client, topic := s.As(t).Client(), testserver.Topic(t)
			publish(t, client, topic, "one", "two", "three")
			pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing", Key: eventkey.MessageUUID()}, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer pub.Close()

			var mu sync.Mutex
			handled := map[string]int{}
			inSecond := make(chan struct{})
			var once sync.Once
			run := func(ctx context.Context, slow bool) (*message.Router, chan error) {
				router, err := message.NewRouter(message.RouterConfig{}, observe.NewLogger(t))
				if err != nil {
					t.Fatal(err)
				}
				poison, err := middleware.PoisonQueue(pub.Shared(), topic+"-poison")
				if err != nil {
					t.Fatal(err)
				}
				router.AddMiddleware(poison)
				cfg := quick(client)
				cfg.CloseTimeout = 10 * time.Second
				sub, err := subscriber.New(cfg, observe.NewLogger(t))
				if err != nil {
					t.Fatal(err)
				}
				router.AddHandler("charge", topic, sub, topic+"-out", pub.Shared(), func(msg *message.Message) ([]*message.Message, error) {
					if slow && string(msg.Payload) == "two" {
						once.Do(func() { close(inSecond) })
						// As a transaction would: it rolls back when its context ends.
						select {
						case <-time.After(500 * time.Millisecond):
						case <-msg.Context().Done():
							return nil, context.Cause(msg.Context())
						}
					}
					mu.Lock()
					handled[string(msg.Payload)]++
					mu.Unlock()
					out := message.NewMessage(watermill.NewUUID(), msg.Payload)
					return []*message.Message{out}, nil
				})
				done := make(chan error, 1)
				go func() { done <- router.Run(ctx) }()
				return router, done
			}

			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			router, done := run(ctx, true)
			<-inSecond
			if err := end(router, cancel); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			// What was not handed out is with the hand-back consumer, and nothing is left
			// that somebody would have to wait for.
			mu.Lock()
			first := len(handled)
			mu.Unlock()
			pending, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{
				Stream: topic, Group: "billing", Start: "-", End: "+", Count: 10,
			}).Result()
			if err != nil {
				t.Fatal(err)
			}
			if len(pending) != 3-first {
				t.Errorf("%d handled, but %d pending after the shutdown: %+v", first, len(pending), pending)
			}
			for _, p := range pending {
				if p.Consumer != "handback" || p.RetryCount != 1 {
					t.Errorf("pending after the shutdown: %+v", p)
				}
			}
			if first < 2 {
				t.Errorf("the message in hand was not finished: %v", handled)
			}

			ctx, cancel = context.WithCancel(context.Background())
			defer cancel()
			router, done = run(ctx, false)
			testserver.Eventually(t, within, func() error {
				if n, _ := client.XLen(context.Background(), topic+"-out").Result(); n < 3 {
					return fmt.Errorf("%d messages produced", n)
				}
				return nil
			})
			wantPending(t, client, topic, "billing", 0)
			if err := router.Close(); err != nil {
				t.Error(err)
			}
			if err := <-done; err != nil {
				t.Error(err)
			}
			for _, p := range []string{"one", "two", "three"} {
				if handled[p] != 1 {
					t.Errorf("%s was handled %d times", p, handled[p])
				}
			}
			if n, _ := client.XLen(context.Background(), topic+"-poison").Result(); n != 0 {
				t.Errorf("%d messages poisoned", n)
			}
			if n, _ := client.XLen(context.Background(), topic+"-out").Result(); n != 3 {
				t.Errorf("%d messages produced", n)
			}
		})
	}
}

// A handler that does not listen: its message is not handed back, since another consumer
// would start on it at once; it comes again after MinIdle, uncounted.
func TestCloseTimeoutEndsContext(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	publish(t, client, topic, "stuck", "next")
	sub := newSubscriber(t, client, func(c *subscriber.Config) { c.CloseTimeout = 300 * time.Millisecond })
	messages, _ := subscribe(t, sub, topic)
	stuck := receive(t, messages)
	began := time.Now()
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("Close took %v", took)
	}
	if cause := context.Cause(stuck.Context()); !errors.Is(cause, subscriber.ErrClosing) {
		t.Errorf("context ended by %v", cause)
	}
	wantClosed(t, messages)

	messages, _ = subscribe(t, newSubscriber(t, client), topic)
	next := receive(t, messages)
	if string(next.Payload) != "next" {
		t.Fatalf("%q comes before MinIdle has passed", next.Payload)
	}
	next.Ack()
	again := receive(t, messages)
	if d, _ := subscriber.DeliveryOf(again); string(again.Payload) != "stuck" || d.Count() != 1 {
		t.Errorf("%q comes with count %d", again.Payload, d.Count())
	}
	again.Ack()
	wantPending(t, client, topic, "billing", 0)
}

// A handler that gives up when its context ends gets its message handed back at once.
func TestInterruptedHandlerIsNotCounted(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	publish(t, client, topic, "slow")
	var settled observe.Events[subscriber.SettleEvent]
	sub := newSubscriber(t, client, func(c *subscriber.Config) {
		c.CloseTimeout, c.MinIdle = 4*time.Second, time.Minute
		c.Hooks = []subscriber.Hooks{{OnSettle: settled.Add}}
	})
	messages, cancel := subscribe(t, sub, topic)
	msg := receive(t, messages)
	cancel()
	if cause := wantDone(t, msg.Context(), within); !errors.Is(cause, subscriber.ErrClosing) {
		t.Errorf("context ended by %v", cause)
	}
	msg.Nack()
	wantClosed(t, messages)
	if l := settled.All(); len(l) != 1 || l[0].Settlement != subscriber.SettlementInterrupted {
		t.Errorf("settled %+v", l)
	}
	messages, _ = subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.MinIdle = time.Minute }), topic)
	msg = receive(t, messages)
	if d, _ := subscriber.DeliveryOf(msg); d.Count() != 1 {
		t.Errorf("count %d", d.Count())
	}
	msg.Ack()
}

// A subscription ends while its read is blocked: a consumer that is removed meanwhile would
// come back with what the read brings, and keep it.
func TestEndWaitsForTheBlockedRead(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		reading := s.Client(func(o *redis.Options) { o.ClientName, o.ReadTimeout = topic, 5*time.Minute })
		patient := func(c *subscriber.Config) {
			c.MinIdle, c.Heartbeat, c.Block, c.CloseTimeout = 10*time.Minute, time.Minute, time.Minute, time.Minute
		}
		messages, end := subscribe(t, newSubscriber(t, reading, patient), topic)
		testserver.Eventually(t, within, func() error {
			list, err := client.ClientList(ctx).Result()
			for line := range strings.Lines(list) {
				if strings.Contains(line, " name="+topic+" ") && strings.Contains(line, " flags=b ") {
					return nil
				}
			}
			return unexpected(err, list)
		})
		end()
		wantNone(t, messages, 300*time.Millisecond)
		publish(t, client, topic, "late")
		wantClosed(t, messages)
		for _, row := range pendingRows(t, client, topic) {
			if row.Consumer != "handback" {
				t.Errorf("left behind: %+v", row)
			}
		}
		next, _ := subscribe(t, newSubscriber(t, client), topic)
		receive(t, next).Ack()
		wantPending(t, client, topic, "billing", 0)
	})
}

// No way to end a subscription leaves a goroutine.
func TestNothingLeaks(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	client := s.Client()
	// One connection's goroutine of the client may come and go.
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Fatal(err)
	}
	subscribed := func(t *testing.T, topic string, change ...func(*subscriber.Config)) (*subscriber.Subscriber, <-chan *message.Message, context.CancelFunc, goleak.Option) {
		before := goleak.IgnoreCurrent()
		sub := newSubscriber(t, client, change...)
		messages, cancel := subscribe(t, sub, topic)
		return sub, messages, cancel, before
	}
	leaks := func(t *testing.T, before goleak.Option) {
		t.Helper()
		// The caller's client goes on dialing a dead server by itself.
		dialing := goleak.IgnoreAnyFunction("github.com/redis/go-redis/v9/internal/pool.(*ConnPool).tryDial")
		if err := goleak.Find(before, dialing); err != nil {
			t.Error(err)
		}
	}
	// What need not wait for handlers ends long before that.
	patient := func(c *subscriber.Config) { c.CloseTimeout = time.Minute }
	t.Run("cancel on an empty stream", func(t *testing.T) {
		_, messages, cancel, before := subscribed(t, testserver.Topic(t), patient)
		began := time.Now()
		cancel()
		wantClosed(t, messages)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("took %v, one block time is 50ms", took)
		}
		leaks(t, before)
	})
	t.Run("Close", func(t *testing.T) {
		sub, messages, _, before := subscribed(t, testserver.Topic(t))
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		wantClosed(t, messages)
		leaks(t, before)
	})
	t.Run("Close with nobody draining", func(t *testing.T) {
		topic := testserver.Topic(t)
		publish(t, client, topic, numbered(3000)...)
		sub, messages, _, before := subscribed(t, topic, patient, func(c *subscriber.Config) { c.MaxInFlight = 64 })
		receive(t, messages).Ack()
		began := time.Now()
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("Close took %v", took)
		}
		wantClosed(t, messages)
		leaks(t, before)
		wantPending(t, client, topic, "billing", int64(handedBack(t, client, topic)))
	})
	t.Run("twice", func(t *testing.T) {
		sub, _, cancel, before := subscribed(t, testserver.Topic(t))
		cancel()
		for range 2 {
			if err := sub.Close(); err != nil {
				t.Error(err)
			}
		}
		if _, err := sub.Subscribe(context.Background(), "x"); !errors.Is(err, subscriber.ErrClosed) {
			t.Errorf("Subscribe after Close: %v", err)
		}
		leaks(t, before)
	})
	t.Run("dead server", func(t *testing.T) {
		topic := testserver.Topic(t)
		publish(t, client, topic, numbered(100)...)
		sub, messages, _, before := subscribed(t, topic)
		receive(t, messages).Ack()
		receive(t, messages)
		s.Kill()
		began := time.Now()
		if err := sub.Close(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("Close took %v", took)
		}
		wantClosed(t, messages)
		leaks(t, before)
	})
}

// handedBack is the number of entries that are pending for the hand-back consumer.
func handedBack(t testing.TB, client redis.UniversalClient, topic string) int {
	t.Helper()
	p, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{
		Stream: topic, Group: "billing", Start: "-", End: "+", Count: 10_000, Consumer: "handback",
	}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return len(p)
}

// Whoever is closed leaves the client, and a shared publisher, usable.
func TestSharedClientStaysUsable(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	sub := newSubscriber(t, client)
	messages, _ := subscribe(t, sub, topic)
	if err := sub.Close(); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, messages)
	if err := client.Ping(context.Background()).Err(); err != nil {
		t.Errorf("the caller's client after Close: %v", err)
	}
	other, _ := subscribe(t, newSubscriber(t, client), topic)
	publish(t, client, topic, "after")
	receive(t, other).Ack()
}

// A server that does not answer keeps Close no longer than CloseTimeout and five seconds,
// however much is still to be reported to it. What is on its way then goes on.
func TestCloseOfAFrozenServer(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	client, topic, link := s.Client(), testserver.Topic(t), faultlink.New(t, s.Addr())
	sub := newSubscriber(t, link.Client(), func(c *subscriber.Config) { c.MinIdle, c.MaxInFlight = 10*time.Minute, 20 })
	messages, _ := subscribe(t, sub, topic)
	publish(t, client, topic, numbered(20)...) // of a read whose reply is lost nothing is known
	var list []*message.Message
	for range 20 {
		list = append(list, receive(t, messages))
	}
	link.Stall(faultlink.Replies)
	for i, msg := range list {
		if i%2 == 0 {
			msg.Ack()
		} else {
			msg.Nack()
		}
	}
	begun := time.Now()
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 10*time.Second { // 5.5 s, and a stall of the machine
		t.Errorf("Close took %v", took)
	}
	wantClosed(t, messages)
	link.Heal()
	testserver.Eventually(t, time.Minute, func() error {
		consumers, err := client.XInfoConsumers(t.Context(), topic, "billing").Result()
		if err != nil || len(consumers) != 1 || consumers[0].Name != "handback" {
			return unexpected(err, consumers)
		}
		return nil
	})
}
