package metrics

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher"
)

// publisherMetrics are what the publisher's hooks fill.
type publisherMetrics struct {
	publishes *prometheus.CounterVec
	failures  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	resent    *prometheus.CounterVec
	retries   *prometheus.CounterVec
	age       *prometheus.HistogramVec
	differing *prometheus.CounterVec
	window    windowMetrics

	topics *sets[topicSeries]
}

// windowMetrics are what is known of the windows of topics.
type windowMetrics struct {
	duration, entries, differs *prometheus.GaugeVec
	evicted                    *prometheus.CounterVec
	layoutDiffers              *prometheus.GaugeVec
}

// topicSeries are those of one topic.
type topicSeries struct {
	metrics *publisherMetrics
	topic   string
	byMode  [len(modes)]atomic.Pointer[[]prometheus.Counter] // a topic has one mode, mostly

	failures  []prometheus.Counter
	duration  prometheus.Observer
	resent    prometheus.Counter
	retries   prometheus.Counter
	age       prometheus.Observer
	differing prometheus.Counter
	evicted   prometheus.Counter
}

// modes are the values of the label mode, by [publisher.Mode]: of a message that was refused
// before its topic's mode was asked for there is none.
var modes = [...]string{
	publisher.ModeAuto: "none", publisher.ModeIDMP: "idmp", publisher.ModeIDMPAuto: "idmpauto", publisher.ModeLatch: "latch",
}

// verdicts are the values of the label verdict, by [publisher.Verdict], and behind them a
// conflict: a duplicate by its key, and none by its content.
var verdicts = []string{
	publisher.VerdictUnknown: "unknown", publisher.VerdictAdded: "added",
	publisher.VerdictDuplicate: "duplicate", publisher.VerdictOriginalGone: "original_gone",
	verdictConflict: "conflict",
}

const verdictConflict = publisher.VerdictOriginalGone + 1

// publishFailures are the reasons of failed publishes; the first that an error matches counts.
var publishFailures = []struct {
	name string
	err  error
}{
	{"conflict", publisher.ErrConflict},
	{"no_key", publisher.ErrNoKey},
	{"invalid_message", eventkey.ErrInvalidMessage},
	{"too_large", publisher.ErrTooLarge},
	{"producer_id", publisher.ErrProducerID},
	{"producers", publisher.ErrProducers},
	{"closed", publisher.ErrClosed},
	{"wrong_type", publisher.ErrWrongType},
	{"layout", publisher.ErrLayout},
	{"mode_unsupported", publisher.ErrModeUnsupported},
	{"latch_unconfirmed", publisher.ErrLatchUnconfirmed},
	{"not_replicated", publisher.ErrNotReplicated},
	{"outcome_unknown", publisher.ErrOutcomeUnknown},
	{"not_sent", publisher.ErrNotSent},
	{"other", nil},
}

func failureNames() (names []string) {
	for _, f := range publishFailures {
		names = append(names, f.name)
	}
	return names
}

func newPublisherMetrics(cfg Config) *publisherMetrics {
	m := &publisherMetrics{
		publishes: counters("publishes_total", "Messages published, by what became of them.", "topic", "mode", "verdict"),
		failures:  counters("publish_errors_total", "Messages whose publish returned an error, by its reason.", "topic", "reason"),
		duration:  histograms("publish_duration_seconds", "Time from the call to the outcome of a message.", cfg.DurationBuckets, "topic"),
		resent:    counters("publish_resends_total", "Messages that were sent again under the same ID since a reply was lost.", "topic"),
		retries:   counters("publish_retries_total", "Failed tries of batches that were followed by another one.", "topic"),
		age: histograms("duplicate_age_seconds", "Age of the original of a duplicate: how late retries come. Those of our own lost replies are left out.",
			cfg.AgeBuckets, "topic"),
		differing: counters("child_differs_total", "Messages of a handler that ran again which differ from those of its first run, which stay.", "topic"),
		window: windowMetrics{
			duration: gauges("window_seconds", "How long the window in force remembers a key.", "topic"),
			entries:  gauges("window_entries", "How many keys the window in force holds; 0 where only time bounds it.", "topic"),
			differs:  gauges("window_differs", "1 where the window in force is not the configured one.", "topic"),
			evicted:  counters("window_evicted_total", "Keys that were forgotten before the duration of the window had passed.", "topic"),
			layoutDiffers: gauges("layout_differs", "1 where the topic was found with another mode or number of producer IDs than configured.",
				"topic"),
		},
	}
	m.topics = newSets(cfg.MaxTopics, m.create)
	return m
}

