package subscriber_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The entries of refused dead letters are deleted while they are tried again. Under
// -race this shows who reads what the heartbeat finds out.
func TestEntriesOfRefusedDeadLettersDeleted(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
	if err := client.Set(ctx, subscriber.DeadLetterTopic(topic), "in the way", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var lost atomic.Int64
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.MinIdle, c.Heartbeat, c.Block = 60*time.Millisecond, 10*time.Millisecond, 10*time.Millisecond
		c.Hooks = []subscriber.Hooks{{OnLost: func(e subscriber.LostEvent) { lost.Add(e.Entries) }}}
	}), topic)
	const rounds, entries = 10, 20
	for round := range rounds {
		ids := publish(t, client, topic, numbered(entries)...)
		for range entries {
			msg := receive(t, messages)
			d, _ := subscriber.DeliveryOf(msg)
			d.Reject("x", nil)
			msg.Nack()
		}
		if err := client.XDel(ctx, topic, ids...).Err(); err != nil {
			t.Fatal(err)
		}
		testserver.Eventually(t, within, func() error {
			if n, want := lost.Load(), int64((round+1)*entries); n != want {
				return fmt.Errorf("%d lost, want %d", n, want)
			}
			return nil
		})
	}
}
