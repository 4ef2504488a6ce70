package sqlstore

import (
	"context"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// running are the keys that this process is handling. A duplicate of one of them looks
// here and needs no connection: nine duplicates that wait in the database would starve
// a pool of ten.
type running struct {
	mu   sync.Mutex
	keys map[dedupe.Key]chan struct{}
}

// enter takes the key. If it is taken, it waits until it is free, for so long, and
// tells whether it got it.
func (r *running) enter(ctx context.Context, k dedupe.Key, until time.Time) (bool, error) {
	for {
		if ctx.Err() != nil {
			return false, context.Cause(ctx)
		}
		r.mu.Lock()
		taken, ok := r.keys[k]
		if !ok {
			if r.keys == nil {
				r.keys = make(map[dedupe.Key]chan struct{})
			}
			r.keys[k] = make(chan struct{})
			r.mu.Unlock()
			return true, nil
		}
		r.mu.Unlock()
		wait := time.Until(until)
		if wait <= 0 {
			return false, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-taken:
		case <-timer.C:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

func (r *running) leave(k dedupe.Key) {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.keys[k])
	delete(r.keys, k)
}
