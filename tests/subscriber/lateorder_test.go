package subscriber_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A takeover that the client has given up reaches the server late, when the consumer has
// listed what is pending for it and goes on with the next: what it took goes out in order.
func TestLateTakeoverKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]func(*subscriber.Config){"key": orderKey, "stream": orderStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, topic, ctx := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), context.Background()
			var payloads []string
			for i := range 6 {
				payloads = append(payloads, fmt.Sprint("k/", i))
			}
			ids := publish(t, client, topic, payloads...)
			if err := client.XGroupCreate(ctx, topic, "billing", "0").Err(); err != nil {
				t.Fatal(err)
			}
			if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "dead", Streams: []string{topic, ">"}}).Err(); err != nil {
				t.Fatal(err)
			}
			messages, _ := subscribe(t, newSubscriber(t, client, order, func(c *subscriber.Config) {
				c.MinIdle, c.Heartbeat, c.ReadAhead, c.MaxHeld, c.MaxInFlight = 4*time.Second, time.Second, 2, 2, 2
			}), topic)
			msg := receive(t, messages)
			consumer := ""
			for _, row := range pendingRows(t, client, topic) {
				if row.Consumer != "dead" {
					consumer = row.Consumer
				}
			}
			if err := client.XClaimJustID(ctx, &redis.XClaimArgs{Stream: topic, Group: "billing", Consumer: consumer, Messages: ids[2:4]}).Err(); err != nil {
				t.Fatal(err)
			}
			for i := range 6 {
				if string(msg.Payload) != payloads[i] {
					t.Fatalf("got %q, want %q", msg.Payload, payloads[i])
				}
				if msg.Ack(); i < 5 {
					msg = receive(t, messages)
				}
			}
			wantPending(t, client, topic, "billing", 0)
		})
	}
}
