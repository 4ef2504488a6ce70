package batch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// What is refused goes out again, with pauses that grow, until RetryFor has passed.
func TestRetriesEnd(t *testing.T) {
	inBubble(t, Config{RetryFor: 10 * time.Second}, func(t *testing.T, f *fake) {
		f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { return nil, errRefused }
		r := f.send(t.Context(), "a")[0]
		check(t, "refused for ever", r, Unknown, ErrNotSent, errRetryEnded, errRefused)
		if r.Resent || r.Attempts != len(f.appends) || r.ProducerID != "p/1" {
			t.Errorf("result %+v after %d tries", r, len(f.appends))
		}
		if took := time.Since(f.begun); took > 10*time.Second || took < 9500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		first, last := f.appends[1].at-f.appends[0].at, f.appends[len(f.appends)-1].at-f.appends[len(f.appends)-2].at
		if first > 3*time.Millisecond || first == 0 || last < 125*time.Millisecond || last > 375*time.Millisecond {
			t.Errorf("pauses of %v and %v", first, last)
		}
		if len(f.retries) != len(f.appends) || f.outages != 1 || f.recovers != 0 {
			t.Errorf("%d retries, %d outages, %d recoveries", len(f.retries), f.outages, f.recovers)
		}
		f.answer = nil
		check(t, "afterwards", f.send(t.Context(), "b")[0], Added)
		if f.recovers != 1 {
			t.Errorf("%d recoveries", f.recovers)
		}
	})
}

// A short refusal is no outage.
func TestShortRefusalIsNoOutage(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n < 4 {
				return nil, errRefused
			}
			return added(items), nil
		}
		r := f.send(t.Context(), "a")[0]
		check(t, "refused for a while", r, Added)
		if r.Attempts != 4 || r.Resent || f.outages+f.recovers != 0 {
			t.Errorf("%+v, %d outages, %d recoveries", r, f.outages, f.recovers)
		}
	})
}

// A final error ends one call at once, and a set-up's counts as no try.
func TestFinalErrors(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { return nil, errFinal }
		check(t, "append", f.send(t.Context(), "a")[0], Unknown, ErrNotSent, errFinal)
		f.ready = func(int) error { return errFinal }
		r := f.send(t.Context(), "b")[0]
		check(t, "set-up", r, Unknown, ErrNotSent, errFinal)
		if len(f.appends) != 1 || r.Attempts != 0 || len(f.retries) != 0 || time.Since(f.begun) > 0 {
			t.Errorf("%d tries, result %+v, retries %v", len(f.appends), r, f.retries)
		}
	})
}

// A stream that is not as it was set up is set up at once, but not for ever at once.
func TestStaleIsTriedAtOnce(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n < 4 {
				return nil, errStale
			}
			return added(items), nil
		}
		check(t, "stale", f.send(t.Context(), "a")[0], Added)
		at := func(n int) time.Duration { return f.appends[n].at }
		if f.readies != 4 || at(1) != 0 || at(2) == 0 || at(3) == at(2) {
			t.Errorf("%d set-ups, tries %v", f.readies, f.appends)
		}
	})
}

