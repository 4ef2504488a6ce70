package bench_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// backlog is what a subscriber finds in the stream at a time.
const backlog = 50_000

// reader is one way to subscribe.
type reader struct {
	name      string
	subscribe func(b *testing.B, ctx context.Context, client *redis.Client, topic string) <-chan *message.Message
}

func oursReading(change func(*subscriber.Config)) func(*testing.B, context.Context, *redis.Client, string) <-chan *message.Message {
	return func(b *testing.B, ctx context.Context, client *redis.Client, topic string) <-chan *message.Message {
		cfg := subscriber.Config{Client: client, Group: "bench"}
		change(&cfg)
		s, err := subscriber.New(cfg, nil)
		if err != nil {
			b.Fatal(err)
		}
		messages, err := s.Subscribe(ctx, topic)
		if err != nil {
			b.Fatal(err)
		}
		return messages
	}
}

func theirsReading(b *testing.B, ctx context.Context, client *redis.Client, topic string) <-chan *message.Message {
	s, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: client, ConsumerGroup: "bench", DisableIndefiniteInitialBlock: true,
	}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		b.Fatal(err)
	}
	return messages
}

func readers() []reader {
	return []reader{
		{"watermill-redisstream", theirsReading},
		{"in-flight-1", oursReading(func(*subscriber.Config) {})},
		{"in-flight-64", oursReading(func(c *subscriber.Config) { c.MaxInFlight = 64 })},
		{"order-key-in-flight-64", oursReading(func(c *subscriber.Config) {
			c.MaxInFlight, c.Order, c.OrderBy = 64, subscriber.OrderKey, eventkey.Template("{$.order_id}")
		})},
		{"order-stream", oursReading(func(c *subscriber.Config) { c.Order = subscriber.OrderStream })},
		{"fan-out", oursReading(func(c *subscriber.Config) { c.Group, c.FanOut = "", true })},
	}
}

// BenchmarkSubscribe receives and acknowledges messages of about 200 bytes that wait in
// the stream, one after the other.
func BenchmarkSubscribe(b *testing.B) {
	for _, r := range readers() {
		b.Run(r.name, func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: testserver.Shared(b, testserver.Redis86).Addr()})
			defer func() { _ = client.Close() }()
			topic := fill(b, client)
			defer client.Del(context.Background(), topic)
			ctx, cancel := context.WithCancel(context.Background())
			messages := r.subscribe(b, ctx, client, topic)
			(<-messages).Ack()
			received := 1
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				if received == backlog {
					b.StopTimer()
					refill(b, client, topic)
					received = 0
					b.StartTimer()
				}
				(<-messages).Ack()
				received++
			}
			b.StopTimer()
			rate(b, b.N)
			cancel()
			for range messages { // until it is closed
			}
		})
	}
	b.Run("raw-client", func(b *testing.B) {
		client := redis.NewClient(&redis.Options{Addr: testserver.Shared(b, testserver.Redis86).Addr()})
		defer func() { _ = client.Close() }()
		topic, ctx := fill(b, client), context.Background()
		defer client.Del(ctx, topic)
		if err := client.XGroupCreate(ctx, topic, "bench", "0").Err(); err != nil {
			b.Fatal(err)
		}
		var ids []string
		b.ReportAllocs()
		b.ResetTimer()
		for b.Loop() {
			if len(ids) == 0 {
				for {
					streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
						Group: "bench", Consumer: "raw", Streams: []string{topic, ">"}, Count: 256, Block: -1,
					}).Result()
					if err == nil {
						for _, m := range streams[0].Messages {
							ids = append(ids, m.ID)
						}
						if err := client.XAck(ctx, topic, "bench", ids...).Err(); err != nil {
							b.Fatal(err)
						}
						break
					}
					b.StopTimer()
					refill(b, client, topic)
					b.StartTimer()
				}
			}
			ids = ids[1:]
		}
		b.StopTimer()
		rate(b, b.N)
	})
}

func rate(b *testing.B, messages int) {
	b.ReportMetric(float64(messages)/b.Elapsed().Seconds(), "msg/s")
}

func fill(b *testing.B, client *redis.Client) string {
	topic := testserver.Topic(b)
	refill(b, client, topic)
	return topic
}

// refill adds a backlog; what was read before is trimmed away by then.
func refill(b *testing.B, client *redis.Client, topic string) {
	for range backlog / 1000 {
		if err := (rawPublisher{client, false}).Publish(topic, newMessages(1000)...); err != nil {
			b.Fatal(err)
		}
	}
	client.XTrimMaxLen(context.Background(), topic, backlog)
}
