// Package otelhooks_test looks at the traces and metrics that real servers' work makes.
package otelhooks_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/otelhooks"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// within is how long a test waits for what should happen soon.
const within = 20 * time.Second

// service is one with both kinds of metrics, and with traces.
type service struct {
	*idempotent.PubSub
	telemetry *otelhooks.Telemetry
	traces    *sdktrace.TracerProvider
	spans     *tracetest.InMemoryExporter
	reader    *metric.ManualReader
	registry  *prometheus.Registry
}

func newService(t testing.TB, client redis.UniversalClient, change func(*idempotent.Config)) service {
	t.Helper()
	s := service{spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader(), registry: prometheus.NewPedanticRegistry()}
	s.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(s.spans))
	var err error
	s.telemetry, err = otelhooks.New(otelhooks.Config{TracerProvider: s.traces, MeterProvider: metric.NewMeterProvider(metric.WithReader(s.reader))})
	if err != nil {
		t.Fatal(err)
	}
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s.registry.MustRegister(m)
	cfg := idempotent.Config{
		Client: client, Service: "billing", Key: eventkey.Template("pay:{$.id}"), Retention: 24 * time.Hour, MaxDeliveries: 2,
		Logger: observe.NewLogger(t),
		Subscriber: subscriber.Config{
			MinIdle: 8 * time.Second, Block: 50 * time.Millisecond,
			RedeliverAfter: 5 * time.Millisecond, RedeliverMax: 50 * time.Millisecond,
		},
	}
	if change != nil {
		change(&cfg)
	}
	s.PubSub, err = idempotent.Open(t.Context(), m.Instrument(s.telemetry.Instrument(cfg)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// route runs a Router with the tracing middleware until the test ends.
func (s service) route(t testing.TB, add func(*message.Router)) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(s.telemetry.Middleware)
	add(router)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-done); err != nil {
			t.Errorf("the Router: %v", err)
		}
	})
	select {
	case <-router.Running():
	case <-time.After(within):
		t.Fatal("the Router does not run")
	}
}

// spansSoon waits until there are n spans of a name, and returns them in the order of their ends.
func (s service) spansSoon(t testing.TB, name string, n int) tracetest.SpanStubs {
	t.Helper()
	var list tracetest.SpanStubs
	testserver.Eventually(t, within, func() error {
		list = nil
		var names []string
		for _, span := range s.spans.GetSpans() {
			if names = append(names, span.Name); span.Name == name {
				list = append(list, span)
			}
		}
		if len(list) != n {
			return fmt.Errorf("%d spans %q, want %d, of %q", len(list), name, n, names)
		}
		return nil
	})
	return list
}

// value is an attribute of a span, as text.
func value(span tracetest.SpanStub, name string) string {
	for _, a := range span.Attributes {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

// isBelow checks that one span is the parent of another.
func isBelow(t testing.TB, span, parent tracetest.SpanStub) {
	t.Helper()
	if span.Parent.SpanID() != parent.SpanContext.SpanID() || span.SpanContext.TraceID() != parent.SpanContext.TraceID() {
		t.Errorf("%q (%v) is not below %q (%v)", span.Name, span.Parent.SpanID(), parent.Name, parent.SpanContext.SpanID())
	}
}

// points are the values of the meter's metrics, called as Prometheus calls them: of histograms
// the count.
func (s service) points() map[string]float64 {
	var all metricdata.ResourceMetrics
	if err := s.reader.Collect(context.Background(), &all); err != nil {
		panic(err)
	}
	points := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			name := strings.ReplaceAll(m.Name, ".", "_")
			if m.Unit == "s" {
				name += "_seconds"
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					points[name+"_total"+attributes(p.Attributes)] = p.Value
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					points[name+attributes(p.Attributes)] = p.Value
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					points[name+attributes(p.Attributes)] = float64(p.Count)
				}
			}
		}
	}
	return points
}

func attributes(set attribute.Set) string {
	var list []string
	for _, a := range set.ToSlice() {
		list = append(list, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
	}
	return labels(list)
}

func labels(list []string) string {
	slices.Sort(list)
	return fmt.Sprint(list)
}
