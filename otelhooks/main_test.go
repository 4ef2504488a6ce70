package otelhooks_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/otelhooks"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// telemetry is one whose spans and metrics a test can read.
type telemetry struct {
	*otelhooks.Telemetry
	traces *sdktrace.TracerProvider
	spans  *tracetest.InMemoryExporter
	reader *metric.ManualReader
}

func newTelemetry(t testing.TB, cfg otelhooks.Config) telemetry {
	t.Helper()
	own := telemetry{spans: tracetest.NewInMemoryExporter(), reader: metric.NewManualReader()}
	own.traces = sdktrace.NewTracerProvider(sdktrace.WithSyncer(own.spans))
	cfg.TracerProvider, cfg.MeterProvider = own.traces, metric.NewMeterProvider(metric.WithReader(own.reader))
	var err error
	if own.Telemetry, err = otelhooks.New(cfg); err != nil {
		t.Fatal(err)
	}
	return own
}

// named are the spans of a name, in the order of their ends.
func (tel telemetry) named(name string) (list tracetest.SpanStubs) {
	for _, s := range tel.spans.GetSpans() {
		if s.Name == name {
			list = append(list, s)
		}
	}
	return list
}

// one is the only span of a name.
func (tel telemetry) one(t testing.TB, name string) tracetest.SpanStub {
	t.Helper()
	list := tel.named(name)
	if len(list) != 1 {
		t.Fatalf("%d spans %q of %v", len(list), name, tel.names())
	}
	return list[0]
}

func (tel telemetry) names() (list []string) {
	for _, s := range tel.spans.GetSpans() {
		list = append(list, s.Name)
	}
	return list
}

// values are the attributes of a span, as text.
func values(s tracetest.SpanStub) map[string]string {
	all := make(map[string]string)
	for _, a := range s.Attributes {
		all[string(a.Key)] = a.Value.String()
	}
	return all
}

// wantValues compares those attributes that are named; an empty one must be missing.
func wantValues(t testing.TB, s tracetest.SpanStub, want map[string]string) {
	t.Helper()
	got := values(s)
	for name, value := range want {
		if got[name] != value {
			t.Errorf("span %q: %s is %q, want %q", s.Name, name, got[name], value)
		}
	}
}

// points are the values of metrics, written as "idempotent.publishes{topic=orders}".
func (tel telemetry) points(t testing.TB) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := tel.reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
	points := make(map[string]float64)
	put := func(name string, set attribute.Set, v float64) {
		var labels []string
		for _, a := range set.ToSlice() {
			labels = append(labels, fmt.Sprintf("%s=%s", a.Key, a.Value.String()))
		}
		slices.Sort(labels)
		points[name+"{"+strings.Join(labels, ",")+"}"] = v
	}
	for _, scope := range all.ScopeMetrics {
		if scope.Scope.Name != otelhooks.Scope {
			t.Errorf("scope %q", scope.Scope.Name)
		}
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, p.Value)
				}
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					put(m.Name, p.Attributes, float64(p.Count))
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return points
}
