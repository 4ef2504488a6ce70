package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// countingLogger counts what a user would see at the usual level.
type countingLogger struct {
	*observe.Logger
	lines, errors *atomic.Int64
}

func newCountingLogger(t testing.TB) countingLogger {
	return countingLogger{observe.NewLogger(t), new(atomic.Int64), new(atomic.Int64)}
}

func (l countingLogger) Error(msg string, err error, f watermill.LogFields) {
	l.lines.Add(1)
	l.errors.Add(1)
	l.Logger.Error(msg, err, f)
}

func (l countingLogger) Info(msg string, f watermill.LogFields) {
	l.lines.Add(1)
	l.Logger.Info(msg, f)
}

func (l countingLogger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

func newLogged(t testing.TB, client redis.UniversalClient, logger watermill.LoggerAdapter, change ...func(*subscriber.Config)) *subscriber.Subscriber {
	t.Helper()
	cfg := quick(client)
	for _, c := range change {
		c(&cfg)
	}
	s, err := subscriber.New(cfg, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// The stream is deleted during a blocked read, and published to again.
func TestStreamDeletedDuringBlockedRead(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		logger := newCountingLogger(t)
		publish(t, client, topic, "before")
		messages, _ := subscribe(t, newLogged(t, client, logger), topic)
		receive(t, messages).Ack()
		wantPending(t, client, topic, "billing", 0)
		for round := range 3 {
			if err := client.Del(ctx, topic).Err(); err != nil {
				t.Fatal(err)
			}
			// In the same millisecond the new entries would have the IDs of those that are
			// being acknowledged: see the limits in docs/subscriber.md.
			<-time.After(2 * time.Millisecond)
			publish(t, client, topic, fmt.Sprint(round, "a"), fmt.Sprint(round, "b"))
			for _, want := range []string{fmt.Sprint(round, "a"), fmt.Sprint(round, "b")} {
				msg := receive(t, messages)
				if string(msg.Payload) != want {
					t.Errorf("got %q, want %q", msg.Payload, want)
				}
				msg.Ack()
			}
		}
		if n := logger.errors.Load(); n >= 5+3 {
			t.Errorf("%d error lines for three deletions", n)
		}
		wantPending(t, client, topic, "billing", 0)
	})
}

// A stream that begins again with lower IDs (explicit ones, or a clock set back).
func TestStreamBeginsAgainWithLowerIDs(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, fanOut := range []bool{false, true} {
			client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
			add := func(id, payload string) {
				if err := client.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: id, Values: []any{
					"_watermill_message_uuid", "u", "metadata", "", "payload", payload}}).Err(); err != nil {
					t.Fatal(err)
				}
			}
			add("1000-1", "old")
			messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
				if c.FanOut = fanOut; fanOut {
					c.Group = ""
				}
			}), topic)
			receive(t, messages).Ack()
			client.Del(ctx, topic)
			add("5-1", "new")
			msg := receive(t, messages)
			if string(msg.Payload) != "new" {
				t.Errorf("got %q", msg.Payload)
			}
			msg.Ack()
		}
	})
}

// The group is destroyed: what is not settled comes again, what is settled does not.
func TestGroupDestroyed(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		publish(t, client, topic, numbered(5)...)
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.StartFrom = subscriber.Beginning }), topic)
		for range 2 {
			receive(t, messages).Ack()
		}
		wantPending(t, client, topic, "billing", 3)
		inFlight := receive(t, messages)
		if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
			t.Fatal(err)
		}
		testserver.Eventually(t, within, func() error {
			groups, err := client.XInfoGroups(ctx, topic).Result()
			if err != nil || len(groups) != 1 || groups[0].Pending != 3 {
				return unexpected(err, groups)
			}
			return nil
		})
		// What a handler has does not go out a second time.
		wantNone(t, messages, 200*time.Millisecond)
		inFlight.Ack()
		for _, want := range []string{"3", "4"} {
			msg := receive(t, messages)
			if string(msg.Payload) != want {
				t.Errorf("got %q, want %q", msg.Payload, want)
			}
			msg.Ack()
		}
		wantPending(t, client, topic, "billing", 0)
		wantNone(t, messages, 100*time.Millisecond)
	})
}

