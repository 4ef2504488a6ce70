package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

// openMariaDB opens one with parameters for its DSN.
func openMariaDB(t testing.TB, d *testdb.Database, parameters string) *sql.DB {
	t.Helper()
	db, err := sql.Open("mysql", d.DSN+parameters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// When clocks are put back, an hour comes twice; the store's clock goes on.
func TestClockInAZoneWithDaylightSaving(t *testing.T) {
	d := testdb.MariaDB(t)
	db := openMariaDB(t, d, "")
	const zone, second = 777, int64(1792890000) // 2026-10-25 01:00 UTC
	for _, text := range []string{
		"INSERT INTO mysql.time_zone (Time_zone_id, Use_leap_seconds) VALUES (%[1]d, 'N')",
		"INSERT INTO mysql.time_zone_name (Name, Time_zone_id) VALUES ('Test/Summer', %[1]d)",
		"INSERT INTO mysql.time_zone_transition_type VALUES (%[1]d, 0, 3600, 0, 'CET'), (%[1]d, 1, 7200, 1, 'CEST')",
		"INSERT INTO mysql.time_zone_transition VALUES (%[1]d, 1000000000, 1), (%[1]d, %[2]d, 0)",
	} {
		exec(t, db, fmt.Sprintf(text, zone, second))
	}
	newStore(t, db, sqlstore.MySQL)
	for _, at := range []int64{second - 1800, second + 1800} { // half past two, twice
		db := openMariaDB(t, d, fmt.Sprintf("?time_zone='Test%%2FSummer'&timestamp=%d", at))
		if n := count(t, db, fmt.Sprintf("SELECT UNIX_TIMESTAMP(FROM_UNIXTIME(%d))", second-1800)); int64(n) == second-1800 {
			if m := count(t, db, fmt.Sprintf("SELECT UNIX_TIMESTAMP(FROM_UNIXTIME(%d))", second+1800)); int64(m) == second+1800 {
				t.Fatal("the session's zone has no daylight saving")
			}
		}
		store := unmigrated(t, db, sqlstore.MySQL)
		k := key(fmt.Sprint(at))
		if err := mustClaim(t, store, k).Commit(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if r, err := store.Lookup(t.Context(), k); err != nil || r.CommittedAt.Unix() != at {
			t.Errorf("at %v the record says %v, %v", time.Unix(at, 0).UTC(), r.CommittedAt.UTC(), err)
		}
	}
}

// Under autocommit=0 nothing that a plain statement does would be committed, and what it
// reads grows old.
func TestAutocommitOffIsRefused(t *testing.T) {
	d := testdb.MariaDB(t)
	newStore(t, openMariaDB(t, d, ""), sqlstore.MySQL)
	store := unmigrated(t, openMariaDB(t, d, "?autocommit=0"), sqlstore.MySQL)
	if err := store.Migrate(t.Context()); !errors.Is(err, dedupe.ErrInvalid) {
		t.Errorf("migrate: %v, want ErrInvalid", err)
	}
	if _, err := store.Claim(t.Context(), key("1"), options()); !errors.Is(err, dedupe.ErrInvalid) {
		t.Errorf("claim: %v, want ErrInvalid", err)
	}
}

// The server gives up a claim's transaction, as it may under REPEATABLE READ and above:
// another one gets it.
func TestClaimThatTheServerGaveUp(t *testing.T) {
	for _, code := range []string{"40001", "40P01"} {
		db := newDatabase(t, sqlstore.Postgres).open(t)
		store := newStore(t, db, sqlstore.Postgres)
		exec(t, db, "CREATE SEQUENCE tries") // not rolled back
		exec(t, db, "CREATE FUNCTION give_up() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "+
			"IF nextval('tries') < 4 THEN RAISE EXCEPTION 'again' USING ERRCODE = '"+code+"'; END IF; RETURN NEW; END $$")
		exec(t, db, "CREATE TRIGGER give_up BEFORE INSERT ON idempotent_done FOR EACH ROW EXECUTE FUNCTION give_up()")
		if err := mustClaim(t, store, key("1")).Commit(t.Context(), nil); err != nil {
			t.Errorf("%s: %v", code, err)
		}
		if n := db.Stats().InUse; n != 0 {
			t.Errorf("%s: %d connections are not given back", code, n)
		}
	}
}

// PostgreSQL's IF NOT EXISTS lets two that make a table at the same time collide: so they
// come one at a time.
func TestMigrateOneAtATime(t *testing.T) {
	d := newDatabase(t, sqlstore.Postgres)
	db := d.open(t)
	hold, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Rollback() }()
	// The first one is held up while it makes the table.
	exec(t, hold, "CREATE TABLE idempotent_done (id int)")
	const instances = 5
	migrated := make(chan error, instances)
	for range instances {
		store, err := sqlstore.New(sqlstore.Config{DB: d.open(t), Dialect: sqlstore.Postgres})
		if err != nil {
			t.Fatal(err)
		}
		go func() { migrated <- store.Migrate(context.Background()) }()
	}
	eventually(t, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted") == instances-1
	})
	if err := hold.Rollback(); err != nil {
		t.Fatal(err)
	}
	for range instances {
		if err := <-migrated; err != nil {
			t.Error(err)
		}
	}
}

// A handler that works in another schema, with a table that is named with its own.
func TestHandlerChangesSearchPath(t *testing.T) {
	db := newDatabase(t, sqlstore.Postgres).open(t)
	exec(t, db, "CREATE SCHEMA tenant")
	exec(t, db, "CREATE TABLE tenant.ledger (amount INT)")
	store := newStore(t, db, sqlstore.Postgres, func(c *sqlstore.Config) { c.Table = "public." + sqlstore.DefaultTable })
	c := mustClaim(t, store, key("1"))
	exec(t, txOf(t, c), "SET LOCAL search_path = tenant")
	exec(t, txOf(t, c), "INSERT INTO ledger VALUES (1)")
	if err := c.Commit(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// What the handler sees of a failed statement that it swallows, where the database goes
// on: the record is made without that statement's effect. So it must not be swallowed.
func TestSwallowedErrorThatIsNotFound(t *testing.T) {
	for _, kind := range []sqlstore.Dialect{sqlstore.SQLite, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			db := newDatabase(t, kind).open(t)
			exec(t, db, "CREATE TABLE one (id INT PRIMARY KEY)")
			exec(t, db, "INSERT INTO one VALUES (1)")
			c := mustClaim(t, newStore(t, db, kind), key("1"))
			if _, err := txOf(t, c).ExecContext(t.Context(), "INSERT INTO one VALUES (1)"); err == nil {
				t.Fatal("no error to swallow")
			}
			if err := c.Commit(t.Context(), nil); err != nil {
				t.Errorf("%v: the documentation says otherwise", err)
			}
		})
	}
}

// Stores of two tables of a database, and of two databases of a server, don't keep each
// other from a key. One table under two names is one.
func TestStoresBesideEachOther(t *testing.T) {
	for _, tt := range []struct {
		dialect sqlstore.Dialect
		fresh   func(testing.TB) *testdb.Database
		schema  string // says the name of what the default is in
	}{{sqlstore.Postgres, testdb.Postgres, "SELECT current_schema()"}, {sqlstore.MySQL, testdb.MariaDB, "SELECT database()"}} {
		t.Run(string(tt.dialect), func(t *testing.T) {
			one, two := tt.fresh(t).Open(t), tt.fresh(t).Open(t)
			open := func(db *sql.DB, table string) *sqlstore.Store {
				s, err := sqlstore.New(sqlstore.Config{DB: db, Table: table, Dialect: tt.dialect})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = s.Close() })
				return s
			}
			for _, s := range []*sqlstore.Store{open(one, ""), open(one, "other_events"), open(two, "")} {
				if err := s.Migrate(t.Context()); err != nil {
					t.Fatal(err)
				}
				held := mustClaim(t, s, key("a")) // the next one must get it meanwhile
				defer func() { _ = held.Rollback(context.WithoutCancel(t.Context())) }()
			}
			var schema string
			if err := one.QueryRowContext(t.Context(), tt.schema).Scan(&schema); err != nil {
				t.Fatal(err)
			}
			o := options()
			o.Wait = 0
			begin := time.Now()
			c, err := open(one, schema+"."+sqlstore.DefaultTable).Claim(t.Context(), key("a"), o)
			if err != nil || c.State() != dedupe.StateInProgress || time.Since(begin) > 10*time.Second {
				t.Errorf("the same table under its full name: %v, %v after %v", c, err, time.Since(begin))
			}
		})
	}
}
