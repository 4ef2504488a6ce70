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

// A caller that gives up while its call is queued has sent nothing.
func TestGiveUpWhileQueued(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		release := f.holdSenders()
		ctx, cancel := context.WithCancelCause(t.Context())
		waiting := f.sending(ctx, "a")
		cause := errors.New("the user went away")
		cancel(cause)
		check(t, "queued", waiting()[0], Unknown, ErrNotSent, cause)
		release()
		synctest.Wait()
		if f.tries("a") != 0 {
			t.Error("it was sent")
		}
		ended, cancelEnded := context.WithCancel(t.Context())
		cancelEnded()
		check(t, "ended before", f.send(ended, "b")[0], Unknown, ErrNotSent, context.Canceled)
	})
}

// A caller that gives up while its call is sent does not know; what is found out reaches
// the observer.
func TestGiveUpWhileSent(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		held := make(chan struct{})
		f.answer = func(_ context.Context, _ int, items []*Item) ([]Outcome, error) {
			<-held
			return added(items), nil
		}
		ctx, cancel := context.WithCancel(t.Context())
		waiting := f.sending(ctx, "a")
		cancel()
		r := waiting()[0]
		check(t, "sent", r, Unknown, ErrOutcomeUnknown, context.Canceled)
		if r.Attempts != 1 || r.ProducerID != "p/1" {
			t.Errorf("%+v", r)
		}
		if _, ok := f.result("a"); ok {
			t.Error("the observer has a result already")
		}
		if f.queue.Idle() {
			t.Error("idle, though a sender is out")
		}
		close(held)
		synctest.Wait()
		late, _ := f.result("a")
		check(t, "the observer", late, Added)
	})
}

// Nor is anything sent, or sent again, for a caller that gives up during the set-up.
func TestGiveUpDuringSetUp(t *testing.T) {
	for tries := range 2 {
		inBubble(t, Config{}, func(t *testing.T, f *fake) {
			held := make(chan struct{})
			f.ready = func(n int) error {
				if n > tries {
					<-held
				}
				return nil
			}
			f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { return nil, errCut }
			ctx, cancel := context.WithCancel(t.Context())
			waiting := f.sending(ctx, "a")
			time.Sleep(time.Second) //nolint:forbidigo // the bubble's time
			cancel()
			want := []error{ErrNotSent, ErrOutcomeUnknown}[tries]
			check(t, "the caller", waiting()[0], Unknown, want, context.Canceled)
			close(held)
			synctest.Wait()
			late, _ := f.result("a")
			check(t, "the observer", late, Unknown, want)
			if f.tries("a") != tries {
				t.Errorf("%d tries, want %d", f.tries("a"), tries)
			}
		})
	}
}

// What nobody waits for any more is not sent again.
func TestGiveUpBetweenTries(t *testing.T) {
	for _, fault := range []error{errRefused, errCut} {
		inBubble(t, Config{}, func(t *testing.T, f *fake) {
			f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { return nil, fault }
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			check(t, "the caller", f.send(ctx, "a")[0], Unknown, ErrOutcomeUnknown, context.DeadlineExceeded)
			tries := f.tries("a")
			time.Sleep(time.Minute) //nolint:forbidigo // the bubble's time
			if f.tries("a") != tries {
				t.Errorf("%d tries after the caller was gone", f.tries("a")-tries)
			}
			want := ErrNotSent
			if errors.Is(fault, errCut) {
				want = ErrOutcomeUnknown
			}
			late, _ := f.result("a")
			check(t, "the observer", late, Unknown, want, errGivenUp)
		})
	}
}

// A caller's context ends its waiting only: others may be in the batch.
func TestContextOfAnotherCaller(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(ctx context.Context, _ int, items []*Item) ([]Outcome, error) {
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-time.After(time.Second):
				return added(items), nil
			}
		}
		release := f.holdSenders()
		ctx, cancel := context.WithCancel(t.Context())
		gone, stays := f.sending(ctx, "a"), f.sending(t.Context(), "b")
		release()
		synctest.Wait()
		cancel()
		check(t, "gone", gone()[0], Unknown, ErrOutcomeUnknown)
		r := stays()[0]
		check(t, "stays", r, Added)
		if r.Attempts != 1 {
			t.Errorf("%+v", r)
		}
	})
}

