package subscriber

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
)

// left is an entry that a dead consumer has left, as a takeover brings it.
func left(n int) arrival {
	a := read(n)
	a.entry.msg, a.entry.size, a.entry.found, a.entry.suspect = nil, 0, true, true
	return a
}

// prepare picks the next entry and prepares it as prepare.lua does.
func prepare(b *book, slot int) *entry {
	e, _ := b.next(slot)
	if e != nil && e.msg == nil {
		b.prepared(e, message.NewMessage("", nil), 1000, b.now())
	}
	return e
}

// A suspect is delayed, or its context has ended, so that its delivery does not count: the
// next suspect, which may kill the process, goes out when the server knows that, and never
// beside it.
func TestUncountedSuspectIsNotBesideAnother(t *testing.T) {
	for name, settle := range map[string]func(*book, *entry){
		"delayed": func(b *book, e *entry) {
			e.Delay(time.Second)
			b.settled(e, true, ask{})
		},
		"interrupted": func(b *book, e *entry) {
			e.end(ErrOwnershipLost)
			b.settled(e, false, ask{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := testBook(func(c *Config) {
					c.MaxDeliveries, c.MaxInFlight, c.RedeliverAfter = 1, 4, time.Second
				})
				b.add([]arrival{left(1), left(2)}, b.now())
				first := prepare(b, 0)
				if first == nil || first.written != 2 {
					t.Fatalf("first suspect: %+v", first)
				}
				settle(b, first)
				if e := prepare(b, 0); e != nil {
					t.Fatalf("entry %s goes out while the server takes the first one for delivered", e.name)
				}
				marks := b.takeJobs().marks
				if len(marks) != 1 || first.wanted() != 1 {
					t.Fatalf("%d counts to write, want that of the first: 1", len(marks))
				}
				first.written = 1 // as the settler does
				b.marked(marks, nil)
				second := prepare(b, 0)
				if second == nil || second == first {
					t.Fatal("the second suspect does not go out")
				}
				<-time.After(time.Second)
				if e := prepare(b, 1); e != nil {
					t.Fatalf("entry %s goes out beside a suspect", e.name)
				}
				b.settled(second, true, ask{})
				b.confirm(b.takeJobs().acks)
				if e := prepare(b, 1); e != first {
					t.Error("the first suspect does not come again")
				}
			})
		})
	}
}

// What waits alone for its count may leave by other ways: others go on.
func TestUncountedSuspectIsForgotten(t *testing.T) {
	for name, leave := range map[string]func(*book, *entry){
		"read again":  func(b *book, e *entry) { b.forget([]*entry{e}) },
		"taken":       func(b *book, e *entry) { b.taken(e) },
		"not there":   func(b *book, e *entry) { b.vanished(e) },
		"no group":    func(b *book, _ *entry) { b.marked(b.takeJobs().marks, nil) },
		"given away":  func(b *book, e *entry) { b.given([]handback{{entry: e, name: e.name}}, nil, nil) },
		"group reset": func(b *book, _ *entry) { b.reset(false) },
	} {
		t.Run(name, func(t *testing.T) {
			b := testBook(func(c *Config) { c.MaxDeliveries, c.RedeliverAfter = 1, time.Hour; c.RedeliverMax = time.Hour })
			b.add([]arrival{left(1)}, b.now())
			first := prepare(b, 0)
			first.end(ErrOwnershipLost)
			b.settled(first, false, ask{})
			leave(b, first)
			b.add([]arrival{left(2)}, b.now())
			if e := prepare(b, 0); e == nil || e.name != "2-0" {
				t.Errorf("%+v goes out, want the second one", e)
			}
		})
	}
}
