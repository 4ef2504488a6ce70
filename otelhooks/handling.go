package otelhooks

import (
	"context"
	"errors"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.opentelemetry.io/otel/trace"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/middleware"
)

// handling is the span of a message that is being handled, on its context.
type handling struct {
	span  trace.Span
	outer trace.SpanContext // what was on the context before
	msg   *message.Message
	from  entry // empty if our subscriber did not read it

	mu      sync.Mutex
	outcome string // as our middleware reported it; empty without it
}

type handlingKey struct{}

// Middleware is Watermill's message.HandlerMiddleware: it has a span for each time that a message
// is handled, a child of the span that it was published under (see Config.Link), which is on the
// context that the handler sees. Messages that the handler returns are published below it.
//
//	router.AddMiddleware(t.Middleware)
//
// Add it in front of others, such as Retry, so that it has all tries of a delivery, and with or
// without our handling middleware, whose hooks say how the handling ended.
func (t *Telemetry) Middleware(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx, hd := t.tracer.begin(msg.Context(), msg)
		msg.SetContext(ctx)
		ended := false
		defer func() {
			if !ended { // a panic, which the Router or a Recoverer turns into an error
				t.tracer.failed(hd.span, "panic", nil, false)
			}
			t.tracer.end(hd)
		}()
		out, err := h(msg)
		ended = true
		t.tracer.returned(hd, out, err)
		return out, err
	}
}

// begin begins the span of a message that is handled.
func (t *tracer) begin(ctx context.Context, msg *message.Message) (context.Context, *handling) {
	var info delivery.Info
	if d := delivery.From(ctx); d != nil {
		info = d.Info()
	}
	topic := message.SubscribeTopicFromCtx(ctx)
	if topic == "" {
		topic = info.Stream
	}
	opts := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindConsumer)}
	// The context of an earlier try is still on the message, and its span is over.
	if earlier, ok := ctx.Value(handlingKey{}).(*handling); ok && earlier.msg == msg {
		ctx = trace.ContextWithSpanContext(ctx, earlier.outer)
	}
	outer := trace.SpanContextFromContext(ctx)
	parent := t.extract(ctx, msg.Metadata)
	if t.link {
		if from := trace.SpanContextFromContext(parent); from.IsValid() {
			opts = append(opts, trace.WithLinks(trace.Link{SpanContext: from}))
		}
		parent = ctx
		opts = append(opts, trace.WithNewRoot())
	}
	ctx, span := t.spans.Start(parent, "handle "+topic, opts...)
	hd := &handling{span: span, outer: outer, msg: msg}
	if info.EntryID != "" {
		hd.from = entry{info.Stream, info.Group, info.EntryID}
	}
	if span.IsRecording() {
		span.SetAttributes(system, keyDestination.String(topic), keyOperation.String("handle"), keyOperationType.String("process"),
			keyBodySize.Int(len(msg.Payload)), keyHandler.String(message.HandlerNameFromCtx(ctx)))
		if info.EntryID != "" {
			span.SetAttributes(keyMessageID.String(info.EntryID), keyDelivery.Int(info.Count), keyRedelivered.Bool(info.Redelivered),
				seconds(keyEntryAge, info.AddedAt))
		}
		if info.Group != "" {
			span.SetAttributes(keyGroup.String(info.Group))
		}
	}
	return context.WithValue(ctx, handlingKey{}, hd), hd
}

// returned notes what a handler has returned. An error that our middleware has reported already
// is not reported again.
func (t *tracer) returned(hd *handling, out []*message.Message, err error) {
	hd.span.SetAttributes(keyOutputs.Int(len(out)))
	for _, msg := range out {
		if msg != nil && !trace.SpanContextFromContext(msg.Context()).IsValid() {
			msg.SetContext(trace.ContextWithSpan(msg.Context(), hd.span))
		}
	}
	hd.mu.Lock()
	defer hd.mu.Unlock()
	if err == nil || hd.outcome != "" && hd.outcome != "handled" {
		return
	}
	if errors.Is(err, dedupe.ErrRetryLater) {
		hd.span.SetAttributes(keyOutcome.String("delayed"))
		return
	}
	t.failed(hd.span, "failed", err, true)
}

// end ends the span, and remembers it for the case that the entry becomes a dead letter.
func (t *tracer) end(hd *handling) {
	if hd.from != (entry{}) && hd.span.SpanContext().IsValid() {
		t.settling.put(hd.from, hd.span.SpanContext())
	}
	hd.span.End()
}

// onOutcome puts onto the span how the handling of its message ended, as our middleware says it.
func (t *tracer) onOutcome(outcome string, e middleware.Event) {
	hd, ok := e.Context().Value(handlingKey{}).(*handling)
	if !ok {
		return
	}
	hd.mu.Lock()
	hd.outcome = outcome // of several tries in one delivery the last one counts
	hd.mu.Unlock()
	if !hd.span.IsRecording() {
		return
	}
	span := hd.span
	span.SetAttributes(keyOutcome.String(outcome))
	if !e.CommittedAt.IsZero() {
		span.SetAttributes(seconds(keyHandledAge, e.CommittedAt))
	}
	if e.HandledBy != "" {
		span.SetAttributes(keyHandledBy.String(e.HandledBy))
	}
	if e.After > 0 {
		span.SetAttributes(keyAfter.Float64(e.After.Seconds()))
	}
	if t.details && e.Key != "" {
		span.SetAttributes(keyEventKey.String(e.Key))
	}
	switch outcome {
	case "handled", "skipped", "passed", "delayed", "in_progress":
	case "failed":
		t.failed(span, outcome, e.Err, true)
	default:
		t.failed(span, outcome, e.Err, t.details)
	}
}

// onTakeover notes that an earlier run ended without a word.
func (t *tracer) onTakeover(e middleware.Event) {
	if hd, ok := e.Context().Value(handlingKey{}).(*handling); ok {
		hd.span.AddEvent("claim taken over")
	}
}
