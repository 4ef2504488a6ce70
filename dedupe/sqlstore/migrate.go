package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// Migrate makes the table and its index where they are missing, and adds the columns that
// a table of an older version lacks. Instances may call it all at once. For a new column it
// waits for the running handlers, at most 20 s in all, and lets others by meanwhile.
func (s *Store) Migrate(ctx context.Context) error {
	conn, err := s.cfg.DB.Conn(ctx)
	if err != nil {
		return fmt.Errorf("sqlstore: migrate: %w", s.explain(err))
	}
	defer conn.Close()
	if s.cfg.Dialect == MySQL {
		var autocommit bool
		var wait int
		if err := conn.QueryRowContext(ctx, "SELECT @@autocommit, @@lock_wait_timeout").Scan(&autocommit, &wait); err != nil {
			return fmt.Errorf("sqlstore: migrate: %w", err)
		}
		if !autocommit {
			return fmt.Errorf("sqlstore: migrate: %w", errNoAutocommit)
		}
		defer func() {
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), fmt.Sprintf("SET lock_wait_timeout = %d", wait))
		}()
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
	there := false
	if s.cfg.Dialect == Postgres {
		number, _ := sqlrecord.Lock(sqlrecord.ID(dedupe.Key{Namespace: "migrate"})) // of all tables: one may have two names
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", number); err != nil {
			return err
		}
		// Making an index waits for all transactions on the table, those of running
		// handlers, also where it is there already; and everybody waits behind it.
		// Both are made in one transaction, so the table says it all.
		if err := tx.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", s.cfg.Table).Scan(&there); err != nil {
			return err
		}
	}
	var texts []string
	if !there {
		texts = s.cfg.migration()
	}
	for _, text := range texts {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			return err
		}
	}
	if err := s.addGroup(ctx, tx); err != nil {
		return err
	}
	return tx.Commit()
}

// addGroup adds a column that is missing.
func (s *Store) addGroup(ctx context.Context, tx *sql.Tx) error {
	has := func() (bool, error) {
		schema, table, qualified := strings.Cut(s.cfg.Table, ".")
		if !qualified {
			schema, table = "", s.cfg.Table
		}
		var n int
		err := tx.QueryRowContext(ctx, s.text.GroupColumn, schema, schema, table).Scan(&n)
		return n > 0, err
	}
	if there, err := has(); err != nil || there {
		return err
	}
	for _, text := range s.text.AddGroup {
		if _, err := tx.ExecContext(ctx, text); err != nil {
			// In MySQL and MariaDB another instance may have added it just now.
			if there, look := has(); look == nil && there {
				return nil
			}
			return err
		}
	}
	return nil
}

// explain wraps an error of the database after which nothing works before an operator has
// done something about it: the result matches dedupe.ErrRefused and says what. Any other
// it returns as it is.
func (s *Store) explain(err error) error {
	return sqlrecord.Explain(string(s.cfg.Dialect), s.cfg.Table, err)
}
