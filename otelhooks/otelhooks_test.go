package otelhooks_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/otelhooks"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// traced is metadata with the context of a span of another process.
func traced() message.Metadata {
	return message.Metadata{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
}

const (
	tracedTrace = "0af7651916cd43dd8448eb211c80319c"
	tracedSpan  = "b7ad6b7169203331"
)

func newMessage(payload string, md message.Metadata) *message.Message {
	msg := message.NewMessage("u", []byte(payload))
	for k, v := range md {
		msg.Metadata[k] = v
	}
	return msg
}

func newOnce(t testing.TB, tel telemetry, change func(*middleware.Config)) *middleware.Once {
	t.Helper()
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	cfg := middleware.Config{
		Store: tel.Store("records", store), Namespace: "billing", Retention: time.Hour, Key: eventkey.Template("pay:{$.id}"),
		Hooks: []middleware.Hooks{tel.OnceHooks()},
	}
	if change != nil {
		change(&cfg)
	}
	once, err := middleware.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = once.Close(context.Background()) })
	return once
}

// handle has a message handled as a Router does, with our middleware inside of the tracing one.
func handle(tel telemetry, once *middleware.Once, msg *message.Message, fn message.NoPublishHandlerFunc) error {
	_, err := tel.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		return once.Run(msg.Context(), msg, "charge", func(ctx context.Context) ([]*message.Message, error) { return nil, fn(msg) })
	})(msg)
	return err
}

// An event comes four times: its handler fails, succeeds, and does not run again; then another
// event comes under its key. Each has a span below that of the publish, with how it ended.
func TestSpansOfHandling(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	once := newOnce(t, tel, nil)
	broken := errors.New("no connection to the bank")
	inside := make(map[trace.SpanID]bool)
	var tries int
	for _, payload := range []string{`{"id":"1"}`, `{"id":"1"}`, `{"id":"1"}`, `{"id":"1","amount":2}`} {
		_ = handle(tel, once, newMessage(payload, traced()), func(msg *message.Message) error {
			inside[trace.SpanContextFromContext(msg.Context()).SpanID()] = true
			if tries++; tries == 1 {
				return broken
			}
			return nil
		})
	}
	list := tel.named("handle ")
	want := []struct {
		outcome, errorType string
		status             codes.Code
	}{
		{"failed", "failed", codes.Error}, {"handled", "", codes.Unset}, {"skipped", "", codes.Unset}, {"conflict", "conflict", codes.Error},
	}
	if len(list) != len(want) {
		t.Fatalf("spans %v", tel.names())
	}
	for i, s := range list {
		wantValues(t, s, map[string]string{
			"idempotent.outcome": want[i].outcome, "error.type": want[i].errorType, "messaging.system": "redis",
			"messaging.operation.type": "process", "idempotent.key": "",
		})
		if s.Status.Code != want[i].status || s.SpanKind != trace.SpanKindConsumer {
			t.Errorf("%s: status %v, kind %v", want[i].outcome, s.Status, s.SpanKind)
		}
		if s.Parent.TraceID().String() != tracedTrace || s.Parent.SpanID().String() != tracedSpan || s.SpanContext.TraceID() != s.Parent.TraceID() {
			t.Errorf("%s: parent %v", want[i].outcome, s.Parent)
		}
		if ran := inside[s.SpanContext.SpanID()]; ran != (i < 2) {
			t.Errorf("%s: on the handler's context: %v", want[i].outcome, ran)
		}
	}
	if !strings.Contains(list[0].Status.Description, broken.Error()) || len(list[0].Events) != 1 {
		t.Errorf("the handler's error: %+v, events %v", list[0].Status, list[0].Events)
	}
	if _, ok := values(list[2])["idempotent.handled.age_seconds"]; !ok {
		t.Errorf("when it was handled is not known: %v", values(list[2]))
	}
	if strings.Contains(list[3].Status.Description, "pay:1") {
		t.Errorf("the key is in the status: %v", list[3].Status)
	}
	points := tel.points(t)
	for series, v := range map[string]float64{
		"idempotent.messages{handler=charge,outcome=failed,topic=}":             1,
		"idempotent.messages{handler=charge,outcome=handled,topic=}":            1,
		"idempotent.messages{handler=charge,outcome=skipped,topic=}":            1,
		"idempotent.messages{handler=charge,outcome=conflict,topic=}":           1,
		"idempotent.messages{handler=charge,outcome=delayed,topic=}":            0,
		"idempotent.store_steps{outcome=claimed,step=claim,store=records}":      2,
		"idempotent.store_steps{outcome=done,step=claim,store=records}":         1,
		"idempotent.handler_duration{handler=charge,topic=}":                    2,
		"idempotent.store_step_duration{step=commit,store=records}":             1,
		"idempotent.claims_taken_over{handler=charge,topic=}":                   0,
		"idempotent.store_steps{outcome=unavailable,step=commit,store=records}": 0,
	} {
		if got, ok := points[series]; !ok || got != v {
			t.Errorf("%s is %v (there: %v), want %v", series, got, ok, v)
		}
	}
}

