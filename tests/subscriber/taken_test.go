package subscriber_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// An entry is another consumer's when its redelivery is due, and no heartbeat has said so
// yet: it is neither handed out nor taken back.
func TestRedeliveryOfAnothersEntry(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, _ := subscribe(t, newSubscriber(t, link.Client(), func(c *subscriber.Config) {
			c.MinIdle, c.Heartbeat = 10*time.Minute, 3*time.Minute
		}), topic)
		ids := publish(t, client, topic, "another's")
		msg := receive(t, messages)
		if err := client.XClaimJustID(ctx, &redis.XClaimArgs{Stream: topic, Group: "billing", Consumer: "other", Messages: ids}).Err(); err != nil {
			t.Fatal(err)
		}
		var prepared atomic.Bool
		link.Lose(func(c faultlink.Command) bool {
			// prepare.lua for one entry: script, 1, stream, group, consumer, ID, count.
			if len(c.Args) == 7 && c.Args[5] == ids[0] {
				prepared.Store(true)
			}
			return false
		})
		msg.Nack()
		testserver.Eventually(t, within, func() error {
			if !prepared.Load() {
				return errors.New("its redelivery was not prepared")
			}
			return nil
		})
		publish(t, client, topic, "next")
		next := receive(t, messages)
		if string(next.Payload) != "next" {
			t.Errorf("%q goes out", next.Payload)
		}
		next.Ack()
		wantPending(t, client, topic, "billing", 1)
		if rows := pendingRows(t, client, topic); rows[0].Consumer != "other" {
			t.Errorf("taken back: %+v", rows)
		}
	})
}
