package otelhooks_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/otelhooks"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// BenchmarkHooks publishes a message to a closed publisher, which refuses it without a server, and
// has one handled and acknowledged: without hooks, with spans that are not sampled, and with
// spans that are recorded and thrown away. The differences are what the hooks cost.
func BenchmarkHooks(b *testing.B) {
	for _, c := range []struct {
		name    string
		sampler sdktrace.Sampler
	}{{"none", nil}, {"not-sampled", sdktrace.NeverSample()}, {"recorded", sdktrace.AlwaysSample()}} {
		b.Run(c.name, func(b *testing.B) {
			hooked := c.sampler != nil
			tel, err := otelhooks.New(otelhooks.Config{
				TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSampler(c.sampler)),
				MeterProvider:  metric.NewMeterProvider(metric.WithReader(metric.NewManualReader())),
			})
			if err != nil {
				b.Fatal(err)
			}
			client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
			defer func() { _ = client.Close() }()
			cfg := publisher.Config{Client: client, ProducerID: "billing", Key: eventkey.Template("pay:{$.id}")}
			sub, once := tel.SubscriberHooks(), tel.OnceHooks()
			handler := func(*message.Message) ([]*message.Message, error) { return nil, nil }
			if hooked {
				cfg.Hooks = []publisher.Hooks{tel.PublisherHooks()}
				handler = tel.Middleware(func(*message.Message) ([]*message.Message, error) {
					once.OnHandled(middleware.Event{Topic: "orders", Handler: "charge", Duration: time.Millisecond})
					return nil, nil
				})
			}
			pub, err := publisher.New(cfg, nil)
			if err != nil {
				b.Fatal(err)
			}
			if err := pub.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				msg := message.NewMessage("u", nil)
				_ = pub.Publish("orders", msg)
				_, _ = handler(msg)
				if hooked {
					sub.OnSettle(subscriber.SettleEvent{Topic: "orders", Group: "billing", EntryID: "1-0", Duration: time.Millisecond})
				}
			}
		})
	}
}
