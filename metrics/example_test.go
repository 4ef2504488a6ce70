package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sort"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// An event comes three times: its handler fails, succeeds, and does not run again.
func Example() {
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		panic(err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)

	memory, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	once, err := middleware.New(middleware.Config{
		Store:     m.Store("records", memory),
		Namespace: "billing",
		Retention: 24 * time.Hour,
		Key:       eventkey.Template("pay:{$.payment_id}"),
		Hooks:     []middleware.Hooks{m.OnceHooks()},
	}, nil)
	if err != nil {
		panic(err)
	}
	tries := 0
	for range 3 {
		_, _ = once.Run(context.Background(), message.NewMessage("", []byte(`{"payment_id":"p9001"}`)), "charge",
			func(context.Context) ([]*message.Message, error) {
				if tries++; tries == 1 {
					return nil, errors.New("no connection to the bank")
				}
				return nil, nil
			})
	}
	_ = once.Close(context.Background())
	printCounters(registry)
	// Output:
	// idempotent_messages_total charge failed 1
	// idempotent_messages_total charge handled 1
	// idempotent_messages_total charge skipped 1
	// idempotent_store_steps_total claimed claim records 2
	// idempotent_store_steps_total done claim records 1
	// idempotent_store_steps_total ok commit records 1
	// idempotent_store_steps_total ok rollback records 1
}

// printCounters prints those that are above 0, with the values of their labels.
func printCounters(registry prometheus.Gatherer) {
	families, err := registry.Gather()
	if err != nil {
		panic(err)
	}
	var lines []string
	for _, f := range families {
		for _, series := range f.GetMetric() {
			if series.Counter.GetValue() == 0 {
				continue
			}
			line := f.GetName()
			for _, l := range series.GetLabel() {
				if l.GetValue() != "" {
					line += " " + l.GetValue()
				}
			}
			lines = append(lines, fmt.Sprint(line, " ", series.Counter.GetValue()))
		}
	}
	sort.Strings(lines)
	for _, line := range lines {
		fmt.Println(line)
	}
}

var (
	ctx    = context.Background()
	client *redis.Client
)

// All parts of a service, and what the server knows of its topics.
func ExampleMetrics_Instrument() {
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		panic(err)
	}
	streams, err := metrics.NewStreams(metrics.StreamsConfig{Client: client, Topics: []string{"payments", "refunds"}})
	if err != nil {
		panic(err)
	}
	prometheus.MustRegister(m, streams)
	http.Handle("/metrics", promhttp.Handler())

	service, err := idempotent.Open(ctx, m.Instrument(idempotent.Config{
		Client:    client,
		Service:   "billing",
		Key:       eventkey.Template("pay:{$.payment_id}"),
		Retention: 7 * 24 * time.Hour,
	}))
	if err != nil {
		panic(err)
	}
	defer service.Close(ctx)
}

// The parts by themselves.
func ExampleMetrics_PublisherHooks() {
	var m *metrics.Metrics // made and registered once
	var store dedupe.Store

	_ = publisher.Config{Hooks: []publisher.Hooks{m.PublisherHooks()}}
	_ = subscriber.Config{Hooks: []subscriber.Hooks{m.SubscriberHooks()}}
	_ = middleware.Config{Hooks: []middleware.Hooks{m.OnceHooks()}, Store: m.Store("records", store)}
}
