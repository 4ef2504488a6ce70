package measure

import (
	"errors"
	"time"

	"github.com/onceward/watermill-idempotent/middleware"
)

// onceMetrics are what the middleware's hooks fill.
type onceMetrics struct {
	messages  Counters
	duration  Histograms
	skipAge   Histograms
	takenOver Counters

	handlers *sets[handlerSeries]
}

// handlerSeries are those of one handler of one topic.
type handlerSeries struct {
	messages  []Counter
	duration  Observer
	skipAge   Observer
	takenOver Counter
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

func newOnceMetrics(cfg Config, b Backend) *onceMetrics {
	m := &onceMetrics{
		messages: b.Counters("messages_total", "Messages that came to a handler, by what became of them.", "topic", "handler", "outcome"),
		duration: b.Histograms("handler_duration_seconds", "How long a handler ran.", cfg.DurationBuckets, "topic", "handler"),
		skipAge: b.Histograms("skip_age_seconds", "How long before a message was skipped its event had been handled: what Retention must cover.",
			cfg.AgeBuckets, "topic", "handler"),
		takenOver: b.Counters("claims_taken_over_total", "Runs that took over the claim of an earlier one that ended without a word.", "topic", "handler"),
	}
	m.handlers = newSets(cfg.MaxTopics, m.create)
	return m
}

func (m *onceMetrics) create(p pair) *handlerSeries {
	topic, handler := p.values()
	return &handlerSeries{
		messages:  row(m.messages, outcomes, topic, handler),
		duration:  m.duration.With(topic, handler),
		skipAge:   m.skipAge.With(topic, handler),
		takenOver: m.takenOver.With(topic, handler),
	}
}

func (m *onceMetrics) of(e *middleware.Event) *handlerSeries {
	return m.handlers.of(pair{e.Topic, e.Handler})
}

func (m *onceMetrics) hooks() middleware.Hooks {
	h := onOutcome(func(outcome int, e middleware.Event) { m.of(&e).ended(outcome, &e) })
	h.OnTakeover = func(e middleware.Event) { m.of(&e).takenOver.Inc() }
	return h
}

// onOutcome are hooks that receive how the handling of a message ended, each time that it came
// once.
func onOutcome(ended func(outcome int, e middleware.Event)) middleware.Hooks {
	on := func(outcome int) func(middleware.Event) {
		return func(e middleware.Event) { ended(outcome, e) }
	}
	return middleware.Hooks{
		OnHandled:     on(handled),
		OnSkipped:     on(skipped),
		OnForeignSkip: on(foreignSkip),
		OnFailed:      on(failed),
		OnRefused:     on(refused),
		OnDelayed:     func(e middleware.Event) { ended(delayOf(e.Err), e) },
		OnConflict:    on(conflict),
		OnLeaseLost:   on(leaseLost),
		OnPassed:      on(passed),
	}
}

// OnOutcome are hooks that receive how the handling of a message ended, as the label says it.
func OnOutcome(ended func(outcome string, e middleware.Event)) middleware.Hooks {
	return onOutcome(func(outcome int, e middleware.Event) { ended(outcomes[outcome], e) })
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