// Senders that are late don't count, up to a bound.
func TestStalledSenders(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		held := make(chan struct{})
		f.answer = func(_ context.Context, n int, items []*Item) ([]Outcome, error) {
			if n <= maxSenders {
				<-held
			}
			return added(items), nil
		}
		var waiting []func() []Result
		send := func() {
			waiting = append(waiting, f.sending(t.Context(), fmt.Sprint(len(waiting))))
		}
		for range Senders + 1 {
			send()
		}
		if len(f.appends) != Senders {
			t.Fatalf("%d senders, want %d", len(f.appends), Senders)
		}
		time.Sleep(lateAfter + time.Millisecond) //nolint:forbidigo // the bubble's time
		send()
		if n := len(f.appends); n != Senders+1 {
			t.Errorf("%d senders when the others are late", n)
		}
		for range 2 * maxSenders {
			time.Sleep(lateAfter + time.Millisecond) //nolint:forbidigo // the bubble's time
			send()
		}
		if n := len(f.appends); n != maxSenders {
			t.Errorf("%d senders, want at most %d", n, maxSenders)
		}
		close(held)
		for _, wait := range waiting {
			check(t, "held", wait()[0], Added)
		}
	})
}

// A caller that can't give up sends in its own goroutine, unless it would send others'
// messages.
func TestOwnGoroutine(t *testing.T) {
	inBubble(t, Config{Bounded: true}, func(t *testing.T, f *fake) {
		panicked := false
		func() {
			defer func() { panicked = recover() != nil }()
			f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { panic("in whose goroutine?") }
			check(t, "panic", f.send(context.Background(), "a")[0], Unknown, ErrOutcomeUnknown, ErrPanicked)
		}()
		f.answer = nil
		check(t, "afterwards", f.send(context.Background(), "b")[0], Added)
		if panicked || f.panics != 1 || !f.queue.Idle() {
			t.Errorf("panicked in the caller: %v, %d panics", panicked, f.panics)
		}
	})
}

// A panic of what is called is the calls' error, and the sender goes on.
func TestPanics(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { panic("a hook of the client") }
		check(t, "append", f.send(t.Context(), "a")[0], Unknown, ErrOutcomeUnknown, ErrPanicked)
		f.ready = func(int) error { panic("a logger") }
		check(t, "set-up", f.send(t.Context(), "b")[0], Unknown, ErrNotSent, ErrPanicked)
		f.ready, f.answer = nil, nil
		f.onDone = func() { panic("a hook of the user") }
		rs := f.send(t.Context(), "c", "d")
		check(t, "observer", rs[0], Added)
		check(t, "observer, the next item", rs[1], Unknown, ErrOutcomeUnknown, ErrPanicked)
		f.onDone = nil
		check(t, "afterwards", f.send(t.Context(), "e")[0], Added)
		if f.panics != 3 {
			t.Errorf("%d panics", f.panics)
		}
	})
}

