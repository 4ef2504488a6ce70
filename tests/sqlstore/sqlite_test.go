package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// openSQLite opens a file with these parameters: no WAL, in which readers are in nobody's
// way, unless they say so.
func openSQLite(t testing.TB, file, parameters string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", file+parameters)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// read begins to read, until end is called.
func read(t *testing.T, db *sql.DB) (end func()) {
	t.Helper()
	rows, err := db.QueryContext(context.Background(), "SELECT * FROM ledger")
	if err != nil || !rows.Next() {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(rows.Err(), rows.Close()); err != nil {
			t.Error(err)
		}
	}
}

// The store has a busy_timeout of its own for the claim. COMMIT, which waits for readers,
// has the user's.
func TestSQLiteCommitWaitsForReaders(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "test.db")
	db, reader := openSQLite(t, file, "?_pragma=busy_timeout(20000)"), openSQLite(t, file, "")
	ledger(t, db)
	exec(t, db, "INSERT INTO ledger VALUES ('a', 1), ('b', 1)")
	store := newStore(t, db, sqlstore.SQLite)
	c := mustClaim(t, store, key("1"))
	exec(t, txOf(t, c), "INSERT INTO ledger VALUES ('1', 1)")
	end, ended := read(t, reader), make(chan struct{})
	time.AfterFunc(700*time.Millisecond, func() {
		defer close(ended)
		end()
	})
	if err := c.Commit(t.Context(), nil); err != nil {
		t.Errorf("with a reader of 0.7 s and a busy_timeout of 20 s: %v", err)
	}
	<-ended
	if n := count(t, db, "SELECT count(*) FROM ledger"); n != 3 {
		t.Errorf("%d rows, want 3", n)
	}
}

// A reader that takes longer than busy_timeout: nothing is there, the run is no failure,
// the connection is as it was, and the next run succeeds.
func TestSQLiteCommitBusy(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "test.db")
	db, reader := openSQLite(t, file, "?_pragma=busy_timeout(50)"), openSQLite(t, file, "")
	db.SetMaxOpenConns(1)
	ledger(t, db)
	exec(t, db, "INSERT INTO ledger VALUES ('a', 1), ('b', 1)")
	store := newStore(t, db, sqlstore.SQLite)
	c := mustClaim(t, store, key("1"))
	exec(t, txOf(t, c), "INSERT INTO ledger VALUES ('1', 1)")
	end := read(t, reader)
	if err := c.Commit(t.Context(), nil); err == nil || errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("commit: %v, want that it can't now", err)
	}
	end()
	wantUntouched(t, db, store, "1")
	if err := mustClaim(t, store, key("1")).Commit(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Whatever becomes of a claim, the connection gets its busy_timeout back.
func TestSQLiteBusyTimeoutIsPutBack(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.db")
	db := openSQLite(t, file, "?_pragma=busy_timeout(4321)&_pragma=journal_mode(WAL)")
	db.SetMaxOpenConns(1)
	store := newStore(t, db, sqlstore.SQLite)
	want := func(after string) {
		t.Helper()
		if n := count(t, db, "PRAGMA busy_timeout"); n != 4321 {
			t.Errorf("%d ms after %s", n, after)
		}
	}
	c := mustClaim(t, store, key("1"))
	var n int
	if err := txOf(t, c).QueryRowContext(t.Context(), "PRAGMA busy_timeout").Scan(&n); err != nil || n != 4321 {
		t.Errorf("%d ms for the handler's statements, %v", n, err)
	}
	if err := c.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("a rollback")
	if err := mustClaim(t, store, key("1")).Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	want("a commit")
	if c, err := store.Claim(t.Context(), key("1"), options()); err != nil || c.State() != dedupe.StateDone {
		t.Fatalf("%v, %v", c, err)
	}
	want("a duplicate")
	other := newStore(t, openSQLite(t, file, "?_pragma=busy_timeout(1000)"), sqlstore.SQLite)
	held := mustClaim(t, other, key("2"))
	if c, err := store.Claim(t.Context(), key("3"), options()); err != nil || c.State() != dedupe.StateInProgress {
		t.Fatalf("%v, %v", c, err)
	}
	want("a claim that another was in the way of")
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Twenty instances migrate at once, on connections that wait for nobody.
func TestSQLiteMigrateAtOnceWithoutABusyTimeout(t *testing.T) {
	file := filepath.Join(t.TempDir(), "test.db")
	var wg sync.WaitGroup
	for range 20 {
		store, err := sqlstore.New(sqlstore.Config{DB: openSQLite(t, file, ""), Dialect: sqlstore.SQLite})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := store.Migrate(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
