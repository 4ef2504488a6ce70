package subscriber_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Dead consumers are removed while there is no room for what one of them has pending: that
// one stays, since XGROUP DELCONSUMER would drop its entries.
func TestSweepKeepsWhatTheDeadHold(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		publish(t, client, topic, numbered(4)...)
		if err := client.XGroupCreate(ctx, topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "dead", Count: 3, Streams: []string{topic, ">"}}).Err(); err != nil {
			t.Fatal(err)
		}
		// It has nothing and was seen last: when it goes, the other one has been looked at.
		if err := client.XGroupCreateConsumer(ctx, topic, "billing", "dead and empty").Err(); err != nil {
			t.Fatal(err)
		}
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.MinIdle, c.Heartbeat, c.MaxHeld, c.MaxInFlight, c.ReadAhead = 2*time.Second, beat, 1, 1, 1
		}), topic)
		msg := receive(t, messages)
		testserver.Eventually(t, time.Minute, func() error {
			consumers, err := client.XInfoConsumers(ctx, topic, "billing").Result()
			if err != nil || slices.ContainsFunc(consumers, func(c redis.XInfoConsumer) bool { return c.Name == "dead and empty" }) {
				return unexpected(err, consumers)
			}
			return nil
		})
		got := map[string]bool{string(msg.Payload): true}
		msg.Ack()
		for len(got) < 4 {
			msg := receive(t, messages)
			got[string(msg.Payload)] = true
			msg.Ack()
		}
		wantPending(t, client, topic, "billing", 0)
	})
}
