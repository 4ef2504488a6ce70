package subscriber_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestReadHandOutAck(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		ids := publish(t, client, topic, numbered(1000)...)
		messages, cancel := subscribe(t, newSubscriber(t, client), topic)
		for i := range 1000 {
			msg := receive(t, messages)
			if string(msg.Payload) != fmt.Sprint(i) {
				t.Fatalf("message %d has payload %q", i, msg.Payload)
			}
			d, ok := subscriber.DeliveryOf(msg)
			if !ok || d.EntryID() != ids[i] || d.Count() != 1 || d.Redelivered() {
				t.Fatalf("delivery of message %d: %v %q %d %v", i, ok, d.EntryID(), d.Count(), d.Redelivered())
			}
			msg.Ack()
		}
		wantPending(t, client, topic, "billing", 0)
		cancel()
		wantClosed(t, messages)
		consumers, err := client.XInfoConsumers(context.Background(), topic, "billing").Result()
		if err != nil {
			t.Fatal(err)
		}
		if len(consumers) != 0 {
			t.Errorf("consumers stay behind: %+v", consumers)
		}
	})
}

func TestNackIsRedelivered(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "a", "b")
		messages, _ := subscribe(t, newSubscriber(t, client), topic)
		seen := map[string]int{}
		for range 5 {
			msg := receive(t, messages)
			p := string(msg.Payload)
			seen[p]++
			d, _ := subscriber.DeliveryOf(msg)
			if d.Count() != seen[p] || d.Redelivered() != (seen[p] > 1) {
				t.Fatalf("delivery %d of %s says count %d, redelivered %v", seen[p], p, d.Count(), d.Redelivered())
			}
			if p == "a" && seen[p] < 4 {
				msg.Nack()
			} else {
				msg.Ack()
			}
		}
		if seen["a"] != 4 || seen["b"] != 1 {
			t.Errorf("seen %v", seen)
		}
		wantNone(t, messages, 100*time.Millisecond)
		wantPending(t, client, topic, "billing", 0)
	})
}
