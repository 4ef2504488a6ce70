package main

import (
	"context"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/examples/internal/sqloutbox"
	"github.com/onceward/watermill-idempotent/health"
	"github.com/onceward/watermill-idempotent/metrics"
)

// newRegistry has the metrics of the library, of the topic on the server, and of the outbox.
func newRegistry(m *metrics.Metrics, client redis.UniversalClient, outbox *sqloutbox.Outbox) (*prometheus.Registry, error) {
	streams, err := metrics.NewStreams(metrics.StreamsConfig{Client: client, Topics: []string{topic}})
	if err != nil {
		return nil, err
	}
	registry := prometheus.NewRegistry()
	var errs []error
	for _, c := range []prometheus.Collector{
		m, streams, outboxCollector{outbox},
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	} {
		errs = append(errs, registry.Register(c))
	}
	return registry, errors.Join(errs...)
}

// outboxCollector asks the database at each scrape.
type outboxCollector struct{ outbox *sqloutbox.Outbox }

const backlogTimeout = 2 * time.Second

var (
	descRows   = prometheus.NewDesc("service_outbox_rows", "Events that wait in the outbox.", nil, nil)
	descOldest = prometheus.NewDesc("service_outbox_oldest_seconds", "For how long the oldest of them has waited.", nil, nil)
)

// Describe implements prometheus.Collector.
func (c outboxCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- descRows
	ch <- descOldest
}

// Collect implements prometheus.Collector. Without an answer of the database the metrics are
// missing, and the others are there.
func (c outboxCollector) Collect(ch chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), backlogTimeout)
	defer cancel()
	rows, oldest, err := c.outbox.Backlog(ctx)
	if err != nil {
		return
	}
	ch <- prometheus.MustNewConstMetric(descRows, prometheus.GaugeValue, float64(rows))
	ch <- prometheus.MustNewConstMetric(descOldest, prometheus.GaugeValue, oldest.Seconds())
}

// measured counts and times requests, by method and code.
func measured(registry prometheus.Registerer, handler http.Handler) (http.Handler, error) {
	durations := prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "service_request_duration_seconds", Help: "How long requests to the API took.",
	}, []string{"method", "code"})
	return promhttp.InstrumentHandlerDuration(durations, handler), registry.Register(durations)
}

// adminHandler serves what is for the platform and for operators, not for customers:
//
//	/livez    the process answers
//	/readyz   orders can be placed: the database answers, and the service is not stopping
//	/statusz  everything works, also Redis, without which orders wait in the outbox
//	/metrics  for Prometheus
//
// Readiness does not ask Redis: orders are taken while it is away.
func (s *service) adminHandler(stopping *atomic.Bool) (http.Handler, error) {
	onChange := func(name string, err error) {
		if err != nil {
			s.logger.Warn("check failed", "check", name, "err", err)
		} else {
			s.logger.Info("check works again", "check", name)
		}
	}
	database := health.Check{Name: "database", Run: s.store.Check}
	probes, err := health.New(health.Config{
		Ready: []health.Check{database, health.State("stopping", func() error {
			if stopping.Load() {
				return errors.New("the service is stopping")
			}
			return nil
		})},
		CacheFor: time.Second, OnChange: onChange,
	})
	if err != nil {
		return nil, err
	}
	status, err := health.New(health.Config{Ready: []health.Check{
		database,
		health.Topics("publisher", s.backend.Publisher().Check, topic),
		health.Topics("subscriber", s.backend.Subscriber().Check, topic),
		health.State("handlers", s.backend.Health),
	}})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /livez", probes.Live())
	mux.Handle("GET /readyz", probes.Ready())
	mux.Handle("GET /statusz", status.Ready())
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.registry, promhttp.HandlerOpts{}))
	return mux, nil
}
