package subscriber_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// All that may be held waits for its redelivery, so that nothing is read, when the
// stream or its group goes.
func TestStreamOrGroupGoneWhileFull(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, what := range []string{"stream", "group"} {
			t.Run(what, func(t *testing.T) {
				client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
				publish(t, client, topic, numbered(8)...)
				messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
					c.MinIdle, c.MaxHeld = time.Second, 4
					c.RedeliverAfter, c.RedeliverMax = 300*time.Millisecond, 300*time.Millisecond
				}), topic)
				for range 4 {
					receive(t, messages).Nack()
				}
				var err error
				if what == "stream" {
					err = client.Del(ctx, topic).Err()
				} else {
					err = client.XGroupDestroy(ctx, topic, "billing").Err()
				}
				if err != nil {
					t.Fatal(err)
				}
				publish(t, client, topic, "new")
				for payload := ""; payload != "new"; {
					msg := receive(t, messages)
					payload = string(msg.Payload)
					msg.Ack()
				}
			})
		}
	})
}

// The group is destroyed while its consumer has nothing but what it has taken over.
func TestGroupDestroyedAfterATakeover(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		if err := client.XGroupCreateMkStream(ctx, topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		ids := publish(t, client, topic, numbered(100)...)
		if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "billing", Consumer: "old", Streams: []string{topic, ">"}, Count: 100}).Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.XAck(ctx, topic, "billing", ids[:99]...).Err(); err != nil {
			t.Fatal(err)
		}
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.StartFrom, c.MinIdle = subscriber.Beginning, 500*time.Millisecond
		}), topic)
		held := receive(t, messages)
		for _, settled := range []bool{false, true} {
			if settled {
				held.Ack()
				wantPending(t, client, topic, "billing", 0)
			}
			if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
				t.Fatal(err)
			}
			testserver.Eventually(t, within, func() error {
				groups, err := client.XInfoGroups(ctx, topic).Result()
				if err != nil || len(groups) != 1 {
					return unexpected(err, groups)
				}
				return nil
			})
			// It was read from the group that was made again: that much is known to be settled.
			wantNone(t, messages, 300*time.Millisecond)
		}
	})
}