// What is asked after the time that a caller has for a connection is not its error.
func TestTimeIsUpGivesTheReasonBefore(t *testing.T) {
	inBubble(t, Config{RetryFor: time.Second}, func(t *testing.T, f *fake) {
		f.answer = func(ctx context.Context, n int, _ []*Item) ([]Outcome, error) {
			if n < 3 {
				return nil, errRefused
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		check(t, "no connection", f.send(t.Context(), "a")[0], Unknown, ErrNotSent, errRefused)
		if took := time.Since(f.begun); took != time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// Callers that wait share a batch. One whose messages make it fail must not take the
// others along, whether they are refused or kill the connection.
func TestGroupIsHalved(t *testing.T) {
	for _, fault := range []error{errFinal, errCut} {
		inBubble(t, Config{RetryFor: 2 * time.Second}, func(t *testing.T, f *fake) {
			f.answer = func(_ context.Context, _ int, items []*Item) ([]Outcome, error) {
				if slices.ContainsFunc(items, func(it *Item) bool { return it.MessageUUID == "5" }) {
					return nil, fault
				}
				outcomes := added(items)
				for i, it := range items {
					if it.MaybeSent() {
						outcomes[i].Verdict, outcomes[i].LooksOwn = Duplicate, true
					}
				}
				return outcomes, nil
			}
			release := f.holdSenders()
			var results []func() []Result
			for n := range 8 {
				results = append(results, f.sending(t.Context(), fmt.Sprint(n)))
			}
			release()
			for n, wait := range results {
				r := wait()[0]
				switch {
				case n != 5:
					check(t, fmt.Sprint(n), r, Added)
					if r.Resent != errors.Is(fault, errCut) {
						t.Errorf("%d: %+v", n, r)
					}
					if r.Duration > time.Second {
						t.Errorf("%d: had to wait %v for the others'", n, r.Duration)
					}
				case errors.Is(fault, errCut):
					check(t, "the one that cuts", r, Unknown, ErrOutcomeUnknown, errRetryEnded)
				default:
					check(t, "the refused one", r, Unknown, ErrNotSent, errFinal)
				}
			}
			if batch := f.appends[Senders].items; len(batch) != 8 {
				t.Errorf("first batch %v, want all eight", batch)
			}
		})
	}
}

// A call that has waited too long in the queue is not sent.
func TestRetryForCountsFromTheCall(t *testing.T) {
	inBubble(t, Config{RetryFor: 50 * time.Millisecond}, func(t *testing.T, f *fake) {
		release := f.holdSenders()
		late := f.sending(t.Context(), "late")
		time.Sleep(60 * time.Millisecond) //nolint:forbidigo // the bubble's time
		release()
		check(t, "late", late()[0], Unknown, ErrNotSent, errRetryEnded)
		if f.tries("late") != 0 {
			t.Error("it was sent")
		}
	})
}

// Shortly before the end of the window a message that may have been is not sent again: it could be
// added twice.
func TestWindowNearlyPassed(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.window = time.Second
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n == 1 {
				time.Sleep(901 * time.Millisecond) //nolint:forbidigo // the bubble's time
				return nil, errCut
			}
			return added(items), nil
		}
		check(t, "lost", f.send(t.Context(), "a")[0], Unknown, ErrOutcomeUnknown, errWindowPassed)
		if f.tries("a") != 1 {
			t.Errorf("%d tries", f.tries("a"))
		}
	})
	// What was refused was not written, and may go out again at any time.
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.window = time.Second
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n == 1 {
				time.Sleep(2 * time.Second) //nolint:forbidigo // the bubble's time
				return nil, errRefused
			}
			return added(items), nil
		}
		check(t, "refused", f.send(t.Context(), "a")[0], Added)
	})
}

// A resend that was added after the window may be in the stream twice.
func TestAddedLate(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.window = time.Second
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n == 1 {
				return nil, errCut
			}
			time.Sleep(1100 * time.Millisecond) //nolint:forbidigo // the bubble's time
			return added(items), nil
		}
		r := f.send(t.Context(), "a")[0]
		check(t, "late", r, Added, ErrOutcomeUnknown, errAddedLate)
		if !r.Resent || r.EntryID == "" {
			t.Errorf("%+v", r)
		}
	})
}

