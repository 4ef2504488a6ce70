// Package measure says what the metrics of the library are, and how hooks fill them. Which
// system has them is a [Backend]'s business, so that those of Prometheus (module metrics) and of
// OpenTelemetry (module otelhooks) mean the same.
package measure

import (
	"slices"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// Backend makes metrics. Names are those of Prometheus without the prefix "idempotent_"; help is
// one sentence, labels are the names of those.
type Backend interface {
	Counters(name, help string, labels ...string) Counters
	Gauges(name, help string, labels ...string) Gauges
	Histograms(name, help string, buckets []float64, labels ...string) Histograms
}

// Counters have one counter for each list of label values, which is there, with the value 0, from
// the first With on.
type Counters interface {
	With(values ...string) Counter
}

// Gauges have one gauge for each list of label values, as Counters do.
type Gauges interface{ With(values ...string) Gauge }

// Histograms have one histogram for each list of label values.
type Histograms interface {
	With(values ...string) Observer
}

// Counter only grows.
type Counter interface {
	Inc()
	Add(v float64)
}

// Gauge has a value at a time.
type Gauge interface{ Set(v float64) }

// Observer is a histogram.
type Observer interface{ Observe(v float64) }

// DefaultMaxTopics is the default of Config.MaxTopics.
const DefaultMaxTopics = 100

// Config is what the modules' configurations have in common; those describe it.
type Config struct {
	MaxTopics       int
	AgeBuckets      []float64
	DurationBuckets []float64
}

// Default buckets, in seconds.
var (
	defaultAgeBuckets      = []float64{0.1, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400}
	defaultDurationBuckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60}
)

// Resolve returns the configuration with defaults filled in, and notes its faults.
func (c Config) Resolve(f *invalid.Faults) Config {
	invalid.Negative(f, "MaxTopics", c.MaxTopics)
	if c.MaxTopics == 0 {
		c.MaxTopics = DefaultMaxTopics
	}
	buckets := func(name string, list *[]float64, fallback []float64) {
		if *list == nil {
			*list = fallback
		}
		f.AddIf(len(*list) == 0, "%s is empty: leave it nil for the default", name)
		for i, b := range *list {
			f.AddIf(!(b > 0), "%s[%d] %v is not above 0", name, i, b) // NaN is not, either
			f.AddIf(i > 0 && b <= (*list)[i-1], "%s[%d] %v is not above the one before it", name, i, b)
		}
		*list = slices.Clone(*list)
	}
	buckets("AgeBuckets", &c.AgeBuckets, defaultAgeBuckets)
	buckets("DurationBuckets", &c.DurationBuckets, defaultDurationBuckets)
	return c
}

// Metrics are filled by hooks. The hooks allocate nothing for a topic, group and handler that
// they have seen before, as far as the backend does not.
type Metrics struct {
	publisher  *publisherMetrics
	subscriber *subscriberMetrics
	once       *onceMetrics
	store      *storeMetrics
}

// New makes metrics of a configuration that was resolved.
func New(cfg Config, b Backend) *Metrics {
	return &Metrics{
		publisher:  newPublisherMetrics(cfg, b),
		subscriber: newSubscriberMetrics(cfg, b),
		once:       newOnceMetrics(cfg, b),
		store:      newStoreMetrics(cfg, b),
	}
}

// PublisherHooks belong into publisher.Config.Hooks.
func (m *Metrics) PublisherHooks() publisher.Hooks { return m.publisher.hooks() }

// SubscriberHooks belong into subscriber.Config.Hooks.
func (m *Metrics) SubscriberHooks() subscriber.Hooks { return m.subscriber.hooks() }

// OnceHooks belong into middleware.Config.Hooks.
func (m *Metrics) OnceHooks() middleware.Hooks { return m.once.hooks() }

// Instrumented is what [Instrument] adds to a configuration.
type Instrumented interface {
	PublisherHooks() publisher.Hooks
	SubscriberHooks() subscriber.Hooks
	OnceHooks() middleware.Hooks
	Store(name string, s dedupe.Store) dedupe.Store
}

// Instrument returns cfg with the hooks of all three parts behind those that it has, and with
// its store, whoever makes that, wrapped under the name "store".
func Instrument(m Instrumented, cfg idempotent.Config) idempotent.Config {
	cfg.Publisher.Hooks = slices.Concat(cfg.Publisher.Hooks, []publisher.Hooks{m.PublisherHooks()})
	cfg.Subscriber.Hooks = slices.Concat(cfg.Subscriber.Hooks, []subscriber.Hooks{m.SubscriberHooks()})
	cfg.Once.Hooks = slices.Concat(cfg.Once.Hooks, []middleware.Hooks{m.OnceHooks()})
	inner := cfg.WrapStore
	cfg.WrapStore = func(s dedupe.Store) dedupe.Store {
		if inner != nil {
			s = inner(s)
		}
		return m.Store("store", s)
	}
	return cfg
}

// row makes the counters of all values of the last label at once, from 0 on: a counter that
// appears with 1 has not increased, as far as Prometheus can tell.
func row(vec Counters, values []string, labels ...string) []Counter {
	list := make([]Counter, len(values))
	for i, v := range values {
		list[i] = vec.With(append(slices.Clone(labels), v)...)
	}
	return list
}
