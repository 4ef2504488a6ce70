package otelhooks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/otelhooks"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// An event comes three times: its handler fails, succeeds, and does not run again. Each time has
// a span, in the trace of the publish.
func Example() {
	exporter := tracetest.NewInMemoryExporter() // yours sends them to a collector
	t, err := otelhooks.New(otelhooks.Config{TracerProvider: sdktrace.NewTracerProvider(sdktrace.WithSyncer(exporter))})
	if err != nil {
		panic(err)
	}
	memory, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	once, err := middleware.New(middleware.Config{
		Store:     memory,
		Namespace: "billing",
		Retention: 24 * time.Hour,
		Key:       eventkey.Template("pay:{$.payment_id}"),
		Hooks:     []middleware.Hooks{t.OnceHooks()},
	}, nil)
	if err != nil {
		panic(err)
	}
	tries := 0
	handler := t.Middleware(func(msg *message.Message) ([]*message.Message, error) { // router.AddMiddleware does it
		return once.Run(msg.Context(), msg, "charge", func(context.Context) ([]*message.Message, error) {
			if tries++; tries == 1 {
				return nil, errors.New("no connection to the bank")
			}
			return nil, nil
		})
	})
	for range 3 {
		msg := message.NewMessage("", []byte(`{"payment_id":"p9001"}`))
		msg.Metadata.Set("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
		_, _ = handler(msg)
	}
	_ = once.Close(context.Background())
	for _, span := range exporter.GetSpans() {
		for _, a := range span.Attributes {
			if a.Key == "idempotent.outcome" {
				fmt.Println(span.SpanContext.TraceID(), a.Value.AsString())
			}
		}
	}
	// Output:
	// 0af7651916cd43dd8448eb211c80319c failed
	// 0af7651916cd43dd8448eb211c80319c handled
	// 0af7651916cd43dd8448eb211c80319c skipped
}

var (
	ctx    = context.Background()
	client *redis.Client
	router *message.Router
)

// All parts of a service.
func ExampleTelemetry_Instrument() {
	t, err := otelhooks.New(otelhooks.Config{})
	if err != nil {
		panic(err)
	}
	service, err := idempotent.Open(ctx, t.Instrument(idempotent.Config{
		Client:    client,
		Service:   "billing",
		Key:       eventkey.Template("pay:{$.payment_id}"),
		Retention: 7 * 24 * time.Hour,
	}))
	if err != nil {
		panic(err)
	}
	defer service.Close(ctx)

	router.AddMiddleware(t.Middleware)
}

// The parts by themselves.
func ExampleTelemetry_PublisherHooks() {
	var t *otelhooks.Telemetry // made once
	var store dedupe.Store

	_ = publisher.Config{Hooks: []publisher.Hooks{t.PublisherHooks()}}
	_ = subscriber.Config{Hooks: []subscriber.Hooks{t.SubscriberHooks()}}
	_ = middleware.Config{Hooks: []middleware.Hooks{t.OnceHooks()}, Store: t.Store("records", store)}
}
