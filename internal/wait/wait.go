// Package wait is the one way in which this module pauses.
package wait

import (
	"context"
	"time"
)

// For waits for d, and returns true when it has passed. It returns false as soon as ctx
// ends or stop is closed, also when d is 0 or less; a nil stop never is.
func For(ctx context.Context, stop <-chan struct{}, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	default:
	}
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-stop:
		return false
	}
}
