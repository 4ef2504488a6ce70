package publisher

import "github.com/onceward/watermill-idempotent/internal/hook"

// Hooks receive what happens, for metrics and alerts. Every field may be nil.
// They are called from the goroutines that publish, several at once, and must not
// block. A panic is logged and otherwise ignored. Keys don't belong into metric labels.
type Hooks struct {
	// OnPublish gets the outcome of every message, once: also of one that was refused
	// before it was sent (no key, too large, closed). That of a message whose caller has
	// stopped waiting while it was sent comes when it is known, and may be another one than
	// the caller was told.
	OnPublish func(Receipt)
	// OnChildDiffers gets a message whose key was derived from the handled one's
	// (a child key), and whose content differs from the original's: a handler that
	// ran again produced something else. The original stays; it is no error.
	OnChildDiffers func(Receipt)
	// OnWindow tells of a topic's window: once when it is known, and again when
	// something is wrong with it.
	OnWindow func(WindowEvent)
	// OnLayout tells that a topic's layout differs from what Config would choose.
	OnLayout func(LayoutEvent)
	// OnRetry tells that a batch is sent again.
	OnRetry func(RetryEvent)
}

// WindowEventKind says which.
type WindowEventKind uint8

const (
	// WindowEffective: the window that is in force was read from the server.
	WindowEffective WindowEventKind = iota
	// WindowDiffers: the stream tracks ids under other settings than wanted.
	// Changing them would make the server forget those ids, so they stay.
	WindowDiffers
	// WindowOverflow: the server forgot ids before Duration had passed, since more
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

// WindowEvent is what OnWindow gets.
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

// LayoutEvent is what OnLayout gets.
type LayoutEvent struct {
	Topic string
	// Layout is in force, Wanted what this publisher would have made.
	Layout, Wanted Layout
}

// RetryEvent is what OnRetry gets.
type RetryEvent struct {
	Topic string
	// Messages is how many are sent again, Attempt the number of the try that
	// failed (1 is the first), Err its error.
	Messages int
	Attempt  int
	Err      error
}

func (e *engine) onPublish(r Receipt) {
	hook.Call(e.logger, e.cfg.Hooks, func(h Hooks) func(Receipt) { return h.OnPublish }, r)
}

func (e *engine) onChildDiffers(r Receipt) {
	hook.Call(e.logger, e.cfg.Hooks, func(h Hooks) func(Receipt) { return h.OnChildDiffers }, r)
}

func (e *engine) onWindow(ev WindowEvent) {
	hook.Call(e.logger, e.cfg.Hooks, func(h Hooks) func(WindowEvent) { return h.OnWindow }, ev)
}

func (e *engine) onLayout(ev LayoutEvent) {
	hook.Call(e.logger, e.cfg.Hooks, func(h Hooks) func(LayoutEvent) { return h.OnLayout }, ev)
}

func (e *engine) onRetry(ev RetryEvent) {
	hook.Call(e.logger, e.cfg.Hooks, func(h Hooks) func(RetryEvent) { return h.OnRetry }, ev)
}
