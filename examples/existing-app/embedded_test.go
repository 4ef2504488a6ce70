package existingapp

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// On the embedded server, as in tests of applications: the group is there first, on a
// stream that never had an entry.
func TestSubscribeThenPublishOnTheEmbeddedServer(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	defer func() { _ = client.Close() }()
	sub, err := subscriber.New(subscriber.Config{Client: client, Group: "billing"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sub.Close() }()
	messages, err := sub.Subscribe(t.Context(), "orders")
	if err != nil {
		t.Fatal(err)
	}
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "orders", Key: eventkey.MessageUUID(), RetryFor: time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
	for range 2 {
		if err := pub.Publish("orders", message.NewMessage("u1", []byte(`{"order_id":1}`))); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	select {
	case msg := <-messages:
		msg.Ack()
	case <-ctx.Done():
		t.Fatal("nothing came")
	}
	if err := sub.Health(); err != nil {
		t.Error(err)
	}
	if n := client.XLen(ctx, "orders").Val(); n != 1 {
		t.Errorf("%d entries", n)
	}
}
