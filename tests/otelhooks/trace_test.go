package otelhooks_test

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/codes"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// An event is published, handled, and what its handler returns is published and handled: one
// trace, each span below the one before. A retry of the publish is below its own caller and
// names the same entry. The same figures are there for Prometheus and for OpenTelemetry.
func TestChainIsOneTrace(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		in, out := testserver.Topic(t), testserver.Topic(t)
		service := newService(t, s.Client(), nil)
		service.route(t, func(r *message.Router) {
			r.AddHandler("charge", in, service.Subscriber(), out, service.Publisher(), service.Once().Handler(func(msg *message.Message) ([]*message.Message, error) {
				if state, isThere := msg.Metadata["tracestate"]; isThere {
					t.Errorf("the state %q of another trace was sent along", state)
				}
				return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(`{"id":"r1"}`))}, nil
			}))
			r.AddConsumerHandler("book", out, service.Subscriber(), service.Once().Consumer(func(*message.Message) error { return nil }))
		})
		ctx, around := service.traces.Tracer("test").Start(t.Context(), "around")
		msg := message.NewMessage(watermill.NewUUID(), []byte(`{"id":"1"}`))
		msg.SetContext(ctx)
		msg.Metadata.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01") // of another trace
		msg.Metadata.Set("tracestate", "a=b")
		if err := service.Publisher().Publish(in, msg); err != nil {
			t.Fatal(err)
		}
		around.End()
		booked := service.spansSoon(t, "handle "+out, 1)[0]
		published, charged, receipt := service.spansSoon(t, "publish "+in, 1)[0], service.spansSoon(t, "handle "+in, 1)[0], service.spansSoon(t, "publish "+out, 1)[0]
		isBelow(t, published, service.spansSoon(t, "around", 1)[0])
		isBelow(t, charged, published)
		isBelow(t, receipt, charged)
		isBelow(t, booked, receipt)
		id := value(published, "messaging.message.id")
		if id == "" || value(charged, "messaging.message.id") != id || value(published, "idempotent.verdict") != "added" ||
			value(published, "idempotent.attempts") != "1" || value(charged, "idempotent.outcome") != "handled" ||
			value(charged, "messaging.consumer.group.name") != "billing" || value(charged, "idempotent.delivery.count") != "1" {
			t.Errorf("%v\n%v", published.Attributes, charged.Attributes)
		}

		retry := message.NewMessage(watermill.NewUUID(), []byte(`{"id":"1"}`))
		if err := service.Publisher().Publish(in, retry); err != nil {
			t.Fatal(err)
		}
		again := service.spansSoon(t, "publish "+in, 2)[1]
		if value(again, "idempotent.verdict") != "duplicate" || value(again, "messaging.message.id") != id || again.SpanContext.TraceID() == published.SpanContext.TraceID() {
			t.Errorf("the retry: %v", again.Attributes)
		}
		testserver.Eventually(t, within, func() error { return sameFigures(service) })
		for series := range service.points() {
			if strings.Contains(series, "pay:") || strings.Contains(series, id) {
				t.Errorf("an attribute names an event: %s", series)
			}
		}
	})
}

// sameFigures compares what Prometheus gets with what the meter got, metric by metric.
func sameFigures(s service) error {
	families, err := s.registry.Gather()
	if err != nil {
		return err
	}
	ours := s.points()
	n := 0
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var list []string
			for _, l := range m.GetLabel() {
				list = append(list, fmt.Sprintf("%s=%s", l.GetName(), l.GetValue()))
			}
			series := f.GetName() + labels(list)
			want := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			got, ok := ours[series]
			if got != want || !ok && m.Histogram == nil {
				return fmt.Errorf("%s is %v (there: %v) for OpenTelemetry, %v for Prometheus", series, got, ok, want)
			}
			n++
		}
	}
	if n < 100 {
		return fmt.Errorf("only %d series", n)
	}
	return nil
}

