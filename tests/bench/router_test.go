package bench_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// handling is one way to handle messages in a Router.
type handling struct {
	name     string
	inFlight int // 0: watermill-redisstream
	store    func(b *testing.B, client *redis.Client) dedupe.Store
}

func memoryStore(b *testing.B, _ *redis.Client) dedupe.Store {
	s, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

func redisStore(b *testing.B, client *redis.Client) dedupe.Store {
	s, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

func (h handling) subscriber(b *testing.B, client *redis.Client) message.Subscriber {
	var s message.Subscriber
	var err error
	if h.inFlight == 0 {
		s, err = redisstream.NewSubscriber(redisstream.SubscriberConfig{
			Client: client, ConsumerGroup: "bench", DisableIndefiniteInitialBlock: true,
		}, watermill.NopLogger{})
	} else {
		s, err = subscriber.New(subscriber.Config{Client: client, Group: "bench", MaxInFlight: h.inFlight}, nil)
	}
	if err != nil {
		b.Fatal(err)
	}
	return s
}

func (h handling) wrap(b *testing.B, client *redis.Client, fn message.NoPublishHandlerFunc) message.NoPublishHandlerFunc {
	if h.store == nil {
		return fn
	}
	once, err := middleware.New(middleware.Config{
		Store: h.store(b, client), Namespace: "bench", Retention: time.Hour,
		Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}"),
	}, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = once.Close(context.Background()) })
	return once.Consumer(fn)
}

// BenchmarkRouter handles messages of about 200 bytes that wait in the stream, by a handler
// that does nothing: without deduplication, and each once.
func BenchmarkRouter(b *testing.B) {
	for _, h := range []handling{
		{"watermill-redisstream", 0, nil},
		{"ours-in-flight-64", 64, nil},
		{"once-redis-in-flight-64", 64, redisStore},
		{"once-memory-in-flight-64", 64, memoryStore},
		{"ours-in-flight-1", 1, nil},
		{"once-redis-in-flight-1", 1, redisStore},
	} {
		b.Run(h.name, func(b *testing.B) {
			client := redis.NewClient(&redis.Options{Addr: testserver.Shared(b, testserver.Redis86).Addr()})
			defer func() { _ = client.Close() }()
			topic := testserver.Topic(b)
			defer client.Del(context.Background(), topic)
			for added := 0; added < b.N+1; added += 1000 {
				if err := (rawPublisher{client, false}).Publish(topic, newMessages(1000)...); err != nil {
					b.Fatal(err)
				}
			}
			var handled atomic.Int64
			warm, all := make(chan struct{}), make(chan struct{})
			router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
			if err != nil {
				b.Fatal(err)
			}
			router.AddConsumerHandler("charge", topic, h.subscriber(b, client), h.wrap(b, client, func(*message.Message) error {
				switch handled.Add(1) {
				case 1:
					close(warm)
				case int64(b.N) + 1:
					close(all)
				}
				return nil
			}))
			go func() { _ = router.Run(context.Background()) }()
			<-warm
			b.ReportAllocs()
			b.ResetTimer()
			<-all
			b.StopTimer()
			rate(b, b.N)
			_ = router.Close()
		})
	}
}
