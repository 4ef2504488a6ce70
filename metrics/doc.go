// Package metrics makes Prometheus metrics of what the library reports: what was published,
// read and handled, how late retries come, whether the window holds them, and what stores take.
//
// One [Metrics] is registered once and serves all parts, by its hooks. With idempotent.Open:
//
//	m, err := metrics.New(metrics.Config{})
//	...
//	prometheus.MustRegister(m)
//	service, err := idempotent.Open(ctx, m.Instrument(cfg))
//
// A [Streams] asks the server about topics at each scrape: lag, pending entries, length and
// window, also of topics that this process has nothing to do with.
//
// No key, no message UUID, no entry ID and no error text is ever a label, and the number of
// topics, groups and handlers that are is bounded: see Config.MaxTopics.
//
// All metrics begin with "idempotent_"; the README beside this file lists them, and what a
// Grafana dashboard (dashboard.json) and alert rules for Prometheus (alerts.yml) make of them.
package metrics
