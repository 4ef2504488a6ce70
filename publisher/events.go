package publisher

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/hook"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Hooks receive what happens, for metrics and alerts. Every field may be nil.
// They are called from the goroutines that publish, several at once, and must not
// block. A panic is logged and otherwise ignored. Keys don't belong into metric labels.
type Hooks struct {
	// OnSend receives every message when its call begins, before anything else is done with
	// it, also one that is then refused. It is for tracers; see [Sending].
	OnSend func(*Sending)
	// OnPublish receives the outcome of every message, once: also of one that was refused
	// before it was sent (no key, too large, closed). That of a message whose caller has
	// stopped waiting while it was sent comes when it is known, and may be another one than
	// the caller got.
	OnPublish func(Receipt)
	// OnChildDiffers receives a message whose key was derived from the handled one's
	// (a child key), and whose content differs from the original's: a handler that
	// ran again produced something else. The original stays; it is no error.
	OnChildDiffers func(Receipt)
	// OnWindow receives a topic's window: once when it is known, and again when
	// something is wrong with it. A topic that nothing was published to for as long as its
	// window, and ten minutes at least, is forgotten, and starts over.
	OnWindow func(WindowEvent)
	// OnLayout receives a layout of a topic that differs from what Config would choose.
	OnLayout func(LayoutEvent)
	// OnRetry receives each retry of a batch.
	OnRetry func(RetryEvent)
}

// WindowEventKind says what a [WindowEvent] is about.
type WindowEventKind uint8

const (
	// WindowEffective means that the window in force was read from the server.
	WindowEffective WindowEventKind = iota
	// WindowDiffers means that the stream tracks ids under other settings than wanted.
	// Changing them would make the server forget those ids, so they stay.
	WindowDiffers
	// WindowOverflow means that the server forgot ids before Duration had passed, since more
	// came than Entries. Events published again later than that are added again.
	WindowOverflow
)

var windowEventNames = [...]string{"effective", "differs", "overflow"}

// String is for logs and metric labels.
func (k WindowEventKind) String() string {
	if int(k) < len(windowEventNames) {
		return windowEventNames[k]
	}
	return "invalid"
}

// WindowEvent is what OnWindow receives.
type WindowEvent struct {
	Topic string
	Kind  WindowEventKind
	// Wanted is what Config asks for, Effective what the server does.
	Wanted, Effective Window
	// Evicted is, for WindowOverflow, about how many ids were forgotten too early since
	// the last such event of the topic, as far as this publisher knows. The first one comes
	// at once, the others a minute apart, and one for the rest when it is closed.
	Evicted int64
}

// LayoutEvent is what OnLayout receives.
type LayoutEvent struct {
	Topic string
	// Layout is in force, Wanted what this publisher would have made.
	Layout, Wanted Layout
}

// RetryEvent is what OnRetry receives.
type RetryEvent struct {
	Topic string
	// Messages is how many are sent again, Attempt the number of the try that
	// failed (1 is the first), Err its error.
	Messages int
	Attempt  int
	Err      error
}

// events brings what happens to a topic to log and hooks. It is what the packages inside
// report to.
type events struct {
	topic    string
	wanted   Window
	retryFor time.Duration
	logger   watermill.LoggerAdapter
	hooks    []Hooks

	toldOneKey atomic.Bool // see checkReturned
}

var (
	_ batch.Observer    = (*events)(nil)
	_ appender.Observer = (*events)(nil)
)

var (
	errWindowDiffers  = errors.New("window is not the configured one")
	errWindowTooSmall = errors.New("window is too small")
)

// receipt makes the receipt of an item.
func (e *events) receipt(it *batch.Item, r *batch.Result) Receipt {
	return Receipt{
		Topic: e.topic, MessageUUID: it.MessageUUID, Key: it.Key, IdempotentID: it.IdempotentID, ProducerID: r.ProducerID,
		Verdict: Verdict(r.Verdict), EntryID: r.EntryID, Age: r.Age, Mode: Mode(r.Mode), Resent: r.Resent,
		Attempts: r.Attempts, Duration: r.Duration, Err: r.Err,
	}
}

// notSent completes and reports the receipts of messages that were not sent.
func (e *events) notSent(receipts []Receipt, sent sendings, begun time.Time) {
	for i := range receipts {
		receipts[i].Duration = time.Since(begun)
		e.published(sent.at(i), receipts[i])
	}
}

