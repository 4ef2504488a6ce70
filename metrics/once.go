package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/onceward/watermill-idempotent/middleware"
)

// onceMetrics are what the middleware's hooks fill.
type onceMetrics struct {
	messages  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	skipAge   *prometheus.HistogramVec
	takenOver *prometheus.CounterVec

	handlers *sets[handlerSeries]
}

// handlerSeries are those of one handler of one topic.
type handlerSeries struct {
	messages  []prometheus.Counter
	duration  prometheus.Observer
	skipAge   prometheus.Observer
	takenOver prometheus.Counter
}

// Indexes of outcomes. Each time that a message comes it has one.
const (
	handled = iota
	skipped
	foreignSkip
	failed
	refused
	conflict
	leaseLost
	passed
	inProgress
	storeUnavailable
	notSetUp
	delayed
)

var outcomes = []string{
	handled: "handled", skipped: "skipped", foreignSkip: "foreign_skip", failed: "failed", refused: "refused", conflict: "conflict",
	leaseLost: "lease_lost", passed: "passed", inProgress: "in_progress", storeUnavailable: "store_unavailable", notSetUp: "not_set_up",
	delayed: "delayed",
}

// delayOf says why a message comes again that was not handled. What is left is a handler that
// gave it back, and a subscription that ended.
func delayOf(err error) int {
	switch {
	case errors.Is(err, middleware.ErrInProgress):
		return inProgress
	case errors.Is(err, middleware.ErrStoreUnavailable):
		return storeUnavailable
	case errors.Is(err, middleware.ErrNoNamespace), errors.Is(err, middleware.ErrSharedFanOut), errors.Is(err, middleware.ErrClosed):
		return notSetUp
	}
	return delayed
}

func newOnceMetrics(cfg Config) *onceMetrics {
	m := &onceMetrics{
		messages: counters("messages_total", "Messages that came to a handler, by what became of them.", "topic", "handler", "outcome"),
		duration: histograms("handler_duration_seconds", "How long a handler ran.", cfg.DurationBuckets, "topic", "handler"),
		skipAge: histograms("skip_age_seconds", "How long before a message was skipped its event had been handled: what Retention must cover.",
			cfg.AgeBuckets, "topic", "handler"),
		takenOver: counters("claims_taken_over_total", "Runs that took over the claim of an earlier one that ended without a word.", "topic", "handler"),
	}
	m.handlers = newSets(cfg.MaxTopics, m.create)
	return m
}

func (m *onceMetrics) create(p pair) *handlerSeries {
	topic, handler := p.values()
	return &handlerSeries{
		messages:  row(m.messages, outcomes, topic, handler),
		duration:  m.duration.WithLabelValues(topic, handler),
		skipAge:   m.skipAge.WithLabelValues(topic, handler),
		takenOver: m.takenOver.WithLabelValues(topic, handler),
	}
}

func (m *onceMetrics) collectors() []prometheus.Collector {
	return []prometheus.Collector{m.messages, m.duration, m.skipAge, m.takenOver}
}

func (m *onceMetrics) of(e *middleware.Event) *handlerSeries {
	return m.handlers.of(pair{e.Topic, e.Handler})
}

func (m *onceMetrics) hooks() middleware.Hooks {
	on := func(outcome int) func(middleware.Event) {
		return func(e middleware.Event) { m.of(&e).ended(outcome, &e) }
	}
	return middleware.Hooks{
		OnHandled:     on(handled),
		OnSkipped:     on(skipped),
		OnForeignSkip: on(foreignSkip),
		OnFailed:      on(failed),
		OnRefused:     on(refused),
		OnDelayed:     func(e middleware.Event) { m.of(&e).ended(delayOf(e.Err), &e) },
		OnConflict:    on(conflict),
		OnTakeover:    func(e middleware.Event) { m.of(&e).takenOver.Inc() },
		OnLeaseLost:   on(leaseLost),
		OnPassed:      on(passed),
	}
}

func (s *handlerSeries) ended(outcome int, e *middleware.Event) {
	s.messages[outcome].Inc()
	if e.Duration > 0 {
		s.duration.Observe(e.Duration.Seconds())
	}
	if (outcome == skipped || outcome == foreignSkip) && !e.CommittedAt.IsZero() {
		s.skipAge.Observe(max(0, time.Since(e.CommittedAt)).Seconds())
	}
}