// An event fails until it is a dead letter, which is replayed as a new attempt and handled: all
// of it is one trace, whoever replays it.
func TestDeadLetterAndItsReplayAreInTheTrace(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, in := s.Client(), testserver.Topic(t)
		service := newService(t, client, nil)
		var mended atomic.Bool
		service.route(t, func(r *message.Router) {
			r.AddConsumerHandler("charge", in, service.Subscriber(), service.Once().Consumer(func(*message.Message) error {
				if mended.Load() {
					return nil
				}
				return errors.New("no such card")
			}))
		})
		if err := service.Publisher().Publish(in, message.NewMessage(watermill.NewUUID(), []byte(`{"id":"1"}`))); err != nil {
			t.Fatal(err)
		}
		dead := service.spansSoon(t, "dead-letter "+in, 1)[0]
		published, failed := service.spansSoon(t, "publish "+in, 1)[0], service.spansSoon(t, "handle "+in, 2)
		for i, span := range failed {
			isBelow(t, span, published)
			if value(span, "idempotent.outcome") != "failed" || value(span, "idempotent.delivery.count") != fmt.Sprint(i+1) || span.Status.Code != codes.Error {
				t.Errorf("%v %v", span.Attributes, span.Status)
			}
		}
		isBelow(t, dead, failed[1])
		entries, err := client.XRange(t.Context(), subscriber.DeadLetterTopic(in), "-", "+").Result()
		if err != nil || len(entries) != 1 || value(dead, "idempotent.dead_letter.id") != entries[0].ID || value(dead, "idempotent.dead_letter.reason") != "max_deliveries" {
			t.Fatalf("%v, %v, %v", entries, err, dead.Attributes)
		}

		mended.Store(true)
		replayed, err := (redisstream.DefaultMarshallerUnmarshaller{}).Unmarshal(entries[0].Values)
		if err != nil {
			t.Fatal(err)
		}
		eventkey.NextAttempt(replayed)
		if err := service.Publisher().Publish(in, replayed); err != nil {
			t.Fatal(err)
		}
		handled := service.spansSoon(t, "handle "+in, 3)[2]
		replay := service.spansSoon(t, "publish "+in, 2)[1]
		isBelow(t, replay, published)
		isBelow(t, handled, replay)
		if value(replay, "idempotent.verdict") != "added" || value(handled, "idempotent.outcome") != "handled" {
			t.Errorf("%v\n%v", replay.Attributes, handled.Attributes)
		}
	})
}

// everything is a fingerprint that takes all of a message but its UUID.
var everything = eventkey.FingerprintFunc(func(msg *message.Message) ([]byte, error) {
	h := sha256.New()
	h.Write(msg.Payload)
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		fmt.Fprintf(h, "\x00%s\x00%s", name, msg.Metadata[name])
	}
	return h.Sum(nil), nil
})

// A retry has another trace context. In every mode, with a fingerprint that takes all metadata
// and with any marshaller, it is a duplicate and no conflict, also where the caller has put a
// trace context into the metadata by itself. What is in the stream is that of the publish.
func TestTracedRetryIsADuplicate(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		for name, change := range map[string]func(*publisher.Config){
			"latch":             func(c *publisher.Config) { c.Mode = publisher.ModeLatch },
			"latch/fingerprint": func(c *publisher.Config) { c.Mode, c.Fingerprint = publisher.ModeLatch, everything },
			"latch/marshaller": func(c *publisher.Config) {
				c.Mode, c.Fingerprint, c.Marshaller = publisher.ModeLatch, everything, wrapped{redisstream.DefaultMarshallerUnmarshaller{}}
			},
			"idmp":             func(c *publisher.Config) { c.Mode = publisher.ModeIDMP },
			"idmp/fingerprint": func(c *publisher.Config) { c.Mode, c.Fingerprint = publisher.ModeIDMP, everything },
			"idmp/marshaller": func(c *publisher.Config) {
				c.Mode, c.Fingerprint, c.Marshaller = publisher.ModeIDMP, everything, wrapped{redisstream.DefaultMarshallerUnmarshaller{}}
			},
			"idmpauto": func(c *publisher.Config) {
				c.Mode, c.Fingerprint, c.ContentMetadata, c.Key = publisher.ModeIDMPAuto, everything, []string{"tenant"}, eventkey.Content("tenant")
			},
		} {
			if strings.HasPrefix(name, "idmp") && !s.Kind().HasIDMP() {
				continue
			}
			t.Run(name, func(t *testing.T) {
				client, topic := s.Client(), testserver.Topic(t)
				service := newService(t, client, func(c *idempotent.Config) { change(&c.Publisher) })
				for i, own := range []string{"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "", "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"} {
					msg := message.NewMessage(watermill.NewUUID(), []byte(`{"id":"1"}`))
					msg.Metadata.Set("tenant", "t")
					if own != "" {
						msg.Metadata.Set("traceparent", own)
						msg.Metadata.Set("tracestate", "a=b")
						msg.Metadata.Set("baggage", "a=b")
					}
					before := len(msg.Metadata)
					if err := service.Publisher().Publish(topic, msg); err != nil {
						t.Fatal(err)
					}
					r, _ := publisher.ReceiptOf(msg)
					if want := i > 0; (r.Verdict == publisher.VerdictDuplicate) != want {
						t.Errorf("publish %d: %v", i, r.Verdict)
					}
					if len(msg.Metadata) != before || msg.Metadata["traceparent"] != own {
						t.Errorf("the caller's message was changed: %v", msg.Metadata)
					}
				}
				entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
				if err != nil || len(entries) != 1 {
					t.Fatalf("%d entries, %v", len(entries), err)
				}
				stored, err := (redisstream.DefaultMarshallerUnmarshaller{}).Unmarshal(entries[0].Values)
				if err != nil {
					t.Fatal(err)
				}
				span := service.spansSoon(t, "publish "+topic, 3)[0].SpanContext
				state := "a=b" // goes on with the trace
				want := fmt.Sprintf("00-%s-%s-01", span.TraceID(), span.SpanID())
				if name == "idmpauto" {
					want, state = "", "" // the server compares all that is there
				}
				_, isCarried := stored.Metadata["baggage"]
				if stored.Metadata["traceparent"] != want || stored.Metadata["tracestate"] != state || isCarried != (name != "idmpauto") {
					t.Errorf("in the stream is %v, want %s", stored.Metadata, want)
				}
			})
		}
	})
}

