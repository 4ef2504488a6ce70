package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// running are the keys that this process is handling. A duplicate of one of them looks
// here and needs no connection: nine duplicates that wait in the database would starve
// a pool of ten.
type running struct {
	mu   sync.Mutex
	keys map[dedupe.Key]chan struct{}
}

// enter takes the key. If it is taken, it waits until it is free, for so long, and
// reports whether it got it.
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

// room keeps one connection of a pool that is bounded free of claims. Each running handler
// holds one, and may ask for another, outside of its transaction: when all are held, all
// handlers wait for each other, for ever and without a word.
type room struct {
	mu     sync.Mutex
	held   int
	change chan struct{} // closes when one is given back; nil while nobody waits
}

// enter waits for a place until ctx ends.
func (r *room) enter(ctx context.Context, db *sql.DB) error {
	for {
		size := db.Stats().MaxOpenConnections
		r.mu.Lock()
		if size <= 0 || r.held < max(size-1, 1) {
			r.held++
			r.mu.Unlock()
			return nil
		}
		if r.change == nil {
			r.change = make(chan struct{})
		}
		change := r.change
		r.mu.Unlock()
		select {
		case <-change:
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), sqlrecord.PoolTaken(size))
		}
	}
}

func (r *room) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held--
	if r.change != nil {
		close(r.change)
		r.change = nil
	}
}