// With Details the key is there, and so are the texts that name it.
func TestDetails(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{Details: true})
	once := newOnce(t, tel, nil)
	for _, payload := range []string{`{"id":"1"}`, `{"id":"1","amount":2}`} {
		_ = handle(tel, once, newMessage(payload, nil), func(*message.Message) error { return nil })
	}
	conflict := tel.named("handle ")[1]
	wantValues(t, conflict, map[string]string{"idempotent.key": "pay:1", "idempotent.outcome": "conflict"})
	if conflict.Status.Description != dedupe.ErrConflict.Error() {
		t.Errorf("status %v", conflict.Status)
	}
}

// With Link the handling is a trace of its own that names the other.
func TestLink(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{Link: true})
	_, err := tel.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, nil })(newMessage("{}", traced()))
	if err != nil {
		t.Fatal(err)
	}
	s := tel.one(t, "handle ")
	if s.Parent.IsValid() || s.SpanContext.TraceID().String() == tracedTrace || len(s.Links) != 1 || s.Links[0].SpanContext.SpanID().String() != tracedSpan {
		t.Errorf("parent %v, links %v", s.Parent, s.Links)
	}
}

// A handler that is tried again in one delivery, outside of which the tracing is or not, has no
// span below that of the try before. One that panics has a span that says so.
func TestTriesOfOneDelivery(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	h := tel.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no") })
	msg := newMessage("{}", nil)
	for range 2 {
		_, _ = h(msg)
	}
	for _, s := range tel.named("handle ") {
		if s.Parent.IsValid() || s.Status.Code != codes.Error || s.Status.Description != "no" {
			t.Errorf("parent %v, status %v", s.Parent, s.Status)
		}
	}
	tel.spans.Reset()
	func() {
		defer func() { _ = recover() }()
		_, _ = tel.Middleware(func(*message.Message) ([]*message.Message, error) { panic("no") })(newMessage("{}", nil))
	}()
	wantValues(t, tel.one(t, "handle "), map[string]string{"error.type": "panic"})
}

// Messages that a handler returns are below its span, also without our middleware.
func TestReturnedMessages(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	out, err := tel.Middleware(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{newMessage("a", nil), newMessage("b", nil)}, nil
	})(newMessage("{}", traced()))
	if err != nil {
		t.Fatal(err)
	}
	s := tel.one(t, "handle ")
	for _, msg := range out {
		if got := trace.SpanContextFromContext(msg.Context()); got.SpanID() != s.SpanContext.SpanID() {
			t.Errorf("%s is below %v", msg.Payload, got)
		}
	}
	wantValues(t, s, map[string]string{"idempotent.outputs": "2"})
}

