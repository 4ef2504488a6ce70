package metrics_test

import (
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// BenchmarkHooks is what the metrics of one message cost, without a server: of one that is added,
// one that is a duplicate, one that is delivered, and one that is handled.
func BenchmarkHooks(b *testing.B) {
	m := newMetrics(b, metrics.Config{})
	pub, sub, once := m.PublisherHooks(), m.SubscriberHooks(), m.OnceHooks()
	receipt := publisher.Receipt{
		Topic: "orders", EntryID: "1700000000000-7", Mode: publisher.ModeIDMP, Verdict: publisher.VerdictAdded, Duration: time.Millisecond, Attempts: 1,
	}
	duplicate := receipt
	duplicate.Verdict, duplicate.Age = publisher.VerdictDuplicate, time.Minute
	for _, c := range []struct {
		name string
		call func()
	}{
		{"added", func() { pub.OnPublish(receipt) }},
		{"duplicate", func() { pub.OnPublish(duplicate) }},
		{"delivered", func() {
			sub.OnSettle(subscriber.SettleEvent{Topic: "orders", Group: "billing", EntryID: "1-0", Duration: time.Millisecond})
		}},
		{"handled", func() {
			once.OnHandled(middleware.Event{Topic: "orders", Handler: "charge", Duration: time.Millisecond})
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				c.call()
			}
		})
	}
}