func (m *publisherMetrics) create(p pair) *topicSeries {
	topic, _ := p.values()
	if p.topic != Other {
		m.window.layoutDiffers.WithLabelValues(topic)
	}
	return &topicSeries{
		metrics: m, topic: topic,
		failures:  row(m.failures, failureNames(), topic),
		duration:  m.duration.WithLabelValues(topic),
		resent:    m.resent.WithLabelValues(topic),
		retries:   m.retries.WithLabelValues(topic),
		age:       m.age.WithLabelValues(topic),
		differing: m.differing.WithLabelValues(topic),
		evicted:   m.window.evicted.WithLabelValues(topic),
	}
}

func (m *publisherMetrics) collectors() []prometheus.Collector {
	w := m.window
	return []prometheus.Collector{
		m.publishes, m.failures, m.duration, m.resent, m.retries, m.age, m.differing,
		w.duration, w.entries, w.differs, w.evicted, w.layoutDiffers,
	}
}

func (m *publisherMetrics) hooks() publisher.Hooks {
	return publisher.Hooks{
		OnPublish:      func(r publisher.Receipt) { m.of(r.Topic).published(&r) },
		OnChildDiffers: func(r publisher.Receipt) { m.of(r.Topic).differing.Inc() },
		OnWindow:       m.onWindow,
		OnLayout:       m.onLayout,
		OnRetry:        func(e publisher.RetryEvent) { m.of(e.Topic).retries.Inc() },
	}
}

func (m *publisherMetrics) of(topic string) *topicSeries { return m.topics.of(pair{topic: topic}) }

func (m *publisherMetrics) onWindow(e publisher.WindowEvent) {
	set := m.of(e.Topic)
	if e.Kind == publisher.WindowOverflow {
		set.evicted.Add(float64(max(0, e.Evicted)))
	}
	if !m.topics.isOwn(set) {
		return
	}
	m.window.duration.WithLabelValues(set.topic).Set(e.Effective.Duration.Seconds())
	m.window.entries.WithLabelValues(set.topic).Set(float64(e.Effective.Entries))
	differs := m.window.differs.WithLabelValues(set.topic)
	switch e.Kind {
	case publisher.WindowEffective: // WindowDiffers follows where it does
		differs.Set(0)
	case publisher.WindowDiffers:
		differs.Set(1)
	}
}

func (m *publisherMetrics) onLayout(e publisher.LayoutEvent) {
	if set := m.of(e.Topic); m.topics.isOwn(set) {
		m.window.layoutDiffers.WithLabelValues(set.topic).Set(1)
	}
}

func (s *topicSeries) published(r *publisher.Receipt) {
	verdict, mode := r.Verdict, r.Mode
	if r.Err != nil {
		s.failures[failureOf(r.Err)].Inc()
		if errors.Is(r.Err, publisher.ErrConflict) {
			verdict = verdictConflict
		}
	}
	s.ofMode(mode)[verdict].Inc()
	s.duration.Observe(r.Duration.Seconds())
	if r.Resent {
		s.resent.Inc()
	}
	// A duplicate after a resend may be the call's own first try: no retry of the caller's.
	if !r.Resent && (verdict == publisher.VerdictDuplicate || verdict == publisher.VerdictOriginalGone) {
		s.age.Observe(ageOf(r).Seconds())
	}
}

func (s *topicSeries) ofMode(mode publisher.Mode) []prometheus.Counter {
	list := s.byMode[mode].Load()
	if list == nil {
		made := row(s.metrics.publishes, verdicts, s.topic, modes[mode])
		list = &made // what another goroutine makes are the same counters
		s.byMode[mode].Store(list)
	}
	return *list
}

func failureOf(err error) int {
	for i, f := range publishFailures {
		if f.err != nil && errors.Is(err, f.err) {
			return i
		}
	}
	return len(publishFailures) - 1
}

// ageOf is the age of the original. A receipt has none where the server's time was not known
// and, which is 0 indeed, for the second of two messages of one call: there the entry's ID
// tells, whose milliseconds are the server's time of adding it, against the local clock.
func ageOf(r *publisher.Receipt) time.Duration {
	if r.Age > 0 {
		return r.Age
	}
	id, err := streamid.Parse(r.EntryID)
	if err != nil {
		return 0
	}
	return since(id)
}
