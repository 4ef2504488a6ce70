package publisher_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// What works and does not recognise retries is reported by Check, with what to do.
func TestCheckWarnsOfTraps(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client := s.Client()
	byOrder := func(c *publisher.Config) { c.Key = eventkey.Template("order:{$.order_id}") }
	for name, c := range map[string]struct {
		prepare func(t *testing.T, topic string)
		change  change
		want    string // "" is no warning
	}{
		"fine": {change: func(*publisher.Config) {}},
		"message UUID": {
			change: func(c *publisher.Config) { c.Key = eventkey.MessageUUID() }, want: "outbox",
		},
		"message UUID of the topic": {
			change: func(c *publisher.Config) {
				for topic := range c.Topics {
					c.Topics[topic] = publisher.TopicConfig{Key: eventkey.MessageUUID()}
				}
			}, want: "outbox",
		},
		"producer ID of a pod": {
			change: func(c *publisher.Config) { c.ProducerID = "payment-service-6f9c7bd54d-x2v8k" }, want: "pod",
		},
		"foreign producer IDs": {
			prepare: func(t *testing.T, topic string) {
				for n := range 12 {
					mustPublish(t, newPublisher(t, client, func(c *publisher.Config) { c.ProducerID = fmt.Sprint("host", n) }), topic, payment(n))
				}
			},
			change: func(*publisher.Config) {}, want: "12 producer IDs",
		},
		"key that is too coarse": {
			prepare: func(t *testing.T, topic string) {
				plain(t, client, topic, payments(0, 60)...) // two payments an order
			},
			change: byOrder, want: "too coarse",
		},
		"key that is fine": {
			prepare: func(t *testing.T, topic string) {
				plain(t, client, topic, payments(0, 60)...)
				plain(t, client, topic, payments(0, 60)...) // retries
			},
			change: func(*publisher.Config) {},
		},
		"field that is left out of the fingerprint": {
			prepare: func(t *testing.T, topic string) {
				for n := range 3 {
					plain(t, client, topic, with(1, `{"order_id":"1","payment_id":"p1","sent_at":%d}`, n))
				}
			},
			change: func(c *publisher.Config) { c.Fingerprint = eventkey.JSONWithout("sent_at") },
		},
		"messages with keys of their own": {
			prepare: func(t *testing.T, topic string) {
				for n := range 6 {
					msg := payment(n)
					msg.Metadata.Set(eventkey.MetadataKey, fmt.Sprint("pay:", n))
					plain(t, client, topic, msg)
				}
			},
			change: byOrder,
		},
		"producer IDs of the messages": {
			prepare: func(t *testing.T, topic string) {
				p := newPublisher(t, client, producerOfMessage)
				for n := range 12 {
					msg := payment(n)
					msg.Metadata.Set(eventkey.MetadataProducer, fmt.Sprint("tenant", n))
					mustPublish(t, p, topic, msg)
				}
			},
			change: producerOfMessage,
		},
	} {
		t.Run(name, func(t *testing.T) {
			topic := testserver.Topic(t)
			if c.prepare != nil {
				c.prepare(t, topic)
			} else {
				mustPublish(t, newPublisher(t, client), topic, payments(0, 150)...)
			}
			p := newPublisher(t, client, func(cfg *publisher.Config) { cfg.Topics = map[string]publisher.TopicConfig{topic: {}} }, c.change)
			r, err := p.Check(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			text := strings.Join(r.Warnings, "\n")
			if c.want != "" && !strings.Contains(text, c.want) {
				t.Errorf("no warning about %q in:\n%s", c.want, text)
			}
			for _, other := range []string{"outbox", "pod", "producer IDs", "too coarse"} {
				if c.want == "" && strings.Contains(text, other) {
					t.Errorf("warned:\n%s", text)
				}
			}
		})
	}
}

// plain publishes as an application does that is not idempotent yet.
func plain(t *testing.T, client redis.UniversalClient, topic string, msgs ...*message.Message) {
	t.Helper()
	if err := redisPublisher(t, client).Publish(topic, msgs...); err != nil {
		t.Fatal(err)
	}
}
