package ledger

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// An hour in which every message fails: what is held stays bounded, and nothing is lost.
func TestHourOfFailuresStaysBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLedger(func(s *Settings) { s.MaxHeld, s.ReadAhead = 500, 50 })
		n, deliveries, renewed := 0, 0, time.Now()
		for end := time.Now().Add(time.Hour); time.Now().Before(end); {
			var batch []Arrival
			for range l.Intake.Free(1000) {
				n++
				batch = append(batch, fresh(n))
			}
			l.add(batch...)
			p, until := l.Dispatch.Next(0)
			e := p.Entry
			if e == nil {
				<-time.After(max(time.Duration(until-l.Now()), time.Millisecond))
				if time.Since(renewed) > l.core.set.MinIdle/4 {
					l.Ownership.Renewed(l.Ownership.Held(), l.Now(), Verdict{})
					renewed = time.Now()
				}
				l.commit()
				continue
			}
			if e.msg == nil { // as the script would have it
				l.prepare(e)
			}
			deliveries++
			l.settle(e, false)
			if waiting := l.core.queues.waiting.Len(); len(l.core.entries) > 500 || waiting > 500 || l.core.bytes > 100*1000 {
				t.Fatalf("%d entries, %d waiting, %d bytes", len(l.core.entries), waiting, l.core.bytes)
			}
		}
		if n != 500 {
			t.Errorf("%d entries read, 500 may be held", n)
		}
		// The backoff reaches its cap of 30 s: about 120 deliveries of each in an hour.
		if per := deliveries / n; per < 100 || per > 180 {
			t.Errorf("%d deliveries of each entry", per)
		}
	})
}

// What is held ends by our clock before MinIdle has passed since it was confirmed.
func TestOwnershipEndsByOurClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := testLedger(func(*Settings) {})
		l.add(fresh(1), fresh(2))
		e := l.next(0)
		var cause error
		if !l.Dispatch.Offer(e, func(err error) { cause = err }) {
			t.Fatal("a fresh entry is not offered")
		}
		<-time.After(53 * time.Second)
		if ended := l.Ownership.Expire(); len(ended) != 0 {
			t.Fatal("ended early")
		}
		<-time.After(2 * time.Second)
		if ended := l.Ownership.Expire(); len(ended) != 1 || !errors.Is(cause, ErrOwnershipLost) {
			t.Errorf("after 55 s of 60: %d ended, cause %v", len(ended), cause)
		}
		// Nothing is handed out that was not renewed.
		if l.next(0) != nil {
			t.Error("a stale entry goes out")
		}
		l.Ownership.Renewed(l.Ownership.Held(), l.Now(), Verdict{})
		if e := l.next(0); e == nil || e.name != "2-0" {
			t.Error("a renewed entry does not go out")
		}
	})
}

// An entry was picked, and the process stood still, or the answer to its preparation was
// long on its way: it is offered only while its lease lasts, 54 of 60 seconds.
func TestNoOfferAfterTheLease(t *testing.T) {
	for stood, want := range map[time.Duration]bool{0: true, 53 * time.Second: true, 55 * time.Second: false} {
		t.Run(stood.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testLedger(func(s *Settings) { s.MinIdle = 60 * time.Second })
				l.add(fresh(1))
				e := l.next(0)
				<-time.After(stood)
				if got := l.Dispatch.Offer(e, func(error) {}); got != want {
					t.Errorf("offered after %v: %v", stood, got)
				}
			})
		})
	}
}

// At the end of CloseTimeout only those are counted whose handlers were too slow, not an
// entry whose message a server that does not answer has kept.
func TestOnlySlowHandlersAreCounted(t *testing.T) {
	l := testLedger(func(s *Settings) { s.MaxInFlight = 2 })
	l.add(fresh(1), left(2))
	var cause error
	if !l.Dispatch.Offer(l.next(0), func(err error) { cause = err }) || l.next(1) == nil {
		t.Fatal("not handed out")
	}
	if n := l.Dispatch.EndAll(); n != 1 || !errors.Is(cause, ErrClosing) {
		t.Errorf("%d counted, cause %v", n, cause)
	}
}
