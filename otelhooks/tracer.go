package otelhooks

import (
	"context"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/watermill-idempotent/internal/measure"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// tracer makes the spans.
type tracer struct {
	spans      trace.Tracer
	propagator propagation.TextMapPropagator
	fields     []string // that it writes
	link       bool
	details    bool
	settling   settling
}

func newTracer(cfg Config) *tracer {
	return &tracer{
		spans: cfg.TracerProvider.Tracer(Scope), propagator: cfg.Propagator, fields: cfg.Propagator.Fields(),
		link: cfg.Link, details: cfg.Details,
	}
}

// carrier is metadata that a propagator reads and writes.
type carrier message.Metadata

func (c carrier) Get(name string) string { return c[name] }
func (c carrier) Set(name, value string) { c[name] = value }
func (c carrier) Keys() []string {
	names := make([]string, 0, len(c))
	for name := range c {
		names = append(names, name)
	}
	return names
}

// extract returns ctx with the trace context of metadata.
func (t *tracer) extract(ctx context.Context, md message.Metadata) context.Context {
	return t.propagator.Extract(ctx, carrier(md))
}

// onSend begins the span of a message that is published, and sends its context along. Its parent
// is what runs where it is published; else what the message was published under before: it may
// come from an outbox or be a dead letter that is replayed.
func (t *tracer) onSend(s *publisher.Sending) {
	ctx := s.Context()
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindProducer)}
	if !trace.SpanContextFromContext(ctx).IsValid() {
		ctx = trace.ContextWithSpanContext(ctx, trace.SpanContextFromContext(s.Message.Context()))
	}
	before := trace.SpanContextFromContext(t.extract(context.Background(), s.Message.Metadata))
	switch now := trace.SpanContextFromContext(ctx); {
	case !now.IsValid():
		ctx = t.extract(ctx, s.Message.Metadata)
	case before.IsValid() && before.TraceID() != now.TraceID():
		opts = append(opts, trace.WithLinks(trace.Link{SpanContext: before}))
	}
	ctx, span := t.spans.Start(ctx, "publish "+s.Topic, opts...)
	if span.IsRecording() {
		span.SetAttributes(system, keyDestination.String(s.Topic), keyOperation.String("publish"), keyOperationType.String("send"),
			keyBodySize.Int(len(s.Message.Payload)), keyCallMessages.Int(s.Messages))
	}
	wire := make(carrier, len(t.fields))
	t.propagator.Inject(ctx, wire)
	if len(wire) > 0 {
		for _, name := range t.fields { // one that is not written goes, too: it belongs to another span
			s.Carry(name, wire[name])
		}
	}
	s.Done(func(r publisher.Receipt) { t.published(span, &r) })
}

// published ends the span of a message. What became of a message whose caller has stopped
// waiting is known later, and so is its end.
func (t *tracer) published(span trace.Span, r *publisher.Receipt) {
	defer span.End()
	if !span.IsRecording() {
		return
	}
	list := append(make([]attribute.KeyValue, 0, 10), keyVerdict.String(measure.Verdict(r)), keyMode.String(measure.Mode(r.Mode)), keyAttempts.Int(r.Attempts))
	if r.EntryID != "" {
		list = append(list, keyMessageID.String(r.EntryID))
	}
	if r.Resent {
		list = append(list, keyResent.Bool(true))
	}
	if r.Age > 0 {
		list = append(list, keyOriginalAge.Float64(r.Age.Seconds()))
	}
	if t.details && r.Key != "" {
		list = append(list, keyEventKey.String(r.Key))
	}
	span.SetAttributes(list...)
	if r.Err != nil {
		t.failed(span, measure.PublishFailure(r.Err), r.Err, t.details)
	}
}

// failed makes a span one of a failure. why is one of a few words; the error's own text may name
// the event.
func (t *tracer) failed(span trace.Span, why string, err error, withText bool) {
	span.SetAttributes(keyErrorType.String(why))
	if withText && err != nil {
		span.RecordError(err)
		span.SetStatus(codes.Error, err.Error())
		return
	}
	span.SetStatus(codes.Error, why)
}

// onDeadLetter makes the span of an entry that became a dead letter: below the handling that it
// failed in, if that was here.
func (t *tracer) onDeadLetter(e subscriber.DeadLetterEvent) {
	ctx := trace.ContextWithSpanContext(context.Background(), t.settling.take(entry{e.Topic, e.Group, e.EntryID}))
	_, span := t.spans.Start(ctx, "dead-letter "+e.Topic, trace.WithSpanKind(trace.SpanKindClient))
	defer span.End()
	if !span.IsRecording() {
		return
	}
	span.SetAttributes(system, keyDestination.String(e.Topic), keyOperation.String("dead-letter"), keyOperationType.String("settle"),
		keyGroup.String(e.Group), keyMessageID.String(e.EntryID), keyDelivery.Int(e.Count), keyDeadReason.String(measure.DeadReason(e.Reason)),
		keyDeadTopic.String(e.DeadLetterTopic), keyDeadID.String(e.DeadLetterID))
	span.SetStatus(codes.Error, "dead letter: "+measure.DeadReason(e.Reason))
}

// onSettle forgets what was settled and can't become a dead letter any more.
func (t *tracer) onSettle(e subscriber.SettleEvent) {
	if e.Settlement == subscriber.SettlementAcked || e.Settlement == subscriber.SettlementInterrupted {
		t.settling.take(entry{e.Topic, e.Group, e.EntryID})
	}
}

// entry is one that a group has read.
type entry struct{ topic, group, id string }

// maxSettling bounds what settling remembers: a few megabytes.
const maxSettling = 10_000

// settling has the spans of deliveries that were handled last, until it is known that they
// become no dead letters. Entries that another process goes on with stay; the bound is for them.
type settling struct {
	mu    sync.Mutex
	spans map[entry]trace.SpanContext
}

func (s *settling) put(e entry, span trace.SpanContext) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spans == nil {
		s.spans = make(map[entry]trace.SpanContext)
	}
	if _, ok := s.spans[e]; !ok && len(s.spans) >= maxSettling {
		for oldOne := range s.spans { // whichever
			delete(s.spans, oldOne)
			break
		}
	}
	s.spans[e] = span
}

// take returns the span of an entry and forgets it; an invalid one is returned of an entry that
// is not known.
func (s *settling) take(e entry) trace.SpanContext {
	s.mu.Lock()
	defer s.mu.Unlock()
	span := s.spans[e]
	delete(s.spans, e)
	return span
}

// seconds is an attribute of a time that has passed since.
func seconds(key attribute.Key, since time.Time) attribute.KeyValue {
	return key.Float64(max(0, time.Since(since)).Seconds())
}
