package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Migrate makes the table and its index where they are missing, and adds the columns that
// a table of an older version lacks. Instances may call it all at once. For a new column it
// waits for the running handlers, at most 20 s in all, and lets others by meanwhile.
func (s *Store) Migrate(ctx context.Context) error {
	conn, err := s.cfg.DB.Conn(ctx)
	if err != nil {
		return fmt.Errorf("sqlstore: migrate: %w", s.Explain(err))
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
		number, _ := lockOf(idOf(dedupe.Key{Namespace: "migrate"})) // of all tables: one may have two names
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", number); err != nil {
			return err
		}
		// Making an index waits for all transactions on the table, those of running
		// handlers, also where it is there already; and everybody waits behind it.
		// Both are made in one transaction, so that the table tells.
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
		err := tx.QueryRowContext(ctx, s.text.groupColumn, schema, schema, table).Scan(&n)
		return n > 0, err
	}
	if there, err := has(); err != nil || there {
		return err
	}
	for _, text := range s.text.addGroup {
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

// groupColumn is what a record keeps of the group of its run: nothing where it is not
// known, no bytes where it is named as the namespace.
func groupColumn(namespace, group string) any {
	switch group {
	case "":
		return nil
	case namespace:
		return []byte{}
	}
	return []byte(group)
}

// Explain wraps an error of the database after which nothing works before an operator has
// done something about it: the result matches dedupe.ErrRefused and says what. Any other
// it returns as it is. It is for stores over another interface to PostgreSQL.
func (s *Store) Explain(err error) error {
	if errors.Is(err, dedupe.ErrRefused) {
		return err
	}
	var what string
	switch kindOf(err) {
	case noTable:
		what = fmt.Sprintf("table %s does not exist: call Store.Migrate once, or make it by schema_%s.sql", s.cfg.Table, s.cfg.Dialect)
	case noColumn:
		what = fmt.Sprintf("table %s is of an older version: call Store.Migrate once", s.cfg.Table)
	case noRight:
		what = fmt.Sprintf("the user lacks a right: GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO the user", s.cfg.Table)
	case noLogin:
		what = "the database does not let the user in: see the DSN"
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %w", dedupe.ErrRefused, what, err)
}
