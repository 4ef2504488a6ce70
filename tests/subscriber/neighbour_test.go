package subscriber_test

import (
	"context"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A single delivery is allowed. A message is with its handler for the second time, since the
// first one did not count, when its process dies of another message: it is handled by the
// next process, and is no dead letter.
func TestUncountedNeighbourOfAProcessKillerIsHandled(t *testing.T) {
	t.Parallel()
	once := func(c *subscriber.Config) { c.MaxDeliveries, c.MaxInFlight = 1, 2 }
	for name, giveBack := range map[string]func(testing.TB, *message.Message, *faultlink.Link){
		"delayed": func(_ testing.TB, msg *message.Message, _ *faultlink.Link) {
			d, _ := subscriber.DeliveryOf(msg)
			d.Delay(time.Millisecond)
			msg.Ack()
		},
		"stood still": func(t testing.TB, msg *message.Message, link *faultlink.Link) {
			link.Stall(faultlink.Both)
			_ = wantDone(t, msg.Context(), within)
			msg.Nack()
			link.Resume()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testserver.Each(t, func(t *testing.T, s *testserver.Server) {
				t.Parallel()
				client, topic, link := s.Client(), testserver.Topic(t), faultlink.New(t, s.Addr())
				behind := link.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
				dying, _ := subscribe(t, newSubscriber(t, behind, mortal, once), topic)
				publish(t, client, topic, "neighbour")
				giveBack(t, receive(t, dying), link)
				again := receive(t, dying)
				if d, _ := subscriber.DeliveryOf(again); !d.Redelivered() || d.Count() != 1 {
					t.Errorf("it comes again with count %d, redelivered %v", d.Count(), d.Redelivered())
				}
				link.Refuse() // so it looks when its process dies
				link.Cut()
				next, _ := subscribe(t, newSubscriber(t, client, mortal, once), topic)
				msg := receive(t, next)
				if d, _ := subscriber.DeliveryOf(msg); d.Count() != 1 {
					t.Errorf("count %d in the next process", d.Count())
				}
				msg.Ack()
				wantPending(t, client, topic, "billing", 0)
				if n := client.XLen(context.Background(), subscriber.DeadLetterTopic(topic)).Val(); n != 0 {
					t.Errorf("%d dead letters", n)
				}
			})
		})
	}
}
