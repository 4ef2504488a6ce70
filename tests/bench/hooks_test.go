package bench_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// way is one of two ways to do something; what it needs is prepared before the clock starts.
type way struct{ prepare, work func() }

func wayOf(prepare, work func()) way { return way{prepare, work} }

// pairs measures two ways of the same work by turns, so that what else the machine does meets
// both, and reports the median of the ratios: 1.03 is 3 % more with than without.
func pairs(b *testing.B, without, with way) {
	for _, w := range []way{without, with} { // each once unmeasured
		w.prepare()
		w.work()
	}
	var ratios []float64
	took := func(w way) float64 {
		w.prepare()
		begun := time.Now()
		w.work()
		return float64(time.Since(begun))
	}
	for b.Loop() {
		var before, after float64
		if len(ratios)%2 == 0 {
			before = took(without)
			after = took(with)
		} else {
			after = took(with)
			before = took(without)
		}
		ratios = append(ratios, after/before)
	}
	slices.Sort(ratios)
	b.ReportMetric(ratios[len(ratios)/2], "with/without")
	b.ReportMetric(ratios[len(ratios)/4], "quartile-1")
	b.ReportMetric(ratios[len(ratios)*3/4], "quartile-3")
}

// BenchmarkHooks is what metrics cost: with the hooks of module metrics beside without any, in
// pairs of 10,000 messages each. Run it with -benchtime 40x or so.
func BenchmarkHooks(b *testing.B) {
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		b.Fatal(err)
	}
	const messages, each = backlog / 5, 1000
	ctx := context.Background()
	b.Run("publish-batch", func(b *testing.B) {
		client := testserver.Shared(b, testserver.Redis86).Client()
		topics := []string{testserver.Topic(b) + "-without", testserver.Topic(b) + "-with"}
		publish := func(topic string, hooks ...publisher.Hooks) way {
			p, err := publisher.New(publisher.Config{
				Client: client, ProducerID: "payment-service", Mode: publisher.ModeIDMP, Hooks: hooks, DefaultMaxlen: messages,
				Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}"),
			}, nil)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = p.Close() })
			var msgs []*message.Message
			return way{func() { msgs = newMessages(messages) }, func() {
				for call := range slices.Chunk(msgs, each) {
					if err := p.Publish(topic, call...); err != nil {
						b.Fatal(err)
					}
				}
			}}
		}
		pairs(b, publish(topics[0]), publish(topics[1], m.PublisherHooks()))
		client.Del(ctx, topics...)
	})
	b.Run("subscribe", func(b *testing.B) {
		client := testserver.Shared(b, testserver.Redis86).Client()
		receive := func(hooks ...subscriber.Hooks) (prepare, work func()) {
			topic := fill(b, client)
			ctx, cancel := context.WithCancel(ctx)
			s, err := subscriber.New(subscriber.Config{Client: client, Group: "bench", Hooks: hooks}, nil)
			if err != nil {
				b.Fatal(err)
			}
			var list <-chan *message.Message
			if list, err = s.Subscribe(ctx, topic); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() {
				cancel()
				for range list { // until it is closed
				}
				client.Del(context.Background(), topic)
			})
			left := backlog
			return func() {
					if left == 0 {
						refill(b, client, topic)
						left = backlog
					}
				}, func() {
					for range messages {
						(<-list).Ack()
					}
					left -= messages
				}
		}
		pairs(b, wayOf(receive()), wayOf(receive(m.SubscriberHooks())))
	})
}
