package appender

import (
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// observer keeps what was forgotten too early.
type observer struct{ evicted []int64 }

func (o *observer) NoClock(error)                                 {}
func (o *observer) LayoutDiffers(Layout, Layout)                  {}
func (o *observer) WindowKnown(Layout, Window, server.Info, bool) {}
func (o *observer) Overflowed(_ Window, evicted int64)            { o.evicted = append(o.evicted, evicted) }

// FlushOverflow reports what the pause between two reports has held back, once.
func TestFlushOverflow(t *testing.T) {
	o := new(observer)
	s := New(new(Config), "orders", Settings{Window: Window{Duration: time.Minute}}, o)
	s.FlushOverflow()
	now := time.Now()
	s.overflow.report(now, 100, server.StreamInfo{IIDsAdded: 10_100, IIDsTracked: 10_000})
	s.overflow.report(now.Add(time.Second), 130, server.StreamInfo{IIDsAdded: 10_130, IIDsTracked: 10_000})
	s.FlushOverflow()
	s.FlushOverflow()
	if len(o.evicted) != 1 || o.evicted[0] != 30 {
		t.Errorf("reported %v, want 30 once", o.evicted)
	}
}
