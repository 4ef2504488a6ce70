// Package observe has what tests look at: the log, and what hooks are told.
package observe

import (
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
)

// Logger writes what a user would see at the usual level, until the test has ended: a Router's
// last words come later.
type Logger struct {
	mu sync.Mutex
	tb testing.TB // nil when the test has ended
}

// NewLogger makes one.
func NewLogger(tb testing.TB) *Logger {
	l := &Logger{tb: tb}
	tb.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.tb = nil
	})
	return l
}

func (l *Logger) logf(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tb != nil {
		l.tb.Logf(format, args...)
	}
}

// Error writes the message, the error and the fields.
func (l *Logger) Error(msg string, err error, f watermill.LogFields) {
	l.logf("ERROR %s: %v %v", msg, err, f)
}

// Info writes the message and the fields.
func (l *Logger) Info(msg string, f watermill.LogFields) { l.logf("INFO %s %v", msg, f) }

// Debug writes nothing.
func (*Logger) Debug(string, watermill.LogFields) {}

// Trace writes nothing.
func (*Logger) Trace(string, watermill.LogFields) {}

// With drops the fields.
func (l *Logger) With(watermill.LogFields) watermill.LoggerAdapter { return l }

// Events collects what hooks are told.
type Events[T any] struct {
	mu   sync.Mutex
	list []T
}

// Add is a hook.
func (l *Events[T]) Add(v T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, v)
}

// All returns them.
func (l *Events[T]) All() []T {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]T(nil), l.list...)
}