// Done implements [batch.Observer].
func (e *events) Done(it *batch.Item, r *batch.Result) {
	if it.Conflicts(&r.Outcome) {
		r.Err = &ConflictError{Topic: e.topic, Key: it.Key, EntryID: r.EntryID, MessageUUID: it.MessageUUID, Field: r.Field}
	}
	receipt := e.receipt(it, r)
	if r.Differs && it.Child {
		hook.Call(e.logger, e.hooks, func(h Hooks) func(Receipt) { return h.OnChildDiffers }, receipt)
	}
	// What was added needs no line, and what the caller gets as an error neither.
	if receipt.Verdict == VerdictOriginalGone && r.Err == nil {
		e.logger.Info("Not added: the key was used before, and its entry is gone", receipt.logFields())
	} else if receipt.Verdict == VerdictDuplicate && r.Err == nil {
		e.logger.Debug("Not added: duplicate", receipt.logFields())
	}
	e.published(noteOf(it).sending, receipt)
}

func (r *Receipt) logFields() watermill.LogFields {
	return watermill.LogFields{
		"topic": r.Topic, "message_uuid": r.MessageUUID, "key": r.Key, "producer_id": r.ProducerID,
		"entry_id": r.EntryID, "age": r.Age.String(), "mode": r.Mode.String(),
	}
}

// Retry implements [batch.Observer].
func (e *events) Retry(items, attempt int, err error) {
	hook.Call(e.logger, e.hooks, func(h Hooks) func(RetryEvent) { return h.OnRetry },
		RetryEvent{Topic: e.topic, Messages: items, Attempt: attempt, Err: err})
	e.logger.Debug("Publishing again", watermill.LogFields{"topic": e.topic, "attempt": attempt, "error": err.Error()})
}

// Panicked implements [batch.Observer].
func (e *events) Panicked(err error, stack []byte) {
	e.logger.Error("Publishing panicked; the messages that were being sent have the panic as their error", err, watermill.LogFields{
		"topic": e.topic, "stack": string(stack),
	})
}

// Outage implements [batch.Observer].
func (e *events) Outage(err error) {
	e.logger.Error("Redis is unavailable or refuses commands; publishing is tried again until RetryFor", err, watermill.LogFields{
		"topic": e.topic, "retry_for": e.retryFor.String(),
	})
}

// Recovered implements [batch.Observer].
func (e *events) Recovered() { e.logger.Info("Publishing works again", nil) }

// NoClock implements [appender.Observer].
func (e *events) NoClock(err error) {
	e.logger.Debug("No server time, ages are by the local clock", watermill.LogFields{"topic": e.topic, "error": err.Error()})
}

// LayoutDiffers implements [appender.Observer].
func (e *events) LayoutDiffers(have, wanted appender.Layout) {
	e.logger.Info("Topic has another layout than configured; obeying it", watermill.LogFields{
		"topic": e.topic, "mode": have.Mode.String(), "shards": have.Shards,
		"wanted_mode": wanted.Mode.String(), "wanted_shards": wanted.Shards,
	})
	hook.Call(e.logger, e.hooks, func(h Hooks) func(LayoutEvent) { return h.OnLayout },
		LayoutEvent{Topic: e.topic, Layout: layoutOf(have), Wanted: layoutOf(wanted)})
}

// WindowKnown implements [appender.Observer].
func (e *events) WindowKnown(layout appender.Layout, effective appender.Window, info server.Info, differs bool) {
	ev := WindowEvent{Topic: e.topic, Kind: WindowEffective, Wanted: e.wanted, Effective: Window(effective)}
	fields := watermill.LogFields{
		"topic": e.topic, "mode": layout.Mode.String(), "shards": layout.Shards, "server": info.String(),
		"window": effective.Duration.String(),
	}
	if effective.Entries > 0 {
		fields["window_entries"] = effective.Entries
	}
	e.logger.Info("Publishing idempotently", fields)
	e.onWindow(ev)
	if differs {
		e.logger.Error("The window stays as it is, since changing it would forget the keys that are remembered", errWindowDiffers,
			fields.Add(watermill.LogFields{"wanted_window": e.wanted.Duration.String(), "wanted_entries": e.wanted.Entries}))
		ev.Kind = WindowDiffers
		e.onWindow(ev)
	}
}

// Overflowed implements [appender.Observer].
func (e *events) Overflowed(effective appender.Window, evicted int64) {
	e.logger.Error("Keys were forgotten before the window's duration had passed; publishing them again adds them again", errWindowTooSmall, watermill.LogFields{
		"topic": e.topic, "window": effective.Duration.String(), "window_entries": effective.Entries, "evicted": evicted,
	})
	e.onWindow(WindowEvent{Topic: e.topic, Kind: WindowOverflow, Wanted: e.wanted, Effective: Window(effective), Evicted: evicted})
}

func (e *events) onWindow(ev WindowEvent) {
	hook.Call(e.logger, e.hooks, func(h Hooks) func(WindowEvent) { return h.OnWindow }, ev)
}