// closedPublisher refuses all messages, each with a receipt.
func closedPublisher(t testing.TB, tel telemetry) *publisher.Publisher {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	t.Cleanup(func() { _ = client.Close() })
	p, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing", Key: eventkey.Template("pay:{$.id}"), Hooks: []publisher.Hooks{tel.PublisherHooks()}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	return p
}

// The parent of a publish is what runs around it; without that, what the message was published
// under before. Where both are there, the second one is linked.
func TestParentOfAPublish(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	pub := closedPublisher(t, tel)
	ctx, around := tel.traces.Tracer("test").Start(context.Background(), "around")
	around.End()
	for name, c := range map[string]struct {
		md     message.Metadata
		ctx    context.Context //nolint:containedctx // a table
		parent string
		link   string
	}{
		"nothing":       {nil, context.Background(), "0000000000000000", ""},
		"metadata":      {traced(), context.Background(), tracedSpan, ""},
		"around":        {nil, ctx, around.SpanContext().SpanID().String(), ""},
		"both":          {traced(), ctx, around.SpanContext().SpanID().String(), tracedSpan},
		"Send's around": {traced(), ctx, around.SpanContext().SpanID().String(), tracedSpan},
	} {
		tel.spans.Reset()
		msg := newMessage(`{"id":"1"}`, c.md)
		if name == "Send's around" {
			if _, err := pub.Send(c.ctx, "orders", msg); !errors.Is(err, publisher.ErrClosed) {
				t.Fatal(err)
			}
		} else {
			msg.SetContext(c.ctx)
			if err := pub.Publish("orders", msg); !errors.Is(err, publisher.ErrClosed) {
				t.Fatal(err)
			}
		}
		s := tel.one(t, "publish orders")
		if s.Parent.SpanID().String() != c.parent || (c.link == "") != (len(s.Links) == 0) || c.link != "" && s.Links[0].SpanContext.SpanID().String() != c.link {
			t.Errorf("%s: parent %v, links %v", name, s.Parent, s.Links)
		}
		wantValues(t, s, map[string]string{"error.type": "closed", "idempotent.verdict": "unknown", "messaging.destination.name": "orders", "messaging.operation.type": "send"})
		if s.Status.Code != codes.Error || s.SpanKind != trace.SpanKindProducer || len(s.Events) != 0 {
			t.Errorf("%s: %v %v %v", name, s.Status, s.SpanKind, s.Events)
		}
		if msg.Metadata["traceparent"] != c.md["traceparent"] {
			t.Errorf("%s: the caller's message was changed: %v", name, msg.Metadata)
		}
	}
}

// A dead letter of an entry that was not handled here has a span, too.
func TestDeadLetterOfAnother(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	tel.SubscriberHooks().OnDeadLetter(subscriber.DeadLetterEvent{
		Topic: "orders", Group: "billing", EntryID: "1-0", DeadLetterTopic: "{orders}.dead", DeadLetterID: "2-0", Reason: "made up", Count: 3,
	})
	s := tel.one(t, "dead-letter orders")
	if s.Parent.IsValid() {
		t.Errorf("parent %v", s.Parent)
	}
	wantValues(t, s, map[string]string{
		"idempotent.dead_letter.reason": "other", "idempotent.dead_letter.id": "2-0", "messaging.message.id": "1-0",
		"idempotent.delivery.count": "3", "messaging.consumer.group.name": "billing",
	})
}

type wrongPropagator struct{ propagation.TraceContext }

func (wrongPropagator) Fields() []string { return []string{"b3", "traceparent"} }

func TestInvalidConfig(t *testing.T) {
	_, err := otelhooks.New(otelhooks.Config{MaxTopics: -1, AgeBuckets: []float64{2, 1}, Propagator: wrongPropagator{}})
	if err == nil {
		t.Fatal("no error")
	}
	for _, words := range []string{"MaxTopics -1 is negative", "AgeBuckets[1] 1 is not above", `Propagator writes "b3"`} {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("no %q in: %v", words, err)
		}
	}
}

