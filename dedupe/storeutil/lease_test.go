package storeutil_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

const leaseTime = 30 * time.Second

func lease(t *testing.T, renew func(context.Context) error) (*storeutil.Lease, context.Context) {
	l, ctx := storeutil.NewLease(t.Context(), storeutil.LeaseConfig{Duration: leaseTime, SentAt: time.Now(), Renew: renew})
	t.Cleanup(func() { l.Release(nil) })
	return l, ctx
}

func wantCause(t *testing.T, ctx context.Context, want error) {
	t.Helper()
	if ctx.Err() == nil {
		t.Error("the context goes on")
	} else if !errors.Is(context.Cause(ctx), want) {
		t.Errorf("cause %v, want %v", context.Cause(ctx), want)
	}
}

func TestLeaseIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		l, ctx := lease(t, func(context.Context) error { n++; return nil })
		time.Sleep(10 * time.Minute) //nolint:forbidigo // the bubble's clock
		synctest.Wait()
		if n != 60 || ctx.Err() != nil || l.Err() != nil {
			t.Errorf("%d renewals in 10 minutes, %v, %v", n, ctx.Err(), l.Err())
		}
		if err := l.Stop(); err != nil {
			t.Error(err)
		}
		time.Sleep(10 * time.Minute) //nolint:forbidigo // the bubble's clock
		if n != 60 || ctx.Err() != nil {
			t.Errorf("after the stop: %d renewals, context %v", n, ctx.Err())
		}
		l.Release(nil)
		wantCause(t, ctx, context.Canceled)
	})
}

// Nobody answers: whether the server refuses, hangs, or is not there, the lease ends
// a margin before the server's would.
func TestLeaseEndsByTheLocalClock(t *testing.T) {
	for name, renew := range map[string]func(context.Context) error{
		"errors": func(context.Context) error { return errors.New("connection refused") },
		"hangs":  func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				answers := 2
				_, ctx := lease(t, func(ctx context.Context) error {
					if answers--; answers >= 0 {
						return nil
					}
					return renew(ctx)
				})
				<-ctx.Done()
				// The last renewal was sent at 20 s.
				if took := time.Since(begin); took != 49*time.Second {
					t.Errorf("ended after %v", took)
				}
				wantCause(t, ctx, storeutil.ErrLeaseLost)
			})
		})
	}
}

// The end here comes a tenth of the lease, at most a second, before the server's.
func TestLeaseEndsBeforeTheServers(t *testing.T) {
	for duration, want := range map[time.Duration]time.Duration{2 * time.Second: 1800 * time.Millisecond, time.Minute: 59 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			l, ctx := storeutil.NewLease(t.Context(), storeutil.LeaseConfig{
				Duration: duration, SentAt: begin, Renew: func(context.Context) error { return errors.New("connection refused") },
			})
			defer l.Release(nil)
			<-ctx.Done()
			if took := time.Since(begin); took != want {
				t.Errorf("a lease of %v ended after %v, want %v", duration, took, want)
			}
		})
	}
}

// A step that needs the claim goes on while the lease is renewed, and ends with it.
func TestStepEndsWhenTheLeaseIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, answers := time.Now(), 3
		l, _ := lease(t, func(context.Context) error {
			if answers--; answers < 0 {
				return errors.New("connection refused")
			}
			return nil
		})
		ctx, cancel := l.While(t.Context())
		defer cancel()
		<-ctx.Done()
		if took := time.Since(begin); took != 59*time.Second { // the last renewal was sent at 30 s
			t.Errorf("ended after %v", took)
		}
		wantCause(t, ctx, storeutil.ErrLeaseLost)
	})
	for name, stopFirst := range map[string]bool{"stopped before": true, "stopped meanwhile": false} {
		synctest.Test(t, func(t *testing.T) {
			begin := time.Now()
			l, _ := lease(t, func(context.Context) error { return nil })
			stop := func() {
				if err := l.Stop(); err != nil {
					t.Error(err)
				}
			}
			if stopFirst {
				stop()
			}
			ctx, cancel := l.While(t.Context())
			defer cancel()
			if !stopFirst {
				stop()
			}
			<-ctx.Done()
			if took := time.Since(begin); took != 29*time.Second {
				t.Errorf("%s: ended after %v", name, took)
			}
			wantCause(t, ctx, storeutil.ErrLeaseLost)
		})
	}
}

