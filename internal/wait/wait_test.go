package wait_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/onceward/watermill-idempotent/internal/wait"
)

func TestFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ended, stopped, noStop bool
		d                      time.Duration
		want                   bool
	}{
		"time passes":         {d: time.Minute, want: true},
		"no stop":             {d: time.Minute, noStop: true, want: true},
		"nothing to wait for": {want: true},
		"context ended":       {ended: true, noStop: true, d: time.Minute},
		"context ended, no d": {ended: true},
		"stopped":             {stopped: true, d: time.Minute},
		"stopped, negative d": {stopped: true, d: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(context.Background())
				defer end()
				stop := make(chan struct{})
				if c.ended {
					end()
				}
				if c.stopped {
					close(stop)
				}
				if c.noStop {
					stop = nil
				}
				begun := time.Now()
				if got := wait.For(ctx, stop, c.d); got != c.want {
					t.Errorf("got %v", got)
				}
				if took := time.Since(begun); c.want && took != c.d || !c.want && took != 0 {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestForEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		begun := time.Now()
		if wait.For(ctx, nil, time.Hour) || time.Since(begun) != time.Second {
			t.Errorf("ended after %v", time.Since(begun))
		}
	})
}
