package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/measure"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// DefaultMaxTopics is the default of Config.MaxTopics.
const DefaultMaxTopics = measure.DefaultMaxTopics

// Other is the label value of topics, groups, handlers and stores that came after
// Config.MaxTopics others: they share their series.
const Other = measure.Other

// SeriesPerTopic is how many series a topic has at most that is published to, read by one
// group and handled by one handler, with the default buckets. So there are never more than
//
//	(MaxTopics + 1) × SeriesPerTopic + (number of wrapped stores) × SeriesPerStore
//
// whatever comes, with those of [Other].
const (
	SeriesPerTopic = 165
	SeriesPerStore = 98
)

// Config configures [Metrics]. The zero value is good for most services.
type Config struct {
	// MaxTopics bounds the series: so many topics have series of their own in the
	// publisher's metrics, so many pairs of a topic and a group in the subscriber's, and so
	// many pairs of a topic and a handler in the middleware's, those that come first. What
	// comes after them is counted under the label values "other". 0 means 100; a topic has
	// at most [SeriesPerTopic] series.
	MaxTopics int
	// AgeBuckets are the upper bounds of the age histograms, in seconds, ascending: of the
	// originals of duplicates, and of the records by which events were skipped. Nil means
	// 0.1 s to 24 h. Have one at the Duration of your windows.
	AgeBuckets []float64
	// DurationBuckets are those of all durations: of publishing, handling and the steps of
	// stores. Nil means 0.5 ms to 60 s.
	DurationBuckets []float64
}

// Metrics is a prometheus.Collector that is filled by hooks. Register it once, and give its
// hooks to the parts of the service; one Metrics serves all of them, also several publishers
// or subscribers. Its hooks allocate nothing for a topic, group and handler that they have
// seen before.
type Metrics struct {
	measured *measure.Metrics
	backend  *backend
}

var _ prometheus.Collector = (*Metrics)(nil)

// New makes an empty Metrics. The error has all faults of the configuration.
func New(config Config) (*Metrics, error) {
	var f invalid.Faults
	cfg := measure.Config(config).Resolve(&f)
	if err := f.Err("metrics: invalid config"); err != nil {
		return nil, err
	}
	b := new(backend)
	return &Metrics{measured: measure.New(cfg, b), backend: b}, nil
}

// PublisherHooks belong into publisher.Config.Hooks.
func (m *Metrics) PublisherHooks() publisher.Hooks { return m.measured.PublisherHooks() }

// SubscriberHooks belong into subscriber.Config.Hooks.
func (m *Metrics) SubscriberHooks() subscriber.Hooks { return m.measured.SubscriberHooks() }

// OnceHooks belong into middleware.Config.Hooks.
func (m *Metrics) OnceHooks() middleware.Hooks { return m.measured.OnceHooks() }

// Store returns a store that does what s does, and reports how long its steps take and what
// comes of them, under the label store. Give each store of a process a name of its own, such
// as "records"; Config.MaxTopics bounds their number, too.
//
// What s can do besides stays visible: dedupe.Admin and Check where it has them, a transaction
// on the claim's context, and itself by dedupe.Unwrap. Those of Admin are not measured. Closing
// the store closes s. A nil store is returned as it is.
func (m *Metrics) Store(name string, s dedupe.Store) dedupe.Store { return m.measured.Store(name, s) }

// Instrument returns cfg with the hooks of all three parts added behind those that it has, and
// with its store, given or made by Open, wrapped by [Metrics.Store] under the name "store":
//
//	service, err := idempotent.Open(ctx, m.Instrument(cfg))
func (m *Metrics) Instrument(cfg idempotent.Config) idempotent.Config {
	return measure.Instrument(m, cfg)
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.backend.collectors {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.backend.collectors {
		c.Collect(ch)
	}
}