// The lease is reckoned from the sending of a renewal, not from its reply.
func TestLeaseCountsFromTheSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		slow := true
		_, ctx := lease(t, func(ctx context.Context) error {
			if !slow {
				<-ctx.Done()
				return ctx.Err()
			}
			slow = false
			time.Sleep(4 * time.Second) //nolint:forbidigo // the bubble's clock
			return nil
		})
		<-ctx.Done()
		if took := time.Since(begin); took != 39*time.Second {
			t.Errorf("ended after %v", took)
		}
	})
}

func TestLeaseLostByTheServersWord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		l, ctx := lease(t, func(context.Context) error { return storeutil.ErrLeaseLost })
		<-ctx.Done()
		if took := time.Since(begin); took != leaseTime/3 {
			t.Errorf("lost after %v", took)
		}
		wantCause(t, ctx, storeutil.ErrLeaseLost)
		if err := l.Stop(); !errors.Is(err, storeutil.ErrLeaseLost) {
			t.Errorf("stop: %v", err)
		}
	})
}

// A failed renewal is not the end: the next may come through.
func TestLeaseSurvivesAGap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		l, ctx := lease(t, func(context.Context) error {
			if n++; n%4 != 0 {
				return errors.New("loading")
			}
			return nil
		})
		time.Sleep(10 * time.Minute) //nolint:forbidigo // the bubble's clock
		if ctx.Err() != nil || l.Err() != nil {
			t.Errorf("ended: %v, %v", context.Cause(ctx), l.Err())
		}
	})
}

// The claim was granted long after it was sent: it may have ended already.
func TestLeaseThatIsOverAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ctx := storeutil.NewLease(t.Context(), storeutil.LeaseConfig{
			Duration: leaseTime, SentAt: time.Now().Add(-leaseTime), Renew: func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		})
		if err := l.Err(); !errors.Is(err, storeutil.ErrLeaseLost) {
			t.Errorf("error %v", err)
		}
		wantCause(t, ctx, storeutil.ErrLeaseLost)
		l.Release(nil)
	})
}

// What ends the handler does not end the claim: it is committed or rolled back after
// the handler has returned.
func TestLeaseOutlivesItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		parent, cancel := context.WithCancel(context.Background())
		var n atomic.Int64
		l, ctx := storeutil.NewLease(parent, storeutil.LeaseConfig{Duration: leaseTime, SentAt: time.Now(), Renew: func(context.Context) error { n.Add(1); return nil }})
		defer l.Release(nil)
		cancel()
		wantCause(t, ctx, context.Canceled)
		time.Sleep(time.Minute) //nolint:forbidigo // the bubble's clock
		if err := l.Err(); err != nil || n.Load() == 0 {
			t.Errorf("%d renewals, %v", n.Load(), err)
		}
	})
}

// The lease ends a context of WithCancel itself, and of any other one that is derived from it.
func TestLeaseEndsTheContextOfItsCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		config := storeutil.LeaseConfig{Duration: leaseTime, SentAt: time.Now(), Renew: func(context.Context) error { return storeutil.ErrLeaseLost }}
		own, cancel := storeutil.WithCancel(t.Context(), time.Time{})
		defer cancel(nil)
		l, ctx := storeutil.NewLease(own, config)
		defer l.Release(nil)
		if ctx != own {
			t.Error("it made a context of its own")
		}
		wider, stop := storeutil.WithCancel(t.Context(), time.Time{})
		defer stop(nil)
		type key struct{}
		l, ctx = storeutil.NewLease(context.WithValue(wider, key{}, "narrower"), config)
		defer l.Release(nil)
		<-own.Done()
		<-ctx.Done()
		if !errors.Is(context.Cause(own), storeutil.ErrLeaseLost) || !errors.Is(context.Cause(ctx), storeutil.ErrLeaseLost) {
			t.Errorf("they ended with %v and %v", context.Cause(own), context.Cause(ctx))
		}
		if wider.Err() != nil {
			t.Errorf("what is above the context of the claim ended with %v", context.Cause(wider))
		}
	})
}

// A step that ends before the lease does needs no context of its own.
func TestWhileForAShortStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _ := storeutil.NewLease(t.Context(), storeutil.LeaseConfig{Duration: leaseTime, SentAt: time.Now(), Renew: func(context.Context) error { return nil }})
		defer l.Release(nil)
		for _, tt := range []struct {
			lasts time.Duration
			own   bool
		}{{leaseTime / 2, false}, {leaseTime, true}} {
			step, cancel := context.WithTimeout(t.Context(), tt.lasts)
			ctx, done := l.While(step)
			if (ctx != step) != tt.own {
				t.Errorf("%v: a context of its own: %v", tt.lasts, ctx != step)
			}
			done()
			cancel()
		}
	})
}
