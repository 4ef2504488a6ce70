package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/watermill-idempotent/internal/measure"
)

// backend makes Prometheus' vectors of metrics.
type backend struct{ collectors []prometheus.Collector }

type (
	counters   struct{ *prometheus.CounterVec }
	gauges     struct{ *prometheus.GaugeVec }
	histograms struct{ *prometheus.HistogramVec }
)

func (v counters) With(values ...string) measure.Counter    { return v.WithLabelValues(values...) }
func (v gauges) With(values ...string) measure.Gauge        { return v.WithLabelValues(values...) }
func (v histograms) With(values ...string) measure.Observer { return v.WithLabelValues(values...) }

func (b *backend) Counters(name, help string, labels ...string) measure.Counters {
	vec := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idempotent_" + name, Help: help}, labels)
	b.collectors = append(b.collectors, vec)
	return counters{vec}
}

func (b *backend) Gauges(name, help string, labels ...string) measure.Gauges {
	vec := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "idempotent_" + name, Help: help}, labels)
	b.collectors = append(b.collectors, vec)
	return gauges{vec}
}

func (b *backend) Histograms(name, help string, buckets []float64, labels ...string) measure.Histograms {
	vec := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "idempotent_" + name, Help: help, Buckets: buckets}, labels)
	b.collectors = append(b.collectors, vec)
	return histograms{vec}
}
