// Package sqlstore_test checks the transactional store on SQLite, PostgreSQL and MariaDB.
package sqlstore_test

import (
	"context"
	"database/sql"
	"path/filepath"
	"testing"

	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	_ "modernc.org/sqlite"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/dedupe/storetest"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

// database is one that stores, as of several processes, share.
type database struct {
	dialect sqlstore.Dialect
	open    func(t testing.TB) *sql.DB
}

var kinds = []sqlstore.Dialect{sqlstore.SQLite, sqlstore.Postgres, sqlstore.MySQL}

// newDatabase makes an empty one.
func newDatabase(t testing.TB, kind sqlstore.Dialect) *database {
	t.Helper()
	d := &database{dialect: kind}
	switch kind {
	case sqlstore.Postgres:
		d.open = testdb.Postgres(t).Open
	case sqlstore.MySQL:
		d.open = testdb.MariaDB(t).Open
	case sqlstore.SQLite:
		file := filepath.Join(t.TempDir(), "test.db")
		d.open = func(t testing.TB) *sql.DB {
			t.Helper()
			db, err := sql.Open("sqlite", file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			return db
		}
	}
	return d
}

func each(t *testing.T, run func(t *testing.T, d *database)) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) { run(t, newDatabase(t, kind)) })
	}
}

func newStore(t testing.TB, db *sql.DB, dialect sqlstore.Dialect, changes ...func(*sqlstore.Config)) *sqlstore.Store {
	t.Helper()
	// Tests that count connections and cut links are about claims.
	cfg := sqlstore.Config{DB: db, Dialect: dialect, PurgeEvery: sqlstore.NoPurge}
	for _, c := range changes {
		c(&cfg)
	}
	s, err := sqlstore.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	if err := s.Migrate(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		t.Parallel()
		storetest.Run(t, storetest.Config{
			Open:     func(t testing.TB) dedupe.Store { return newStore(t, d.open(t), d.dialect) },
			Features: storetest.Features{Transactional: true, SingleWriter: d.dialect == sqlstore.SQLite},
		})
	})
}

// Under REPEATABLE READ an insert of what was committed since fails, and under
// SERIALIZABLE more.
func TestConformanceUnderOtherIsolations(t *testing.T) {
	t.Parallel()
	for _, level := range []sql.IsolationLevel{sql.LevelRepeatableRead, sql.LevelSerializable} {
		for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
			t.Run(string(kind)+" "+level.String(), func(t *testing.T) {
				t.Parallel()
				d := newDatabase(t, kind)
				storetest.Run(t, storetest.Config{
					Open: func(t testing.TB) dedupe.Store {
						return newStore(t, d.open(t), kind, func(c *sqlstore.Config) { c.Isolation = level })
					},
					Features: storetest.Features{Transactional: true},
				})
			})
		}
	}
}
