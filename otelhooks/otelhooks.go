package otelhooks

import (
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/measure"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// Scope is the name of the instrumentation scope, of tracer and meter.
const Scope = "github.com/onceward/watermill-idempotent/otelhooks"

// DefaultMaxTopics is the default of Config.MaxTopics.
const DefaultMaxTopics = measure.DefaultMaxTopics

// Other is the attribute value of topics, groups, handlers and stores that came after
// Config.MaxTopics others: they share their metrics.
const Other = measure.Other

// Config configures [Telemetry]. The zero value is good for a service that has set the global
// providers before it calls [New].
type Config struct {
	// TracerProvider makes the spans. Nil: that of otel.GetTracerProvider. A provider of
	// package trace/noop has none made.
	TracerProvider trace.TracerProvider
	// MeterProvider makes the metrics. Nil: that of otel.GetMeterProvider. A provider of
	// package metric/noop has none made.
	MeterProvider metric.MeterProvider
	// Propagator writes the trace context into metadata and reads it. Nil: that of the W3C,
	// propagation.TraceContext, whatever otel.GetTextMapPropagator is: of many services one
	// would else forget to set that, and the chain ends there. Its fields may be traceparent,
	// tracestate and baggage, which nothing compares; what baggage has stays in the stream.
	Propagator propagation.TextMapPropagator

	// Link has each handling begin a trace of its own, with a link to the span of the
	// publish, where it would be that span's child: for streams that are read by many, or
	// long after.
	Link bool
	// Details adds what may be personal data: the key of the event to the spans, and the
	// texts of the library's errors, which name it. The texts of handlers' errors are there
	// without it.
	Details bool

	// MaxTopics bounds the metrics: so many topics have their own in the publisher's, so many
	// pairs of a topic and a group in the subscriber's, and so many pairs of a topic and a
	// handler in the middleware's, those that come first. What comes after them has the
	// attribute value "other". 0 means 100.
	MaxTopics int
	// AgeBuckets are the upper bounds of the age histograms, in seconds, ascending. Nil means
	// 0.1 s to 24 h. Have one at the Duration of your windows. A view of the SDK goes before
	// them.
	AgeBuckets []float64
	// DurationBuckets are those of all durations. Nil means 0.5 ms to 60 s.
	DurationBuckets []float64
}

// resolve returns the configuration with defaults filled in, and what metrics are made with.
// The error has all of its faults.
func (c Config) resolve() (Config, measure.Config, error) {
	var f invalid.Faults
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	for _, field := range c.Propagator.Fields() {
		f.AddIf(!wmeta.IsTrace(field), "Propagator writes %q, which takes part in comparisons, so that a retry could be a conflict: "+
			"use those of the W3C, propagation.TraceContext and propagation.Baggage", field)
	}
	m := measure.Config{MaxTopics: c.MaxTopics, AgeBuckets: c.AgeBuckets, DurationBuckets: c.DurationBuckets}.Resolve(&f)
	return c, m, f.Err("otelhooks: invalid config")
}

// Telemetry makes spans and metrics of what hooks report. One serves all parts of a service, also
// several publishers or subscribers. It has nothing to be closed; flush and shut down the
// providers when the service has ended.
type Telemetry struct {
	measured *measure.Metrics
	tracer   *tracer
}

// New makes one. The error has all faults of the configuration, or is the meter's.
func New(config Config) (*Telemetry, error) {
	cfg, m, err := config.resolve()
	if err != nil {
		return nil, err
	}
	b := &backend{meter: cfg.MeterProvider.Meter(Scope)}
	t := &Telemetry{measured: measure.New(m, b), tracer: newTracer(cfg)}
	return t, b.err()
}

// PublisherHooks belong into publisher.Config.Hooks.
func (t *Telemetry) PublisherHooks() publisher.Hooks {
	h := t.measured.PublisherHooks()
	h.OnSend = t.tracer.onSend
	return h
}

// SubscriberHooks belong into subscriber.Config.Hooks.
func (t *Telemetry) SubscriberHooks() subscriber.Hooks {
	h := t.measured.SubscriberHooks()
	measured := h
	h.OnSettle = func(e subscriber.SettleEvent) {
		measured.OnSettle(e)
		t.tracer.onSettle(e)
	}
	h.OnDeadLetter = func(e subscriber.DeadLetterEvent) {
		measured.OnDeadLetter(e)
		t.tracer.onDeadLetter(e)
	}
	return h
}

// OnceHooks belong into middleware.Config.Hooks. What they know gets onto the spans of
// [Telemetry.Middleware].
func (t *Telemetry) OnceHooks() middleware.Hooks {
	h, traced := t.measured.OnceHooks(), measure.OnOutcome(t.tracer.onOutcome)
	for _, both := range []struct{ of, and *func(middleware.Event) }{
		{&h.OnHandled, &traced.OnHandled}, {&h.OnSkipped, &traced.OnSkipped}, {&h.OnForeignSkip, &traced.OnForeignSkip},
		{&h.OnFailed, &traced.OnFailed}, {&h.OnRefused, &traced.OnRefused}, {&h.OnDelayed, &traced.OnDelayed},
		{&h.OnConflict, &traced.OnConflict}, {&h.OnLeaseLost, &traced.OnLeaseLost}, {&h.OnPassed, &traced.OnPassed},
	} {
		first, second := *both.of, *both.and
		*both.of = func(e middleware.Event) {
			first(e)
			second(e)
		}
	}
	takeover := h.OnTakeover
	h.OnTakeover = func(e middleware.Event) {
		takeover(e)
		t.tracer.onTakeover(e)
	}
	return h
}

// Store returns a store that does what s does, and whose steps are measured under the attribute
// store. Give each store of a process a name of its own; Config.MaxTopics bounds their number.
// What s can do besides stays visible: dedupe.Admin and Check where it has them, and itself by
// dedupe.Unwrap. Closing the store closes s.
func (t *Telemetry) Store(name string, s dedupe.Store) dedupe.Store {
	return t.measured.Store(name, s)
}

// Instrument returns cfg with the hooks of all three parts added behind those that it has, and
// with its store, given or made by Open, wrapped by [Telemetry.Store] under the name "store". It
// goes together with that of module metrics, in either order.
//
//	service, err := idempotent.Open(ctx, t.Instrument(cfg))
func (t *Telemetry) Instrument(cfg idempotent.Config) idempotent.Config {
	return measure.Instrument(t, cfg)
}
