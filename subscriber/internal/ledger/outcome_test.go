package ledger

import (
	"errors"
	"testing"
	"time"
)

// outWith is a ledger with one message at its handler, with so many deliveries allowed.
func outWith(t *testing.T, maxDeliveries int) (*Ledger, *Entry) {
	t.Helper()
	l := testLedger(func(s *Settings) { s.MaxDeliveries = maxDeliveries })
	l.add(fresh(1))
	e := l.next(0)
	if e == nil {
		t.Fatal("nothing to hand out")
	}
	return l, e
}

// A delivery in which the handler ran and failed counts, whatever a later step asks for,
// or a message that always fails would come again without end. A handler that asks for a
// delay itself, and says so by an error, has not failed.
func TestFailureBeforeADelayCounts(t *testing.T) {
	broken := errors.New("no funds")
	fail := func(e *Entry) { e.Failed(broken) }
	delay := func(e *Entry) { e.Delay(time.Minute) }
	for name, tt := range map[string]struct {
		steps  []func(*Entry)
		acked  bool
		max    int
		want   Settlement
		count  int
		after  time.Duration
		isDead bool
	}{
		"a delay alone":                  {[]func(*Entry){delay}, false, 1, Delayed, 0, time.Minute, false},
		"a delay, acknowledged":          {[]func(*Entry){delay}, true, 1, Delayed, 0, time.Minute, false},
		"a delay, then an error":         {[]func(*Entry){delay, fail}, false, 1, Delayed, 0, time.Minute, false},
		"a failure, then a delay":        {[]func(*Entry){fail, delay}, false, 2, Nacked, 1, time.Minute, false},
		"the same, acknowledged":         {[]func(*Entry){fail, delay}, true, 2, Nacked, 1, time.Minute, false},
		"the same, the last delivery":    {[]func(*Entry){fail, delay}, false, 1, Nacked, 1, 0, true},
		"a failure, then a success":      {[]func(*Entry){fail}, true, 1, Acked, 1, 0, false},
		"a failure alone":                {[]func(*Entry){fail}, false, 2, Nacked, 1, 100 * time.Millisecond, false},
		"delay, failure and delay again": {[]func(*Entry){delay, fail, delay}, false, 2, Nacked, 1, time.Minute, false},
		"failure and delay as it ends":   {[]func(*Entry){fail, delay, func(e *Entry) { e.end(ErrClosing) }}, false, 1, Delayed, 0, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			l, e := outWith(t, tt.max)
			for _, step := range tt.steps {
				step(e)
			}
			o := l.settle(e, tt.acked)
			if o.Settlement != tt.want || e.counts.deliveries != tt.count {
				t.Errorf("%v, %d deliveries count, want %v and %d", o.Settlement, e.counts.deliveries, tt.want, tt.count)
			}
			if tt.after != 0 && (o.Redelivery == nil || o.Redelivery.After < tt.after/2 || o.Redelivery.After > 2*tt.after) {
				t.Errorf("redelivery %+v, want one after %v", o.Redelivery, tt.after)
			}
			dead := l.Commits.TakeDeadLetters()
			if (len(dead) == 1) != tt.isDead {
				t.Errorf("%d dead letters", len(dead))
			}
			if tt.isDead && (dead[0].Reason != ReasonMaxDeliveries || !errors.Is(dead[0].Failure, broken)) {
				t.Errorf("dead letter for %q, %v", dead[0].Reason, dead[0].Failure)
			}
		})
	}
}

// What another consumer has is neither handed out again nor reported as lost with its stream,
// whatever the handler asks for.
func TestSettledWhenAnotherHasIt(t *testing.T) {
	for name, ask := range map[string]func(*Ledger, *Entry){
		"not acknowledged": func(*Ledger, *Entry) {},
		"delayed":          func(_ *Ledger, e *Entry) { e.Delay(time.Minute) },
		"its stream gone":  func(l *Ledger, _ *Entry) { l.Progress.Reset(true) },
	} {
		t.Run(name, func(t *testing.T) {
			l, e := outWith(t, 0)
			l.Ownership.Renewed([]*Entry{e}, l.Now(), Verdict{Others: map[string]bool{"1-0": true}})
			ask(l, e)
			if o := l.settle(e, false); o.Settlement != Interrupted || o.Lost || o.Redelivery != nil {
				t.Errorf("%+v", o)
			}
			if n := l.Ownership.Size(); n != 0 {
				t.Errorf("%d entries are held", n)
			}
		})
	}
}
