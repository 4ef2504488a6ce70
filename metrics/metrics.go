package metrics

import (
	"reflect"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// DefaultMaxTopics is the default of Config.MaxTopics.
const DefaultMaxTopics = 100

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

// Default buckets, in seconds.
var (
	defaultAgeBuckets      = []float64{0.1, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 43200, 86400}
	defaultDurationBuckets = []float64{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60}
)

func (c Config) resolve() (Config, error) {
	var f invalid.Faults
	invalid.Negative(&f, "MaxTopics", c.MaxTopics)
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
	return c, f.Err("metrics: invalid config")
}

// Metrics is a prometheus.Collector that is filled by hooks. Register it once, and give its
// hooks to the parts of the service; one Metrics serves all of them, also several publishers
// or subscribers. Its hooks allocate nothing for a topic, group and handler that they have
// seen before.
type Metrics struct {
	publisher  *publisherMetrics
	subscriber *subscriberMetrics
	once       *onceMetrics
	store      *storeMetrics
}

var _ prometheus.Collector = (*Metrics)(nil)

// New makes an empty Metrics. The error has all faults of the configuration.
func New(config Config) (*Metrics, error) {
	cfg, err := config.resolve()
	if err != nil {
		return nil, err
	}
	return &Metrics{
		publisher:  newPublisherMetrics(cfg),
		subscriber: newSubscriberMetrics(cfg),
		once:       newOnceMetrics(cfg),
		store:      newStoreMetrics(cfg),
	}, nil
}

// PublisherHooks belong into publisher.Config.Hooks.
func (m *Metrics) PublisherHooks() publisher.Hooks { return m.publisher.hooks() }

// SubscriberHooks belong into subscriber.Config.Hooks.
func (m *Metrics) SubscriberHooks() subscriber.Hooks { return m.subscriber.hooks() }

// OnceHooks belong into middleware.Config.Hooks.
func (m *Metrics) OnceHooks() middleware.Hooks { return m.once.hooks() }

// Instrument returns cfg with the hooks of all three parts added behind those that it has, and
// with its store, if it names one, wrapped by [Metrics.Store] under the name "store":
//
//	service, err := idempotent.Open(ctx, m.Instrument(cfg))
//
// The store that Open makes by itself where none is given is not measured. To have that, make
// it by redisstore.New, give it as Config.Store, and close it after the service.
func (m *Metrics) Instrument(cfg idempotent.Config) idempotent.Config {
	cfg.Publisher.Hooks = slices.Concat(cfg.Publisher.Hooks, []publisher.Hooks{m.PublisherHooks()})
	cfg.Subscriber.Hooks = slices.Concat(cfg.Subscriber.Hooks, []subscriber.Hooks{m.SubscriberHooks()})
	cfg.Once.Hooks = slices.Concat(cfg.Once.Hooks, []middleware.Hooks{m.OnceHooks()})
	if cfg.Store == nil || isSame(cfg.Store, cfg.Once.Store) {
		cfg.Once.Store = m.Store("store", cfg.Once.Store)
		cfg.Store = cfg.Once.Store
	} else if cfg.Once.Store == nil {
		cfg.Store = m.Store("store", cfg.Store)
	} // else two different stores, which Open refuses
	return cfg
}

// isSame compares two stores, of which an uncomparable one equals none.
func isSame(a, b dedupe.Store) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}

func (m *Metrics) collectors() []prometheus.Collector {
	return slices.Concat(m.publisher.collectors(), m.subscriber.collectors(), m.once.collectors(), m.store.collectors())
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range m.collectors() {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(ch chan<- prometheus.Metric) {
	for _, c := range m.collectors() {
		c.Collect(ch)
	}
}

// counters makes a vector of counters.
func counters(name, help string, labels ...string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "idempotent_" + name, Help: help}, labels)
}

func gauges(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "idempotent_" + name, Help: help}, labels)
}

func histograms(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "idempotent_" + name, Help: help, Buckets: buckets}, labels)
}

// row makes the counters of all values of the last label at once, from 0 on: a counter that
// appears with 1 has not increased, as far as Prometheus can tell.
func row(vec *prometheus.CounterVec, values []string, labels ...string) []prometheus.Counter {
	list := make([]prometheus.Counter, len(values))
	for i, v := range values {
		list[i] = vec.WithLabelValues(append(slices.Clone(labels), v)...)
	}
	return list
}
