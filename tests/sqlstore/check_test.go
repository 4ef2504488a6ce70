package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

// unmigrated makes a store without its table.
func unmigrated(t testing.TB, db *sql.DB, dialect sqlstore.Dialect, changes ...func(*sqlstore.Config)) *sqlstore.Store {
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
	return s
}

// makeOld makes the schema that of before versions and groups.
func makeOld(t testing.TB, db *sql.DB) {
	t.Helper()
	exec(t, db, "DROP VIEW idempotent_done_readable")
	exec(t, db, "DROP TABLE idempotent_done_version")
	exec(t, db, "ALTER TABLE idempotent_done DROP COLUMN consumer_group")
}

// wantRefused wants an error that an operator can mend, in these words.
func wantRefused(t *testing.T, what string, err error, words string) {
	t.Helper()
	if !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(fmt.Sprint(err), words) {
		t.Errorf("%s: %v, want ErrRefused with %q", what, err, words)
	}
}

// A table that is missing, or of an older version, is no outage: every step says what to do.
func TestTableIsMissingOrOld(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, d *database) {
		db := d.open(t)
		s := unmigrated(t, db, d.dialect)
		wantAll := func(words string) {
			t.Helper()
			_, err := s.Check(t.Context())
			wantRefused(t, "check", err, words)
			_, err = s.Claim(t.Context(), key("1"), options())
			wantRefused(t, "claim", err, words)
			_, err = s.Lookup(t.Context(), key("1"))
			wantRefused(t, "lookup", err, words)
			wantRefused(t, "forget", s.Forget(t.Context(), key("1")), words)
		}
		wantAll("table idempotent_done does not exist: call Store.Migrate once")
		if err := s.Migrate(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := mustClaim(t, s, key("old")).Commit(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		makeOld(t, db)
		wantAll("table idempotent_done is of an older version: call Store.Migrate once")

		// All instances of the new version start at once.
		var wg sync.WaitGroup
		for range 10 {
			other := unmigrated(t, d.open(t), d.dialect)
			wg.Go(func() {
				if err := other.Migrate(t.Context()); err != nil {
					t.Errorf("migrate: %v", err)
				}
			})
		}
		wg.Wait()
		if r, err := s.Lookup(t.Context(), key("old")); err != nil || r.Group != "" {
			t.Errorf("a record of before: %+v, %v", r, err)
		}
		if warnings, err := s.Check(t.Context()); err != nil || len(warnings) > 0 {
			t.Errorf("check: %q, %v", warnings, err)
		}
		if err := mustClaim(t, s, key("new")).Commit(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

// A table of an older version gets its column while handlers run: after them, and nobody
// waits long behind it.
func TestMigrateOfAnOldTableWaitsForHandlers(t *testing.T) {
	t.Parallel()
	for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			db := d.open(t)
			s := newStore(t, db, kind)
			makeOld(t, db)
			handler, err := db.BeginTx(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = handler.Rollback() }()
			exec(t, handler, "DELETE FROM idempotent_done WHERE expires_at = 1")
			migrated := make(chan error, 1)
			go func() { migrated <- s.Migrate(context.Background()) }()
			for range 20 { // others go on
				ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
				_, err := db.ExecContext(ctx, "DELETE FROM idempotent_done WHERE expires_at = 2")
				cancel()
				if err != nil {
					t.Fatal(err)
				}
				<-time.After(50 * time.Millisecond)
			}
			if err := handler.Rollback(); err != nil {
				t.Fatal(err)
			}
			if err := <-migrated; err != nil {
				t.Error(err)
			}
		})
	}
}

// A right that is missing is named, by Check and by the step that needs it.
func TestRightIsMissing(t *testing.T) {
	d := testdb.Postgres(t)
	db := d.Open(t)
	newStore(t, db, sqlstore.Postgres)
	for i, granted := range []string{"SELECT, INSERT, UPDATE", "SELECT, DELETE", ""} {
		role := fmt.Sprintf("app_%d_%d", i, time.Now().UnixNano())
		exec(t, db, "CREATE ROLE "+role+" LOGIN")
		if granted != "" {
			exec(t, db, "GRANT "+granted+" ON idempotent_done TO "+role)
		}
		as, err := sql.Open("pgx", strings.Replace(d.DSN, "postgres@", role+"@", 1))
		if err != nil {
			t.Fatal(err)
		}
		defer as.Close()
		s := unmigrated(t, as, sqlstore.Postgres)
		_, err = s.Check(t.Context())
		wantRefused(t, granted, err, []string{"may not DELETE:", "may not INSERT, UPDATE:", "may not SELECT, INSERT, UPDATE, DELETE:"}[i])
		if i > 0 {
			_, err = s.Claim(t.Context(), key("1"), options())
			wantRefused(t, "claim", err, "GRANT SELECT, INSERT, UPDATE, DELETE ON idempotent_done")
		}
		exec(t, db, "DROP OWNED BY "+role+"; DROP ROLE "+role)
	}
}

// A pool that is no larger than MaxInFlight, and handlers that ask the database outside of
// their transactions: they don't wait for each other, and Check has warned.
func TestPoolIsNoLargerThanMaxInFlight(t *testing.T) {
	t.Parallel()
	for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t, kind).open(t)
			const size = 3
			db.SetMaxOpenConns(size)
			s := newStore(t, db, kind, func(c *sqlstore.Config) { c.MaxInFlight = size })
			if warnings, err := s.Check(t.Context()); err != nil || len(warnings) != 1 || !strings.Contains(warnings[0], "Make the pool larger than MaxInFlight") {
				t.Errorf("check: %q, %v", warnings, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			var running atomic.Int64
			var wg sync.WaitGroup
			for n := range size {
				wg.Go(func() {
					c, err := s.Claim(ctx, key(fmt.Sprint(n)), options())
					if err != nil {
						t.Errorf("claim: %v", err)
						return
					}
					running.Add(1)
					for end := time.Now().Add(time.Second); running.Load() < size && time.Now().Before(end); {
						<-time.After(10 * time.Millisecond)
					}
					if err := db.PingContext(ctx); err != nil {
						t.Errorf("a handler's own connection: %v", err)
					}
					if err := c.Commit(ctx, nil); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			// What holds a message up is said.
			first, second := mustClaim(t, s, key("a")), mustClaim(t, s, key("b"))
			short, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
			defer stop()
			if _, err := s.Claim(short, key("c"), options()); err == nil || !strings.Contains(err.Error(), "pool of 3") {
				t.Errorf("claim: %v, want the reason", err)
			}
			for _, c := range []dedupe.Claim{first, second} {
				if err := c.Rollback(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A server that does not answer: Check keeps its deadline.
func TestCheckOnASilentLink(t *testing.T) {
	t.Parallel()
	for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			db, _, g := gated(t, kind)
			s := newStore(t, db, kind)
			g.Shut()
			ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
			defer cancel()
			begin := time.Now()
			if _, err := s.Check(ctx); err == nil {
				t.Error("no error")
			}
			if took := time.Since(begin); took > 10*time.Second {
				t.Errorf("took %v", took)
			}
			g.Open()
		})
	}
}

// Answers that mean "not now", to the record's own statement and to COMMIT, are no failure
// of the handler, and no refusal.
func TestNotNowAtTheRecord(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01", "53300", "53100", "57P03", "57P01", "25006"} {
		for _, at := range []string{"TRIGGER not_now BEFORE UPDATE ON idempotent_done", "CONSTRAINT TRIGGER not_now AFTER UPDATE ON idempotent_done DEFERRABLE INITIALLY DEFERRED"} {
			db := newDatabase(t, sqlstore.Postgres).open(t)
			store := newStore(t, db, sqlstore.Postgres)
			exec(t, db, "CREATE FUNCTION not_now() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '"+code+"'; END $$")
			exec(t, db, "CREATE "+at+" FOR EACH ROW EXECUTE FUNCTION not_now()")
			err := mustClaim(t, store, key("1")).Commit(t.Context(), nil)
			if err == nil || errors.Is(err, dedupe.ErrAborted) || errors.Is(err, dedupe.ErrRefused) {
				t.Errorf("%s at %s: %v", code, at, err)
			}
		}
	}
}

// A record that was replaced between the look and the deletion is another's: it stays.
func TestForgetOfARecordThatWasReplaced(t *testing.T) {
	db := newDatabase(t, sqlstore.Postgres).open(t)
	store := newStore(t, db, sqlstore.Postgres)
	if err := mustClaim(t, store, key("1")).Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	other, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Rollback() }()
	exec(t, other, "UPDATE idempotent_done SET token = 'another'")
	forgotten := make(chan error, 1)
	go func() { forgotten <- store.Forget(context.Background(), key("1")) }()
	eventually(t, func() bool {
		return count(t, db, "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE 'DELETE%' AND datname = current_database()") == 1
	})
	if err := other.Commit(); err != nil {
		t.Fatal(err)
	}
	if err := <-forgotten; err != nil {
		t.Error(err)
	}
	if _, err := store.Lookup(t.Context(), key("1")); err != nil {
		t.Errorf("the other's record: %v", err)
	}
}
