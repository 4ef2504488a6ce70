// Package otelhooks makes traces and metrics of OpenTelemetry of what the library does.
//
// A [Telemetry] serves all parts by their hooks. With idempotent.Open:
//
//	t, err := otelhooks.New(otelhooks.Config{})
//	...
//	service, err := idempotent.Open(ctx, t.Instrument(cfg))
//	...
//	router.AddMiddleware(t.Middleware)
//
// Each message that is published has a span with what became of it, each message that is
// handled one with how that ended, and a dead letter one of its own. The trace context travels
// in the message's metadata (W3C: traceparent, tracestate), put there when the message is
// encoded: the caller's message stays as it is, and nothing that compares messages sees it, so
// that a traced retry is the duplicate that it would be untraced.
//
// In mode IDMPAuto the server compares every byte that is sent, so there no trace context
// travels, and the handling begins a trace of its own; both spans have the entry's ID.
//
// The metrics are those of module metrics, under the names that the README beside this file
// lists.
package otelhooks