// The reply of a read is lost: nothing stays pending unseen, and the order holds.
func TestReplyOfGroupReadLost(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic := s.Client(), testserver.Topic(t)
		messages, _ := subscribe(t, newSubscriber(t, link.Client()), topic)
		publish(t, client, topic, "0")
		receive(t, messages).Ack()
		for round := range 5 {
			link.LoseNext(1, "XREADGROUP")
			base := 1 + round*20
			for i := range 20 {
				publish(t, client, topic, fmt.Sprint(base+i))
			}
			for i := range 20 {
				msg := receive(t, messages)
				if string(msg.Payload) != fmt.Sprint(base+i) {
					t.Fatalf("got %q, want %d: order is broken or entries are orphaned", msg.Payload, base+i)
				}
				if d, _ := subscriber.DeliveryOf(msg); d.Count() != 1 || d.Redelivered() {
					t.Errorf("%q comes with count %d, redelivered %v", msg.Payload, d.Count(), d.Redelivered())
				}
				msg.Ack()
			}
		}
		if link.Stats().Lost == 0 {
			t.Error("no reply was lost")
		}
		wantPending(t, client, topic, "billing", 0)
	})
}

// Replies of all kinds of commands are lost: nothing is orphaned, nothing comes twice
// that was acknowledged.
func TestRepliesLostAtRandom(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	link := faultlink.New(t, s.Addr())
	client, topic := s.Client(), testserver.Topic(t)
	const n = 3000
	messages, cancel := subscribe(t, newSubscriber(t, link.Client(), func(c *subscriber.Config) {
		c.MaxInFlight, c.ReadAhead = 8, 16
	}), topic)
	link.LoseRate(0.05, 1, "XREADGROUP", "EVALSHA", "EVAL", "XPENDING")
	for i := 0; i < n; i += 100 {
		publish(t, client, topic, numbered(n)[i:i+100]...)
	}
	counts := map[string]int{}
	for len(counts) < n {
		msg := receive(t, messages)
		p := string(msg.Payload)
		if counts[p]++; counts[p] == 1 && len(counts)%50 == 0 {
			msg.Nack()
		} else {
			msg.Ack()
		}
	}
	link.Heal()
	wantPendingWhile(t, client, topic, messages, counts)
	cancel()
	again := 0
	for p, c := range counts {
		if c > 2 {
			t.Errorf("%s came %d times", p, c)
		}
		if c > 1 {
			again++
		}
	}
	if again > n/50+1 {
		t.Errorf("%d entries came twice, %d were not acknowledged", again, n/50)
	}
	if link.Stats().Lost < 5 {
		t.Errorf("only %d replies lost", link.Stats().Lost)
	}
}

// The server is down for half a minute: few log lines, and it flows again soon.
func TestServerStopped(t *testing.T) {
	t.Parallel()
	down := 30 * time.Second
	if testing.Short() {
		down = 5 * time.Second
	}
	s := testserver.Start(t, testserver.Redis86, testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always"))
	client, topic := s.Client(), testserver.Topic(t)
	logger := newCountingLogger(t)
	var outages observe.Events[subscriber.OutageEvent]
	sub := newLogged(t, client, logger, func(c *subscriber.Config) {
		c.Hooks = []subscriber.Hooks{{OnOutage: outages.Add}}
	})
	messages, _ := subscribe(t, sub, topic)
	publish(t, client, topic, "before")
	receive(t, messages).Ack()
	wantPending(t, client, topic, "billing", 0)
	if err := sub.Health(); err != nil {
		t.Errorf("Health: %v", err)
	}
	stop := func() (flowsAfter time.Duration) {
		s.Stop()
		<-time.After(down)
		if err := sub.Health(); err == nil {
			t.Error("Health is nil while the server is down")
		}
		s.Restart()
		back := time.Now()
		publish(t, s.Client(), topic, "after")
		receive(t, messages).Ack()
		return time.Since(back)
	}
	before := logger.lines.Load()
	took := stop()
	if n := logger.lines.Load() - before; n >= 20 {
		t.Errorf("%d log lines", n)
	}
	testserver.Eventually(t, within, func() error { return sub.Health() })
	l := outages.All()
	if len(l) < 2 || l[0].Err == nil || l[len(l)-1].Err != nil || l[len(l)-1].Duration < down/2 {
		t.Errorf("hook got %+v", l)
	}
	for try := 0; try < 2 && took > 2*time.Second; try++ { // once may be the machine's fault
		took = stop()
	}
	if took > 2*time.Second {
		t.Errorf("flows again after %v", took)
	}
}

// Restart and load, under the race detector too.
func TestRestartUnderTraffic(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86, testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always"))
	topic := testserver.Topic(t)
	const n = 4000
	messages, _ := subscribe(t, newSubscriber(t, s.Client(), func(c *subscriber.Config) { c.MaxInFlight = 16 }), topic)
	client := s.Client(func(o *redis.Options) { o.MaxRetries = -1 })
	var publishing sync.WaitGroup
	publishing.Go(func() {
		for i := 0; i < n; {
			if i == n/3 || i == n/2 {
				s.Restart()
			}
			_, err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{
				"_watermill_message_uuid", fmt.Sprint(i), "metadata", "", "payload", fmt.Sprint(i)}}).Result()
			if err == nil {
				i++
			}
		}
	})
	defer publishing.Wait()
	seen := map[string]bool{}
	for len(seen) < n {
		msg := receive(t, messages)
		seen[string(msg.Payload)] = true
		msg.Ack()
	}
	wantPending(t, s.Client(), topic, "billing", 0)
}