// A duplicate that looks like the item itself is its own first try, if a reply was lost;
// but one entry is the first try of one item.
func TestOwnFirstTry(t *testing.T) {
	own := func(items []*Item) []Outcome {
		outcomes := make([]Outcome, len(items))
		for i := range outcomes {
			outcomes[i] = Outcome{Known: true, Verdict: Duplicate, EntryID: "1-1", Age: time.Second, LooksOwn: true}
		}
		return outcomes
	}
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n == 2 {
				return nil, errCut
			}
			return own(items), nil
		}
		check(t, "no reply was lost", f.send(t.Context(), "a")[0], Duplicate)
		rs := f.send(t.Context(), "b", "c")
		check(t, "own", rs[0], Added)
		check(t, "a second message with its UUID", rs[1], Duplicate)
		if rs[0].Age != 0 || rs[1].Age != time.Second || !rs[0].Resent || !rs[1].Resent {
			t.Errorf("%+v", rs)
		}
	})
	// Of two callers in one batch.
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n == Senders+1 {
				return nil, errStaleAndMaybeSent(items)
			}
			return own(items), nil
		}
		release := f.holdSenders()
		one, other := f.sending(t.Context(), "x"), f.sending(t.Context(), "x'")
		release()
		check(t, "one", one()[0], Added)
		check(t, "the other", other()[0], Duplicate)
	})
	// Of an earlier batch of the call.
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		uuids := make([]string, batchMessages+1)
		for i := range uuids {
			uuids[i] = fmt.Sprint(i)
		}
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			switch n {
			case 1:
				return added(items), nil
			case 2:
				return nil, errCut
			}
			outcomes := own(items)
			outcomes[0].EntryID = "entry of 7"
			return outcomes, nil
		}
		check(t, "the entry of an earlier item", f.send(t.Context(), uuids...)[batchMessages], Duplicate)
	})
}

// A batch behind a gap is not sent, or the messages of a call would be out of order. A
// conflict is no gap.
func TestNothingBehindAGap(t *testing.T) {
	uuids := make([]string, 2*batchMessages+10)
	for i := range uuids {
		uuids[i] = fmt.Sprint(i)
	}
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			outcomes := added(items)
			if n == 1 {
				outcomes[3] = Outcome{Known: true, Verdict: Duplicate, Differs: true, Err: errFinal}
			}
			if n == 2 {
				outcomes[1] = Outcome{Known: true, Err: errFinal}
			}
			return outcomes, nil
		}
		rs := f.send(t.Context(), uuids...)
		check(t, "conflict", rs[3], Duplicate, errFinal)
		check(t, "behind it, same batch", rs[4], Added)
		check(t, "the gap", rs[batchMessages+1], Unknown, errFinal)
		check(t, "same batch", rs[batchMessages+2], Added)
		check(t, "behind the gap", rs[2*batchMessages], Unknown, ErrNotSent, ErrOther)
		if len(f.appends) != 2 {
			t.Errorf("%d batches", len(f.appends))
		}
	})
}

// What has no reply may have been sent, what has one is done; only the rest goes out again.
func TestHalfABatchIsKnown(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			outcomes := added(items)
			if n == 1 {
				outcomes[1] = Outcome{}
				items[1].MarkMaybeSent()
				outcomes[2] = Outcome{}
				return outcomes, errCut
			}
			return outcomes, nil
		}
		rs := f.send(t.Context(), "a", "b", "c")
		for i, resent := range []bool{false, true, false} {
			check(t, "item", rs[i], Added)
			if rs[i].Resent != resent || f.tries([]string{"a", "b", "c"}[i]) != min(2, 1+i) {
				t.Errorf("%d: %+v", i, rs[i])
			}
		}
	})
}

// A large call is split by bytes as well.
func TestBatchesBySize(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		c := NewCall(3, time.Now())
		for i := range c.Items {
			c.Items[i].MessageUUID, c.Items[i].Size = fmt.Sprint(i), batchBytes-1
		}
		f.runner.Begin()
		f.queue.Send(t.Context(), c, func(_ int, r Result) { check(t, "item", r, Added) })
		f.runner.End()
		synctest.Wait()
		if len(f.appends) != 3 {
			t.Errorf("%d batches", len(f.appends))
		}
	})
}

// errStaleAndMaybeSent loses replies in a way that sends all of them again together.
func errStaleAndMaybeSent(items []*Item) error {
	for _, it := range items {
		it.MarkMaybeSent()
	}
	return errStale
}
