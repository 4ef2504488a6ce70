package otelhooks

import (
	"context"
	"errors"
	"strings"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/onceward/watermill-idempotent/internal/measure"
)

// backend makes instruments of a meter.
type backend struct {
	meter metric.Meter
	errs  []error
}

// err is what the meter has refused.
func (b *backend) err() error { return errors.Join(b.errs...) }

// nameOf makes the name and the unit of an instrument of a metric's name, such that an exporter
// for Prometheus makes the same name of it again.
func nameOf(name string) (instrument, unit string) {
	name, isTime := strings.CutSuffix(strings.TrimSuffix(name, "_total"), "_seconds")
	if isTime {
		unit = "s"
	}
	return "idempotent." + name, unit
}

// named are the names of attributes.
type named []string

// with is the option for a list of their values, as a slice that is made once.
func (n named) with(values []string) metric.MeasurementOption {
	list := make([]attribute.KeyValue, len(n))
	for i, name := range n {
		list[i] = attribute.String(name, values[i])
	}
	return metric.WithAttributeSet(attribute.NewSet(list...))
}

type (
	counters struct {
		metric.Float64Counter
		named
	}
	gauges struct {
		metric.Float64Gauge
		named
		mu   sync.Mutex
		made map[string]*gauge // by values, so that one that is asked for again keeps its own
	}
	histograms struct {
		metric.Float64Histogram
		named
	}
)

type counter struct {
	of   metric.Float64Counter
	with []metric.AddOption
}

type gauge struct {
	of   metric.Float64Gauge
	with []metric.RecordOption
}

type observer struct {
	of   metric.Float64Histogram
	with []metric.RecordOption
}

func (b *backend) Counters(name, help string, labels ...string) measure.Counters {
	name, unit := nameOf(name)
	c, err := b.meter.Float64Counter(name, metric.WithDescription(help), metric.WithUnit(unit))
	b.errs = append(b.errs, err)
	return counters{c, labels}
}

func (b *backend) Gauges(name, help string, labels ...string) measure.Gauges {
	name, unit := nameOf(name)
	g, err := b.meter.Float64Gauge(name, metric.WithDescription(help), metric.WithUnit(unit))
	b.errs = append(b.errs, err)
	return &gauges{Float64Gauge: g, named: labels, made: make(map[string]*gauge)}
}

func (b *backend) Histograms(name, help string, buckets []float64, labels ...string) measure.Histograms {
	name, unit := nameOf(name)
	h, err := b.meter.Float64Histogram(name, metric.WithDescription(help), metric.WithUnit(unit), metric.WithExplicitBucketBoundaries(buckets...))
	b.errs = append(b.errs, err)
	return histograms{h, labels}
}

// With implements measure.Counters.
func (c counters) With(values ...string) measure.Counter {
	one := &counter{c.Float64Counter, []metric.AddOption{c.with(values)}}
	one.Add(0) // as a counter of Prometheus, it is there before it counts
	return one
}

// With implements measure.Gauges.
func (g *gauges) With(values ...string) measure.Gauge {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := strings.Join(values, "\xff") // which no UTF-8 has
	one := g.made[key]
	if one == nil {
		one = &gauge{g.Float64Gauge, []metric.RecordOption{g.with(values)}}
		one.Set(0)
		g.made[key] = one
	}
	return one
}

// With implements measure.Histograms. A histogram of OpenTelemetry is there from its first
// value on.
func (h histograms) With(values ...string) measure.Observer {
	return &observer{h.Float64Histogram, []metric.RecordOption{h.with(values)}}
}

func (c *counter) Inc()               { c.Add(1) }
func (c *counter) Add(v float64)      { c.of.Add(context.Background(), v, c.with...) }
func (g *gauge) Set(v float64)        { g.of.Record(context.Background(), v, g.with...) }
func (o *observer) Observe(v float64) { o.of.Record(context.Background(), v, o.with...) }
