package ledger

import (
	"testing"
	"testing/synctest"
	"time"
)

// A suspect is delayed, or its context has ended, so that its delivery does not count: the
// next suspect, which may kill the process, goes out when the server knows that, and never
// beside it.
func TestUncountedSuspectIsNotBesideAnother(t *testing.T) {
	for name, settle := range map[string]func(*Ledger, *Entry){
		"delayed": func(l *Ledger, e *Entry) {
			e.Delay(time.Second)
			l.settle(e, true)
		},
		"interrupted": func(l *Ledger, e *Entry) {
			e.end(ErrOwnershipLost)
			l.settle(e, false)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testLedger(func(s *Settings) {
					s.MaxDeliveries, s.MaxInFlight, s.RedeliverAfter = 1, 4, time.Second
				})
				l.add(left(1), left(2))
				first := l.prepared(0)
				if first == nil || first.counts.server != 2 {
					t.Fatalf("first suspect: %+v", first)
				}
				settle(l, first)
				if e := l.prepared(0); e != nil {
					t.Fatalf("entry %s goes out while the server takes the first one for delivered", e.name)
				}
				var todo Todo
				l.Commits.Take(&todo)
				if len(todo.Counts) != 1 || first.nextCount() != 1 {
					t.Fatalf("%d counts to write, want that of the first: 1", len(todo.Counts))
				}
				l.Commits.CountsWritten(todo.Counts, []int{1}, nil)
				second := l.prepared(0)
				if second == nil || second == first {
					t.Fatal("the second suspect does not go out")
				}
				<-time.After(time.Second)
				if e := l.prepared(1); e != nil {
					t.Fatalf("entry %s goes out beside a suspect", e.name)
				}
				l.settle(second, true)
				l.commit()
				if e := l.prepared(1); e != first {
					t.Error("the first suspect does not come again")
				}
			})
		})
	}
}

// What waits alone for its count may leave by other ways: others go on.
func TestUncountedSuspectIsForgotten(t *testing.T) {
	for name, leave := range map[string]func(*Ledger, *Entry){
		"read again": func(l *Ledger, e *Entry) { l.core.forget([]*Entry{e}) },
		"taken":      func(l *Ledger, e *Entry) { l.core.takenAway(e) },
		"not there":  func(l *Ledger, e *Entry) { l.core.vanished(e) },
		"no group": func(l *Ledger, _ *Entry) {
			var todo Todo
			l.Commits.Take(&todo)
			l.Commits.CountsDropped(todo.Counts)
		},
		"given away":  func(l *Ledger, e *Entry) { l.Handback.Given([]Release{{Entry: e, Name: e.name}}, nil, nil) },
		"group reset": func(l *Ledger, _ *Entry) { l.Progress.Reset(false) },
	} {
		t.Run(name, func(t *testing.T) {
			l := testLedger(func(s *Settings) {
				s.MaxDeliveries, s.RedeliverAfter, s.RedeliverMax = 1, time.Hour, time.Hour
			})
			l.add(left(1))
			first := l.prepared(0)
			first.end(ErrOwnershipLost)
			l.settle(first, false)
			leave(l, first)
			l.add(left(2))
			if e := l.prepared(0); e == nil || e.name != "2-0" {
				t.Errorf("%+v goes out, want the second one", e)
			}
		})
	}
}

// A suspect that was delivered before may have killed the process: it waits until those are
// settled that may be out beside each other.
func TestDeliveredSuspectIsAlone(t *testing.T) {
	l := testLedger(func(s *Settings) { s.MaxDeliveries, s.MaxInFlight = 5, 4 })
	delivered := left(3)
	delivered.Count = 3
	l.add(left(1), left(2), delivered)
	l.settle(l.prepared(0), true)
	l.commit()
	second := l.prepared(0)
	if second == nil || second.id.MS != 2 {
		t.Fatalf("%+v goes out, want entry 2", second)
	}
	if e := l.prepared(1); e != nil {
		t.Fatalf("entry %s goes out beside another suspect", e.name)
	}
	l.settle(second, true)
	l.commit()
	if e := l.prepared(1); e == nil || e.id.MS != 3 {
		t.Errorf("%+v goes out, want entry 3", e)
	}
}
