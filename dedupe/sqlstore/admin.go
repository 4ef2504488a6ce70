package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

func (r row) public() dedupe.Record {
	out := dedupe.Record{Key: r.key, State: dedupe.StateDone, CommittedAt: r.at, ExpiresAt: r.ends, Fingerprint: r.digest, Group: r.group}
	if outputs, err := storeutil.SplitOutputs(r.outputs); err == nil {
		out.Outputs = len(outputs)
		for _, o := range outputs {
			out.OutputBytes += len(o)
		}
	}
	return out
}

// Lookup implements dedupe.Admin. A claim that is held is in a transaction that nobody
// else sees: it is not found.
func (s *Store) Lookup(ctx context.Context, k dedupe.Key) (dedupe.Record, error) {
	r, err := s.read(ctx, sqlrecord.ID(k))
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && r.expired:
		return dedupe.Record{}, fmt.Errorf("sqlstore: %w of %s", dedupe.ErrNotFound, k)
	case err != nil:
		return dedupe.Record{}, fmt.Errorf("sqlstore: lookup %s: %w", k, s.explain(err))
	}
	return r.public(), nil
}

// Forget implements dedupe.Admin.
func (s *Store) Forget(ctx context.Context, k dedupe.Key) error {
	id := sqlrecord.ID(k)
	r, err := s.read(ctx, id)
	if err == nil {
		err = repeat(ctx, func() error {
			_, err := s.drop(ctx, id, r.token)
			return err
		})
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("sqlstore: forget %s: %w", k, s.explain(err))
	}
	return nil
}

// List implements dedupe.Admin. It reads a few hundred records at a time, in the order
// of their IDs.
func (s *Store) List(ctx context.Context, f dedupe.Filter) iter.Seq2[dedupe.Record, error] {
	return func(yield func(dedupe.Record, error) bool) {
		last := []byte{}
		for {
			page, id, err := s.page(ctx, last)
			if err != nil {
				yield(dedupe.Record{}, fmt.Errorf("sqlstore: list: %w", s.explain(err)))
				return
			}
			for _, r := range page {
				if r.key.Namespace == "" { // the row of the store that purges
					continue
				}
				if rec := r.public(); !r.expired && f.Match(rec) && !yield(rec, nil) {
					return
				}
			}
			if len(page) == 0 {
				return
			}
			last = id
		}
	}
}

func (s *Store) page(ctx context.Context, after []byte) (page []row, last []byte, err error) {
	rows, err := s.cfg.DB.QueryContext(ctx, s.text.List, after)
	if err != nil {
		return nil, nil, err
	}
	defer rows.Close()
	for rows.Next() {
		r, err := scan(rows, &last)
		if err != nil {
			return nil, nil, err
		}
		page = append(page, r)
	}
	return page, last, rows.Err()
}

// Purge implements dedupe.Admin. What ran out goes in batches, and nothing else is
// removed for the zero time. A store that has claimed something does that by itself, see
// Config.PurgeEvery; Purge goes on beside it.
//
// Records that were committed before the time given are deleted one by one, each in a
// transaction of its own, since somebody may be reading them.
func (s *Store) Purge(ctx context.Context, before time.Time, limit int) (n int, err error) {
	if limit < 0 {
		return 0, fmt.Errorf("sqlstore: purge: %w: limit %d is negative", dedupe.ErrInvalid, limit)
	}
	left := func(size int) int {
		if limit > 0 {
			return min(size, limit-n)
		}
		return size
	}
	for more := true; more && err == nil && left(purgeBatch) > 0; {
		var removed int
		removed, more, err = s.removeBatch(ctx, left(purgeBatch))
		n += removed
	}
	for more := !before.IsZero(); more && err == nil && left(olderBatch) > 0; {
		var removed int
		removed, more, err = s.removeOlder(ctx, before, left(olderBatch))
		n += removed
	}
	if err != nil {
		err = fmt.Errorf("sqlstore: purge: %w", s.explain(err))
	}
	return n, err
}

// Purgeable is how many records Purge would remove now, for the same time. It counts through the
// table.
func (s *Store) Purgeable(ctx context.Context, before time.Time) (n int, err error) {
	var ms int64
	if !before.IsZero() {
		ms = before.UnixMilli()
	}
	if err = s.cfg.DB.QueryRowContext(ctx, s.text.Purgeable, ms).Scan(&n); err != nil {
		return 0, fmt.Errorf("sqlstore: purge: %w", s.explain(err))
	}
	return n, nil
}

// olderBatch is how many records are selected at a time for deletion one by one.
const olderBatch = 200

func (s *Store) removeOlder(ctx context.Context, before time.Time, limit int) (n int, more bool, err error) {
	rows, err := s.cfg.DB.QueryContext(ctx, s.text.Older, before.UnixMilli(), limit)
	if err != nil {
		return 0, false, err
	}
	type found struct{ id, token []byte }
	var batch []found
	for rows.Next() {
		var f found
		if err := rows.Scan(&f.id, &f.token); err != nil {
			return 0, false, errors.Join(err, rows.Close())
		}
		batch = append(batch, f)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		return 0, false, err
	}
	for _, f := range batch {
		var held bool
		err := repeat(ctx, func() (err error) {
			held, err = s.drop(ctx, f.id, f.token)
			return err
		})
		if err != nil {
			return n, false, err
		}
		if !held {
			n++
		}
	}
	return n, len(batch) == limit && n > 0, nil
}