// wrapped is a marshaller that is not known to write the same bytes.
type wrapped struct {
	redisstream.DefaultMarshallerUnmarshaller
}

// Two entries of one event, as a producer without idempotency writes them, differ in their trace
// context alone: the second one is skipped, and no conflict, with a fingerprint of all metadata.
func TestTracedRedeliveryIsSkipped(t *testing.T) {
	s := testserver.Shared(t, testserver.Valkey91)
	client, in := s.Client(), testserver.Topic(t)
	service := newService(t, client, func(c *idempotent.Config) { c.Once.Fingerprint = everything })
	service.route(t, func(r *message.Router) {
		r.AddConsumerHandler("charge", in, service.Subscriber(), service.Once().Consumer(func(*message.Message) error { return nil }))
	})
	theirs, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	for i, parent := range []string{"b7ad6b7169203331", "00f067aa0ba902b7"} {
		msg := message.NewMessage(watermill.NewUUID(), []byte(`{"id":"1"}`))
		msg.Metadata.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-"+parent+"-01")
		if err := theirs.Publish(in, msg); err != nil {
			t.Fatal(err)
		}
		span := service.spansSoon(t, "handle "+in, i+1)[i]
		if want := []string{"handled", "skipped"}[i]; value(span, "idempotent.outcome") != want || span.Parent.SpanID().String() != parent {
			t.Errorf("entry %d: %v below %v", i, span.Attributes, span.Parent.SpanID())
		}
	}
}

// A Guard's messages are traced as a publisher's.
func TestGuardIsTraced(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	service := newService(t, client, nil)
	guard, err := publisher.NewGuard(publisher.Config{
		Client: client, ProducerID: "billing", Key: eventkey.Template("pay:{$.id}"), Fingerprint: everything,
		Hooks: []publisher.Hooks{service.telemetry.PublisherHooks()},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Close() }()
	theirs, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: guard.Client()}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	pub, err := guard.Decorator()(theirs)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := pub.Publish(topic, message.NewMessage(watermill.NewUUID(), []byte(`{"id":"1"}`))); err != nil {
			t.Fatal(err)
		}
	}
	spans := service.spansSoon(t, "publish "+topic, 2)
	if value(spans[0], "idempotent.verdict") != "added" || value(spans[1], "idempotent.verdict") != "duplicate" {
		t.Errorf("%v\n%v", spans[0].Attributes, spans[1].Attributes)
	}
	entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil || len(entries) != 1 || !strings.Contains(fmt.Sprint(entries[0].Values), spans[0].SpanContext.SpanID().String()) {
		t.Errorf("%v, %v", entries, err)
	}
}
