package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Two ordered consumers start on a quiet stream: one is active, the other stands by, and
// goes on when the first has ended or died.
func TestOrderedConsumersOnAQuietStream(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		fast := func(c *subscriber.Config) { c.MinIdle = 4 * time.Second }
		active, end := subscribe(t, newSubscriber(t, client, orderStream, fast), topic)
		testserver.Eventually(t, within, func() error {
			consumers, err := client.XInfoConsumers(ctx, topic, "billing").Result()
			if err != nil || len(consumers) != 1 {
				return unexpected(err, consumers)
			}
			return nil
		})
		standing, _ := subscribe(t, newSubscriber(t, client, orderStream, fast), topic)
		<-time.After(5 * time.Second) // nothing is pending, and nothing comes, for longer than MinIdle
		for round := range 5 {
			publish(t, client, topic, fmt.Sprint(2*round), fmt.Sprint(2*round+1))
			for i := range 2 {
				select {
				case msg := <-active:
					if string(msg.Payload) != fmt.Sprint(2*round+i) {
						t.Errorf("got %q, want %d", msg.Payload, 2*round+i)
					}
					msg.Ack()
				case msg := <-standing:
					t.Fatalf("both are active: the second got %q", msg.Payload)
				case <-time.After(within):
					t.Fatal("no message")
				}
			}
			wantNone(t, standing, 50*time.Millisecond)
		}
		end()
		wantClosed(t, active)
		publish(t, client, topic, "after")
		receive(t, standing).Ack()
		wantPending(t, client, topic, "billing", 0)
	})
}

// Somebody reads the group beside the active consumer: what no handler has is handed
// back, and goes out in order when that one is gone.
func TestOrderedConsumerGivesWay(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, _ := subscribe(t, newSubscriber(t, client, orderStream, func(c *subscriber.Config) { c.MinIdle = time.Second }), topic)
		publish(t, client, topic, "0", "1", "2")
		first := receive(t, messages)
		wantPending(t, client, topic, "billing", 3)
		testserver.Eventually(t, within, func() error {
			// A sign of life. No entry of its own has an ID as high as that.
			if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
				Group: "billing", Consumer: "intruder", Streams: []string{topic, "18446744073709551615-0"}}).Err(); err != nil {
				return err
			}
			if n := handedBack(t, client, topic); n < 2 {
				return fmt.Errorf("%d handed back", n)
			}
			return nil
		})
		first.Ack()
		publish(t, client, topic, "3")
		for want := 1; want < 4; want++ {
			msg := receive(t, messages)
			if string(msg.Payload) != fmt.Sprint(want) {
				t.Errorf("got %q, want %d", msg.Payload, want)
			}
			msg.Ack()
		}
		wantPending(t, client, topic, "billing", 0)
	})
}

// A live consumer has very many pending entries, and then it dies: looking after them
// does not keep the server from its work.
func TestStandingByIsCheap(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind)
			client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
			const entries = 200_000
			// A script, since it would take the client long to read what it makes pending.
			fill := redis.NewScript(`
				redis.call('XGROUP', 'CREATE', KEYS[1], 'billing', '0', 'MKSTREAM')
				for i = 1, ARGV[1] do
					redis.call('XADD', KEYS[1], '*', '_watermill_message_uuid', i, 'metadata', '', 'payload', i)
				end
				for _ = 1, ARGV[1], 1000 do
					redis.call('XREADGROUP', 'GROUP', 'billing', 'live', 'COUNT', 1000, 'STREAMS', KEYS[1], '>')
				end`)
			patient := s.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
			if err := fill.Run(ctx, patient, []string{topic}, entries).Err(); err != nil && !errors.Is(err, redis.Nil) {
				t.Fatal(err)
			}
			wantPending(t, client, topic, "billing", entries)
			// An ordered consumer of another topic, so that the server knows the scripts: its
			// answer that it does not is quick.
			publish(t, client, topic+"-2", "m")
			other, _ := subscribe(t, newSubscriber(t, client, orderStream), topic+"-2")
			receive(t, other).Ack()
			// The quickest of the scripts that ask who is active: where these look through
			// all that is pending, each does; that one is slow is the machine's fault.
			quickest := func(during time.Duration) time.Duration {
				client.ConfigResetStat(ctx)
				client.ConfigSet(ctx, "slowlog-log-slower-than", "0")
				client.ConfigSet(ctx, "slowlog-max-len", "100000")
				client.SlowLogReset(ctx)
				<-time.After(during)
				log, err := client.SlowLogGet(ctx, -1).Result()
				if err != nil {
					t.Fatal(err)
				}
				var took []time.Duration
				for _, l := range log {
					if slices.Contains(l.Args, topic) && slices.Contains([]string{"leave", "stay"}, l.Args[len(l.Args)-1]) {
						took = append(took, l.Duration)
					}
				}
				if len(took) == 0 {
					t.Fatal("no script was run")
				}
				t.Logf("%d scripts, from %v to %v", len(took), slices.Min(took), slices.Max(took))
				return slices.Min(took)
			}
			messages, end := subscribe(t, newSubscriber(t, client, orderStream, func(c *subscriber.Config) { c.MinIdle = time.Minute }), topic)
			if took := quickest(3 * time.Second); took > 10*time.Millisecond { // it is below 0.1 ms
				t.Errorf("standing by takes the server %v", took)
			}
			end()
			wantClosed(t, messages)
			messages, _ = subscribe(t, newSubscriber(t, client, orderStream, func(c *subscriber.Config) { c.MinIdle = time.Second }), topic)
			go func() {
				for msg := range messages {
					msg.Ack()
				}
			}()
			if took := quickest(3 * time.Second); took > 100*time.Millisecond {
				t.Errorf("taking over takes the server %v", took)
			}
		})
	}
}
