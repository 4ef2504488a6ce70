package subscriber_test

import (
	"context"
	"errors"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A read that the client gave up arrives late, when the consumer has long listed what is
// pending for it: what it made pending is handed out all the same, also while nothing is
// held and while there is no room.
func TestLateReadIsHandedOut(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, order := range []subscriber.Order{subscriber.OrderNone, subscriber.OrderStream} {
			t.Run(order.String(), func(t *testing.T) {
				client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
				messages, _ := subscribe(t, newSubscriber(t, client, beating, func(c *subscriber.Config) {
					c.Order, c.ReadAhead, c.MaxHeld = order, 2, 2
				}), topic)
				publish(t, client, topic, "1", "2")
				first, consumer := receive(t, messages), consumerOf(t, client, topic)
				wantPending(t, client, topic, "billing", 2)
				publish(t, client, topic, "3", "4")
				readFor(t, client, topic, consumer)
				wantPending(t, client, topic, "billing", 4)
				first.Ack()
				for range 3 {
					receive(t, messages).Ack()
				}
				wantPending(t, client, topic, "billing", 0)

				// The group is set back, and an entry is read again while its
				// acknowledgement is on its way: nobody holds it then.
				if err := client.XGroupSetID(ctx, topic, "billing", "0").Err(); err != nil {
					t.Fatal(err)
				}
				readFor(t, client, topic, consumer)
				for range 4 {
					receive(t, messages).Ack()
				}
				wantPending(t, client, topic, "billing", 0)
			})
		}
	})
}

// readFor reads all that is new in the name of a consumer.
func readFor(t *testing.T, client redis.UniversalClient, topic, consumer string) {
	t.Helper()
	err := client.XReadGroup(context.Background(), &redis.XReadGroupArgs{
		Group: "billing", Consumer: consumer, Streams: []string{topic, ">"}, Block: -1,
	}).Err()
	if err != nil && !errors.Is(err, redis.Nil) { // nil: the consumer was faster
		t.Fatal(err)
	}
}

// consumerOf is the name of the only consumer of the group.
func consumerOf(t *testing.T, client redis.UniversalClient, topic string) string {
	t.Helper()
	consumers, err := client.XInfoConsumers(context.Background(), topic, "billing").Result()
	if err != nil || len(consumers) != 1 {
		t.Fatalf("consumers %+v, %v", consumers, err)
	}
	return consumers[0].Name
}