// An acknowledgement is lost with a failover: what was acknowledged on a primary that
// is lost with its acknowledgement comes again.
func TestAckLostWithFailover(t *testing.T) {
	t.Parallel()
	s := testserver.StartSentinel(t, testserver.Redis86)
	client, topic := s.FailoverClient(), testserver.Topic(t)
	publish(t, client, topic, "m")
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.MinIdle = 2 * time.Second }), topic)
	msg := receive(t, messages)
	var replica *testserver.Server
	for _, server := range s.Servers() {
		if server.Addr() != s.Primary().Addr() {
			replica = server
		}
	}
	// The replica has seen the read, but not what follows.
	testserver.Eventually(t, within, func() error {
		p, err := replica.Client().XPending(context.Background(), topic, "billing").Result()
		if err != nil || p.Count != 1 {
			return unexpected(err, p)
		}
		return nil
	})
	replica.Freeze()
	// What is sent to it from here on would wait in its socket.
	if err := s.Primary().Client().ClientKillByFilter(context.Background(), "TYPE", "replica").Err(); err != nil {
		t.Fatal(err)
	}
	msg.Ack()
	wantPending(t, client, topic, "billing", 0)
	old := s.KillPrimary()
	replica.Thaw()
	s.WaitPromotion(old, 60*time.Second)
	again := receive(t, messages)
	if string(again.Payload) != "m" {
		t.Errorf("got %q", again.Payload)
	}
	again.Ack()
	testserver.Eventually(t, within, func() error {
		p, err := client.XPending(context.Background(), topic, "billing").Result()
		if err != nil || p.Count != 0 {
			return unexpected(err, p)
		}
		return nil
	})
}

// wantPendingWhile waits until nothing is pending, acknowledging what still comes.
func wantPendingWhile(t testing.TB, client redis.UniversalClient, topic string, messages <-chan *message.Message, counts map[string]int) {
	t.Helper()
	testserver.Eventually(t, within, func() error {
		for {
			select {
			case msg := <-messages:
				counts[string(msg.Payload)]++
				msg.Ack()
				continue
			default:
			}
			break
		}
		if n := pendingOf(t, client, topic, "billing"); n != 0 {
			return fmt.Errorf("%d pending", n)
		}
		return nil
	})
}

// Subscribe on a key of another type, and on a server that refuses.
func TestSubscribeSaysWhy(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		client.Set(ctx, topic, "text", 0)
		for _, fanOut := range []bool{false, true} {
			sub := newSubscriber(t, client, func(c *subscriber.Config) {
				if c.FanOut = fanOut; fanOut {
					c.Group = ""
				}
			})
			if _, err := sub.Subscribe(ctx, topic); !errors.Is(err, subscriber.ErrWrongType) {
				t.Errorf("fan-out %v: %v", fanOut, err)
			}
		}
	})
}
