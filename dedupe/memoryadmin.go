package dedupe

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"time"
)

// record is the public view; with the lock.
func (r *memRecord) record() Record {
	out := Record{Key: r.key, State: r.state, CommittedAt: r.committedAt, ExpiresAt: r.ends, Fingerprint: slices.Clone(r.digest), Group: r.group, Outputs: len(r.outputs)}
	for _, b := range r.outputs {
		out.OutputBytes += len(b)
	}
	return out
}

// Lookup implements [Admin].
func (m *Memory) Lookup(_ context.Context, k Key) (Record, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.records[k]
	if r == nil || !time.Now().Before(r.ends) {
		return Record{}, fmt.Errorf("%w of %s", ErrNotFound, k)
	}
	return r.record(), nil
}

// Forget implements [Admin].
func (m *Memory) Forget(_ context.Context, k Key) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.records[k]; r != nil && r.state == StateDone {
		m.remove(r)
	}
	return nil
}

// List implements [Admin].
func (m *Memory) List(ctx context.Context, f Filter) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		m.mu.Lock()
		now := time.Now()
		var all []Record
		for _, r := range m.records {
			if now.Before(r.ends) {
				if rec := r.record(); f.Match(rec) {
					all = append(all, rec)
				}
			}
		}
		m.mu.Unlock()
		for _, rec := range all {
			if ctx.Err() != nil {
				yield(Record{}, context.Cause(ctx))
				return
			}
			if !yield(rec, nil) {
				return
			}
		}
	}
}

// Purge implements [Admin].
func (m *Memory) Purge(_ context.Context, before time.Time, limit int) (int, error) {
	if limit < 0 {
		return 0, fmt.Errorf("purge: %w: limit %d is negative", ErrInvalid, limit)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	now := time.Now()
	for _, r := range slices.Clone(m.done) { // remove changes it
		if limit > 0 && n >= limit {
			break
		}
		if r.committedAt.Before(before) || !now.Before(r.ends) {
			m.remove(r)
			n++
		}
	}
	return n, nil
}
