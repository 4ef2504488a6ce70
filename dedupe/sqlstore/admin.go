package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Migrate makes the table and its index where they are missing. Instances may call it
// all at once.
func (s *Store) Migrate(ctx context.Context) error {
	conn, err := s.cfg.DB.Conn(ctx)
	if err != nil {
		return fmt.Errorf("sqlstore: migrate: %w", err)
	}
	defer conn.Close()
	if s.cfg.Dialect == MySQL {
		var autocommit bool
		if err := conn.QueryRowContext(ctx, "SELECT @@autocommit").Scan(&autocommit); err != nil {
			return fmt.Errorf("sqlstore: migrate: %w", err)
		}
		if !autocommit {
			return fmt.Errorf("sqlstore: migrate: %w", errNoAutocommit)
		}
	}
	if err := repeat(ctx, func() error { return s.migrate(ctx, conn) }); err != nil {
		return fmt.Errorf("sqlstore: migrate: %w", err)
	}
	return nil
}

// migrate runs under a lock where IF NOT EXISTS alone lets two instances collide.
func (s *Store) migrate(ctx context.Context, conn *sql.Conn) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	if s.cfg.Dialect == Postgres {
		number, _ := lockOf(idOf(dedupe.Key{Namespace: "migrate"})) // of all tables: one may have two names
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", number); err != nil {
			return err
		}
		// Making an index waits for all transactions on the table, those of running
		// handlers, also where it is there already; and everybody waits behind it.
		// Both are made in one transaction, so that the table tells.
		var there bool
		if err := tx.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", s.cfg.Table).Scan(&there); err != nil || there {
			return err
		}
	}
	for _, text := range s.cfg.migration() {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	return tx.Commit()
}

func (r row) public() dedupe.Record {
	out := dedupe.Record{Key: r.key, State: dedupe.Done, CommittedAt: r.at, ExpiresAt: r.ends, Fingerprint: r.digest}
	if outputs, err := dedupe.SplitOutputs(r.outputs); err == nil {
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
	r, err := s.read(ctx, idOf(k))
	switch {
	case errors.Is(err, sql.ErrNoRows) || err == nil && r.expired:
		return dedupe.Record{}, fmt.Errorf("sqlstore: %w of %s", dedupe.ErrNotFound, k)
	case err != nil:
		return dedupe.Record{}, fmt.Errorf("sqlstore: lookup %s: %w", k, err)
	}
	return r.public(), nil
}

// Forget implements dedupe.Admin.
func (s *Store) Forget(ctx context.Context, k dedupe.Key) error {
	id := idOf(k)
	r, err := s.read(ctx, id)
	if err == nil {
		err = repeat(ctx, func() error {
			_, err := s.drop(ctx, id, r.token)
			return err
		})
	}
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("sqlstore: forget %s: %w", k, err)
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
				yield(dedupe.Record{}, fmt.Errorf("sqlstore: list: %w", err))
				return
			}
			for _, r := range page {
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
	rows, err := s.cfg.DB.QueryContext(ctx, s.text.list, after)
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

// purgeBatch is how many records one statement selects for deletion. Each is deleted
// by its primary key, in a transaction of its own: deleting a range takes locks on gaps
// that block claims.
const purgeBatch = 200

// Purge implements dedupe.Admin. Call it now and then: nothing else removes what ran
// out. The zero time removes that and nothing else.
func (s *Store) Purge(ctx context.Context, before time.Time, limit int) (n int, err error) {
	select1 := func(text string, args ...any) (more bool, err error) {
		size := purgeBatch
		if limit > 0 {
			size = min(size, limit-n)
		}
		if size <= 0 {
			return false, nil
		}
		rows, err := s.cfg.DB.QueryContext(ctx, text, append(args, size)...)
		if err != nil {
			return false, err
		}
		type found struct{ id, token []byte }
		var batch []found
		gone := 0
		for rows.Next() {
			var f found
			if err := rows.Scan(&f.id, &f.token); err != nil {
				return false, errors.Join(err, rows.Close())
			}
			batch = append(batch, f)
		}
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			return false, err
		}
		for _, f := range batch {
			var held bool
			err := repeat(ctx, func() (err error) {
				held, err = s.drop(ctx, f.id, f.token)
				return err
			})
			if err != nil {
				return false, err
			}
			if !held {
				n++
				gone++
			}
		}
		return len(batch) == size && gone > 0, nil
	}
	for more := true; more && err == nil; {
		more, err = select1(s.text.expired)
	}
	for more := !before.IsZero(); more && err == nil; {
		more, err = select1(s.text.older, before.UnixMilli())
	}
	if err != nil {
		err = fmt.Errorf("sqlstore: purge: %w", err)
	}
	return n, err
}
