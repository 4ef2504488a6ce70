package subscriber_test

import (
	"context"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// All that may be held waits for its redelivery, so that nothing is read, when the
// stream or its group goes.
func TestStreamOrGroupGoneWhileFull(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
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
