package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// Migrate brings the schema to the newest version, by the files of [Migrations]: it makes
// the table, its index, and what helps to look at it, where they are missing. Instances may
// call it all at once, also of different versions of this package: what is newer than it
// knows is left alone. For a new column it waits for the running handlers, at most 20 s in
// all, and lets others by meanwhile. The user must be allowed to change the schema, unless
// there is nothing to do.
func (s *Store) Migrate(ctx context.Context) error { return s.MigrateTo(ctx, SchemaVersion) }

// MigrateTo is Migrate up to a version, from 1 to [SchemaVersion]. It never goes back.
func (s *Store) MigrateTo(ctx context.Context, version int) error {
	if version < 1 || version > SchemaVersion {
		return fmt.Errorf("sqlstore: migrate: %w: there is no version %d of the schema; the newest is %d", dedupe.ErrInvalid, version, SchemaVersion)
	}
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
	err = repeat(ctx, func() error { return s.migrate(ctx, conn, version) })
	if sqlrecord.KindOf(err) == sqlrecord.NoRight {
		err = fmt.Errorf("%w: the user may not change the schema: migrate as one who may, or apply the files of sqlstore.Migrations: %w", dedupe.ErrRefused, err)
	}
	if err != nil {
		return fmt.Errorf("sqlstore: migrate: %w", err)
	}
	return nil
}

// SchemaVersion is the version that the schema has in the database: 0 where there is no
// table. A table that was made before versions were recorded has version 1.
func (s *Store) SchemaVersion(ctx context.Context) (int, error) {
	tx, err := s.cfg.DB.BeginTx(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("sqlstore: schema version: %w", s.explain(err))
	}
	defer func() { _ = tx.Rollback() }() // it has only read
	version, err := s.version(ctx, tx)
	if err != nil {
		return 0, fmt.Errorf("sqlstore: schema version: %w", s.explain(err))
	}
	return version, nil
}

// version reads the version of the schema.
func (s *Store) version(ctx context.Context, tx *sql.Tx) (int, error) {
	var version sql.NullInt64
	there, err := s.exists(ctx, tx, s.cfg.Table+"_version")
	if err == nil && there {
		err = tx.QueryRowContext(ctx, "SELECT max(version) FROM "+s.cfg.Table+"_version").Scan(&version)
	}
	if err != nil || version.Int64 > 0 {
		return int(version.Int64), err
	}
	if there, err = s.exists(ctx, tx, s.cfg.Table); err != nil || !there {
		return 0, err
	}
	return 1, nil
}

// exists looks for a table, without an error, which would end PostgreSQL's transaction.
func (s *Store) exists(ctx context.Context, tx *sql.Tx, table string) (there bool, err error) {
	if s.cfg.Dialect == Postgres {
		err = tx.QueryRowContext(ctx, "SELECT to_regclass($1) IS NOT NULL", table).Scan(&there)
		return there, err
	}
	var n int
	switch err = tx.QueryRowContext(ctx, "SELECT count(*) FROM "+table+" WHERE 1 = 0").Scan(&n); sqlrecord.KindOf(err) {
	case sqlrecord.NoTable:
		return false, nil
	case sqlrecord.NoRight:
		return true, nil
	}
	return err == nil, err
}

// migrate runs under a lock where IF NOT EXISTS alone lets two instances collide.
func (s *Store) migrate(ctx context.Context, conn *sql.Conn, version int) error {
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // nothing after a commit
	if s.cfg.Dialect == Postgres {
		number, _ := sqlrecord.Lock(sqlrecord.ID(dedupe.Key{Namespace: "migrate"})) // of all tables: one may have two names
		if _, err := tx.ExecContext(ctx, "SELECT pg_advisory_xact_lock($1)", number); err != nil {
			return err
		}
	}
	files, err := files(s.cfg.Dialect, s.cfg.Table)
	if err != nil {
		return err
	}
	// A file that was applied is not applied again, though it could be: making an index
	// waits for all transactions on the table, those of running handlers, also where it is
	// there already; and everybody waits behind it.
	from, err := s.version(ctx, tx)
	if err != nil {
		return err
	}
	if from > 0 { // the table may be one of before version 1
		if err := s.addGroup(ctx, tx); err != nil {
			return err
		}
	}
	for i := from; i < version; i++ {
		for _, text := range files[i].statements() {
			if _, err := tx.ExecContext(ctx, text); err != nil {
				return err
			}
		}
	}
	return tx.Commit()
}

// addGroup adds a column that tables of before version 1 don't have.
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