// Close waits for what is being sent, then ends retries, then gives up.
func TestClose(t *testing.T) {
	const retryFor = 2 * time.Second
	closing := func(f *fake) (took time.Duration, err error) {
		begun := time.Now()
		err = f.runner.Close()
		return time.Since(begun), err
	}
	t.Run("waits", func(t *testing.T) {
		inBubble(t, Config{RetryFor: retryFor}, func(t *testing.T, f *fake) {
			f.answer = func(_ context.Context, _ int, items []*Item) ([]Outcome, error) {
				time.Sleep(time.Second) //nolint:forbidigo // the bubble's time
				return added(items), nil
			}
			waiting := f.sending(t.Context(), "a")
			if took, err := closing(f); err != nil || took != time.Second {
				t.Errorf("%v after %v", err, took)
			}
			check(t, "being sent", waiting()[0], Added)
			if f.runner.Begin() {
				t.Error("a call after Close")
			}
		})
	})
	t.Run("ends what waits", func(t *testing.T) {
		inBubble(t, Config{RetryFor: retryFor}, func(t *testing.T, f *fake) {
			f.answer = func(context.Context, int, []*Item) ([]Outcome, error) { return nil, errRefused }
			time.Sleep(time.Second) //nolint:forbidigo // the bubble's time
			release := f.holdSenders()
			defer release()
			waiting := f.sending(t.Context(), "a")
			if took, err := closing(f); err == nil || took != retryFor+closeGrace {
				t.Errorf("%v after %v", err, took)
			}
			check(t, "queued", waiting()[0], Unknown, ErrNotSent, ErrClosed)
		})
		// The second batch of a call has a RetryFor of its own, which Close does not wait for,
		// whether it is refused or waits for a connection.
		for _, second := range []struct {
			answer func(context.Context) error
			want   error
		}{
			{func(context.Context) error { return errRefused }, errRefused},
			{func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }, errNoConnection},
		} {
			inBubble(t, Config{RetryFor: retryFor}, func(t *testing.T, f *fake) {
				f.answer = func(ctx context.Context, n int, items []*Item) ([]Outcome, error) {
					if n > 1 {
						return nil, second.answer(ctx)
					}
					time.Sleep(retryFor * 3 / 4) //nolint:forbidigo // the bubble's time
					return added(items), nil
				}
				uuids := make([]string, batchMessages+1)
				for i := range uuids {
					uuids[i] = fmt.Sprint(i)
				}
				waiting := f.sending(t.Context(), uuids...)
				if took, err := closing(f); err != nil || took != retryFor {
					t.Errorf("%v after %v", err, took)
				}
				rs := waiting()
				check(t, "first batch", rs[0], Added)
				check(t, "second batch", rs[batchMessages], Unknown, ErrNotSent, ErrClosed, second.want)
			})
		}
	})
	t.Run("gives up", func(t *testing.T) {
		inBubble(t, Config{RetryFor: retryFor}, func(t *testing.T, f *fake) {
			held := make(chan struct{})
			f.answer = func(_ context.Context, _ int, items []*Item) ([]Outcome, error) {
				<-held
				return added(items), nil
			}
			waiting := f.sending(t.Context(), "a")
			if took, err := closing(f); err == nil || took != retryFor+closeGrace {
				t.Errorf("%v after %v", err, took)
			}
			check(t, "without a reply", waiting()[0], Unknown, ErrOutcomeUnknown, ErrClosed)
			if _, err := closing(f); err == nil {
				t.Error("closed twice, and all well the second time")
			}
			close(held)
			synctest.Wait()
			late, _ := f.result("a")
			check(t, "the observer", late, Added)
		})
	})
}

// Callers that wait share a batch, as far as it goes; a call that fills one is alone.
func TestSharedBatches(t *testing.T) {
	inBubble(t, Config{}, func(t *testing.T, f *fake) {
		release := f.holdSenders()
		many := make([]string, batchMessages-1)
		for i := range many {
			many[i] = fmt.Sprint("many ", i)
		}
		waiting := []func() []Result{f.sending(t.Context(), many...)}
		for _, uuid := range []string{"a", "b"} {
			waiting = append(waiting, f.sending(t.Context(), uuid))
		}
		release()
		for _, wait := range waiting {
			check(t, "shared", wait()[0], Added)
		}
		// Which of two senders that are free at once comes first is open.
		var sizes []int
		for _, a := range f.appends[Senders:] {
			sizes = append(sizes, len(a.items))
		}
		if slices.Sort(sizes); !slices.Equal(sizes, []int{1, batchMessages}) {
			t.Errorf("batches of %d", sizes)
		}
	})
}