// Instrument adds to what is there.
func TestInstrument(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	other := newTelemetry(t, otelhooks.Config{})
	cfg := other.Instrument(tel.Instrument(idempotent.Config{}))
	if len(cfg.Publisher.Hooks) != 2 || len(cfg.Subscriber.Hooks) != 2 || len(cfg.Once.Hooks) != 2 {
		t.Error("hooks were replaced")
	}
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if s := cfg.WrapStore(store); dedupe.Unwrap(s) != dedupe.Store(store) {
		t.Errorf("store %T", s)
	}
}

// 10,000 topics make no more series than so many, and those above MaxTopics are counted together.
func TestSeriesAreBounded(t *testing.T) {
	const limit, topics = 3, 10_000
	tel := newTelemetry(t, otelhooks.Config{MaxTopics: limit})
	pub, sub, once := tel.PublisherHooks(), tel.SubscriberHooks(), tel.OnceHooks()
	for i := range topics {
		topic := fmt.Sprint("orders-", i)
		pub.OnPublish(publisher.Receipt{Topic: topic, Verdict: publisher.VerdictAdded, Mode: publisher.ModeIDMP, Duration: time.Millisecond})
		pub.OnWindow(publisher.WindowEvent{Topic: topic, Effective: publisher.Window{Duration: time.Hour, Entries: 1000}})
		sub.OnSettle(subscriber.SettleEvent{Topic: topic, Group: "billing", Duration: time.Millisecond})
		once.OnHandled(middleware.Event{Topic: topic, Handler: "charge", Duration: time.Millisecond})
	}
	points := tel.points(t)
	perName := make(map[string]int)
	for series := range points {
		perName[series[:strings.Index(series, "{")]]++
	}
	for name, n := range perName {
		if n > 15*(limit+1) { // 15 are the reasons of a failed publish
			t.Errorf("%s has %d series", name, n)
		}
	}
	for series, v := range map[string]float64{
		"idempotent.publishes{mode=idmp,topic=orders-0,verdict=added}":           1,
		"idempotent.publishes{mode=idmp,topic=other,verdict=added}":              topics - limit,
		"idempotent.deliveries{group=other,settlement=acked,topic=other}":        topics - limit,
		"idempotent.messages{handler=other,outcome=handled,topic=other}":         topics - limit,
		"idempotent.window{topic=orders-0}":                                      3600,
		"idempotent.window_entries{topic=orders-2}":                              1000,
		"idempotent.publish_duration{topic=other}":                               topics - limit,
		"idempotent.publish_errors{reason=closed,topic=orders-1}":                0,
		"idempotent.publishes{mode=idmp,topic=orders-0,verdict=original_gone}":   0,
		"idempotent.delivery_duration{group=billing,topic=orders-0}":             1,
		"idempotent.subscriber_down{group=billing,topic=orders-0}":               0,
		"idempotent.dead_letters{group=other,reason=max_deliveries,topic=other}": 0,
	} {
		if got, ok := points[series]; !ok || got != v {
			t.Errorf("%s is %v (there: %v), want %v", series, got, ok, v)
		}
	}
	if _, ok := points["idempotent.window{topic=other}"]; ok {
		t.Error("the windows of several topics are one")
	}
}

// An overflow says nothing about whether the window differs: the gauge stays as it was.
func TestOverflowLeavesWhatDiffers(t *testing.T) {
	tel := newTelemetry(t, otelhooks.Config{})
	hooks, ev := tel.PublisherHooks(), publisher.WindowEvent{Topic: "orders", Effective: publisher.Window{Duration: time.Hour}}
	for _, kind := range []publisher.WindowEventKind{publisher.WindowEffective, publisher.WindowDiffers, publisher.WindowOverflow} {
		ev.Kind, ev.Evicted = kind, 7
		hooks.OnWindow(ev)
	}
	points := tel.points(t)
	if points["idempotent.window_differs{topic=orders}"] != 1 || points["idempotent.window_evicted{topic=orders}"] != 7 {
		t.Errorf("%v", points)
	}
}
