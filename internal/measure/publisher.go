package measure

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher"
)

// publisherMetrics are what the publisher's hooks fill.
type publisherMetrics struct {
	publishes Counters
	failures  Counters
	duration  Histograms
	resent    Counters
	retries   Counters
	age       Histograms
	differing Counters
	window    windowMetrics

	topics *sets[topicSeries]
}

// windowMetrics are what is known of the windows of topics.
type windowMetrics struct {
	duration, entries, differs Gauges
	evicted                    Counters
	layoutDiffers              Gauges
}

// topicSeries are those of one topic.
type topicSeries struct {
	metrics *publisherMetrics
	topic   string
	byMode  [len(modes)]atomic.Pointer[[]Counter] // a topic has one mode, mostly

	failures  []Counter
	duration  Observer
	resent    Counter
	retries   Counter
	age       Observer
	differing Counter
	evicted   Counter
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

func newPublisherMetrics(cfg Config, b Backend) *publisherMetrics {
	m := &publisherMetrics{
		publishes: b.Counters("publishes_total", "Messages published, by what became of them.", "topic", "mode", "verdict"),
		failures:  b.Counters("publish_errors_total", "Messages whose publish returned an error, by its reason.", "topic", "reason"),
		duration:  b.Histograms("publish_duration_seconds", "Time from the call to the outcome of a message.", cfg.DurationBuckets, "topic"),
		resent:    b.Counters("publish_resends_total", "Messages that were sent again under the same ID since a reply was lost.", "topic"),
		retries:   b.Counters("publish_retries_total", "Failed tries of batches that were followed by another one.", "topic"),
		age: b.Histograms("duplicate_age_seconds", "Age of the original of a duplicate: how late retries come. Those of our own lost replies are left out.",
			cfg.AgeBuckets, "topic"),
		differing: b.Counters("child_differs_total", "Messages of a handler that ran again which differ from those of its first run, which stay.", "topic"),
		window: windowMetrics{
			duration: b.Gauges("window_seconds", "How long the window in force remembers a key.", "topic"),
			entries:  b.Gauges("window_entries", "How many keys the window in force holds; 0 where only time bounds it.", "topic"),
			differs:  b.Gauges("window_differs", "1 where the window in force is not the configured one.", "topic"),
			evicted:  b.Counters("window_evicted_total", "Keys that were forgotten before the duration of the window had passed.", "topic"),
			layoutDiffers: b.Gauges("layout_differs", "1 where the topic was found with another mode or number of producer IDs than configured.",
				"topic"),
		},
	}
	m.topics = newSets(cfg.MaxTopics, m.create)
	return m
}

func (m *publisherMetrics) create(p pair) *topicSeries {
	topic, _ := p.values()
	if p.topic != Other {
		m.window.layoutDiffers.With(topic)
	}
	return &topicSeries{
		metrics: m, topic: topic,
		failures:  row(m.failures, failureNames(), topic),
		duration:  m.duration.With(topic),
		resent:    m.resent.With(topic),
		retries:   m.retries.With(topic),
		age:       m.age.With(topic),
		differing: m.differing.With(topic),
		evicted:   m.window.evicted.With(topic),
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
	m.window.duration.With(set.topic).Set(e.Effective.Duration.Seconds())
	m.window.entries.With(set.topic).Set(float64(e.Effective.Entries))
	differs := m.window.differs.With(set.topic)
	switch e.Kind {
	case publisher.WindowEffective: // WindowDiffers follows where it does
		differs.Set(0)
	case publisher.WindowDiffers:
		differs.Set(1)
	}
}

func (m *publisherMetrics) onLayout(e publisher.LayoutEvent) {
	if set := m.of(e.Topic); m.topics.isOwn(set) {
		m.window.layoutDiffers.With(set.topic).Set(1)
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

func (s *topicSeries) ofMode(mode publisher.Mode) []Counter {
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

func since(id streamid.ID) time.Duration {
	return max(0, time.Since(time.UnixMilli(int64(id.MS)))) //nolint:gosec // milliseconds of a time
}

// PublishFailure is the reason of a failed publish, as the label says it.
func PublishFailure(err error) string { return publishFailures[failureOf(err)].name }

// Verdict is what became of a message, as the label says it.
func Verdict(r *publisher.Receipt) string {
	if errors.Is(r.Err, publisher.ErrConflict) {
		return verdicts[verdictConflict]
	}
	return verdicts[r.Verdict]
}

// Mode is the mode that a message was published in, as the label says it.
func Mode(m publisher.Mode) string { return modes[m] }
