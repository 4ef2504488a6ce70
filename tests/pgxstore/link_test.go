package pgxstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/pgxstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/sqlstore/gate"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

func options() dedupe.ClaimOptions {
	return dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Minute, Retention: time.Hour}
}

func key(event string) dedupe.Key { return dedupe.Key{Namespace: "ledger", Event: event} }

func mustClaim(t testing.TB, s dedupe.Store, event string) (dedupe.Claim, pgx.Tx) {
	t.Helper()
	c, err := s.Claim(context.Background(), key(event), options())
	if err != nil {
		t.Fatal(err)
	}
	tx, ok := pgxstore.TxFrom(c.Context())
	if c.State() != dedupe.StateClaimed || !ok {
		t.Fatalf("state %v, a transaction on the context: %v", c.State(), ok)
	}
	t.Cleanup(func() { _ = c.Rollback(context.Background()) })
	return c, tx
}

func exec(t testing.TB, db interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}, text string) {
	t.Helper()
	if _, err := db.Exec(context.Background(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func wantUntouched(t *testing.T, pool *pgxpool.Pool, store *pgxstore.Store, event string) {
	t.Helper()
	var n int
	if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM ledger").Scan(&n); err != nil || n != 0 {
		t.Errorf("%d effects without a record, %v", n, err)
	}
	if _, err := store.Lookup(t.Context(), key(event)); !errors.Is(err, dedupe.ErrNotFound) {
		t.Errorf("lookup: %v, want ErrNotFound", err)
	}
}

// killOthers ends all sessions of the database but this one, as a restart would.
func killOthers(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	exec(t, pool, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
}

// A session that was lost during the run, by a restart of the database, is no failure
// of the handler, whether or not the handler has noticed.
func TestSessionLostDuringTheRun(t *testing.T) {
	t.Parallel()
	d := testdb.Postgres(t)
	admin := openPool(t, d)
	exec(t, admin, "CREATE TABLE ledger (amount INTEGER NOT NULL)")
	store := newStore(t, openPool(t, d), "")
	c, tx := mustClaim(t, store, "1")
	exec(t, tx, "INSERT INTO ledger VALUES (100)")
	killOthers(t, admin)
	if err := c.Commit(t.Context(), nil); err == nil || errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("commit: %v, want that the store is unavailable", err)
	}
	wantUntouched(t, admin, store, "1")
	for name, want := range map[string]bool{"noticed": true, "on its own": false, "its own time-out": false} {
		c, _ := mustClaim(t, store, name)
		msg := message.NewMessage("", nil)
		msg.SetContext(c.Context())
		_, err := pgxstore.WithTx(func(ctx context.Context, tx pgx.Tx, _ *message.Message) ([]*message.Message, error) {
			switch name {
			case "noticed":
				killOthers(t, admin)
				_, err := tx.Exec(ctx, "INSERT INTO ledger VALUES (100)")
				return nil, err
			case "its own time-out":
				ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
				defer cancel()
				_, err := tx.Exec(ctx, "SELECT pg_sleep(5)")
				return nil, err
			}
			return nil, errors.New("no such account")
		})(msg)
		if err == nil || errors.Is(err, dedupe.ErrRetryLater) != want {
			t.Errorf("%s: %v, want ErrRetryLater %v", name, err, want)
		}
		if err := c.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
	wantUntouched(t, admin, store, "1")
}

// The database refuses at COMMIT, or the handler has left its rows open: its fault.
func TestFaultsOfTheHandler(t *testing.T) {
	d := testdb.Postgres(t)
	pool := openPool(t, d)
	exec(t, pool, "CREATE TABLE account (id INT PRIMARY KEY)")
	exec(t, pool, "CREATE TABLE ledger (account INT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)")
	store := newStore(t, pool, "")
	c, tx := mustClaim(t, store, "1")
	exec(t, tx, "INSERT INTO ledger VALUES (77)")
	if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("a constraint at COMMIT: %v, want ErrAborted", err)
	}
	wantUntouched(t, pool, store, "1")
	c, tx = mustClaim(t, store, "1")
	if _, err := tx.Query(t.Context(), "SELECT generate_series(1, 10)"); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("rows left open: %v, want ErrAborted", err)
	}
	c, tx = mustClaim(t, store, "2") // the session of "1" may take a moment to end
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("committed by the handler: %v, want ErrAborted", err)
	}
}

// The handler has ended the transaction by a statement, and begun another: the record's
// row is gone, and what stands in the new transaction is not committed without it.
func TestTransactionReplacedByTheHandler(t *testing.T) {
	pool := openPool(t, testdb.Postgres(t))
	exec(t, pool, "CREATE TABLE ledger (amount INTEGER NOT NULL)")
	store := newStore(t, pool, "")
	c, tx := mustClaim(t, store, "1")
	for _, text := range []string{"ROLLBACK", "BEGIN", "INSERT INTO ledger VALUES (77)"} {
		exec(t, tx, text)
	}
	if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("commit: %v, want ErrAborted", err)
	}
	wantUntouched(t, pool, store, "1")
}

// Answers that mean "not now", to the record's own statement and to COMMIT, are no failure
// of the handler, and no refusal.
func TestNotNowAtTheRecord(t *testing.T) {
	t.Parallel()
	for _, code := range []string{"40001", "40P01", "53300", "53100", "57P03", "57P01", "25006"} {
		for _, at := range []string{"TRIGGER not_now BEFORE UPDATE ON idempotent_done", "CONSTRAINT TRIGGER not_now AFTER UPDATE ON idempotent_done DEFERRABLE INITIALLY DEFERRED"} {
			pool := openPool(t, testdb.Postgres(t))
			store := newStore(t, pool, "")
			exec(t, pool, "CREATE FUNCTION not_now() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now' USING ERRCODE = '"+code+"'; END $$")
			exec(t, pool, "CREATE "+at+" FOR EACH ROW EXECUTE FUNCTION not_now()")
			c, _ := mustClaim(t, store, "1")
			if err := c.Commit(t.Context(), nil); err == nil || errors.Is(err, dedupe.ErrAborted) || errors.Is(err, dedupe.ErrRefused) {
				t.Errorf("%s at %s: %v", code, at, err)
			}
		}
	}
}

// What an operator must mend is said by every step, and by Check before any handler runs.
func TestTableIsMissing(t *testing.T) {
	pool := openPool(t, testdb.Postgres(t))
	store, err := pgxstore.New(pgxstore.Config{Pool: pool, MaxInFlight: 1000, PurgeEvery: sqlstore.NoPurge})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	_, checked := store.Check(t.Context())
	_, claimed := store.Claim(t.Context(), key("1"), options())
	for what, err := range map[string]error{"check": checked, "claim": claimed} {
		if !errors.Is(err, dedupe.ErrRefused) || !strings.Contains(err.Error(), "call Store.Migrate once") {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	c, tx := mustClaim(t, store, "1")
	exec(t, tx, "ALTER TABLE idempotent_done RENAME COLUMN consumer_group TO another")
	if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrRefused) {
		t.Errorf("commit: %v, want ErrRefused", err)
	}
	if warnings, err := store.Check(t.Context()); err != nil || len(warnings) != 1 {
		t.Errorf("check: %q, %v, want a warning about the pool", warnings, err)
	}
}

// Handlers that hold every connection they may, and ask for another: one is left.
func TestPoolIsNoLargerThanMaxInFlight(t *testing.T) {
	d := testdb.Postgres(t)
	config, err := pgxpool.ParseConfig(d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store := newStore(t, pool, "")
	mustClaim(t, store, "1")
	second, _ := mustClaim(t, store, "2")
	short, stop := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer stop()
	if _, err := store.Claim(short, key("3"), options()); err == nil || !strings.Contains(err.Error(), "pool of 3") {
		t.Errorf("a third claim: %v, want the reason", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := pool.Ping(ctx); err != nil {
		t.Errorf("a handler's own connection: %v", err)
	}
	if err := second.Commit(ctx, nil); err != nil {
		t.Error(err)
	}
	mustClaim(t, store, "3")
}

func gated(t *testing.T, d *testdb.Database) (*pgxpool.Pool, *gate.Gate) {
	t.Helper()
	u, err := url.Parse(d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	g := gate.New(t, u.Host)
	u.Host = g.Addr()
	u.RawQuery += "&pool_max_conns=10"
	pool, err := pgxpool.New(context.Background(), u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Open()
		pool.Close()
	})
	return pool, g
}

func isCommit(request []byte) bool {
	return bytes.Contains(bytes.ToLower(request), []byte("commit")) && !bytes.Contains(request, []byte("committed_at"))
}

// COMMIT is done and its answer lost: the store looks, and the run counts.
func TestReplyOfCommitLost(t *testing.T) {
	pool, g := gated(t, testdb.Postgres(t))
	c, _ := mustClaim(t, newStore(t, pool, ""), "1")
	g.Lose(isCommit)
	if err := c.Commit(t.Context(), nil); err != nil {
		t.Errorf("commit: %v", err)
	}
}

// The look at the session after the handler has failed is answered late: the failure stays
// the handler's.
func TestSlowLinkAfterAFailure(t *testing.T) {
	t.Parallel()
	pool, g := gated(t, testdb.Postgres(t))
	c, _ := mustClaim(t, newStore(t, pool, ""), "1")
	msg := message.NewMessage("", nil)
	msg.SetContext(c.Context())
	failure := errors.New("no such account")
	_, err := pgxstore.WithTx(func(context.Context, pgx.Tx, *message.Message) ([]*message.Message, error) {
		g.Shut()
		time.AfterFunc(2*time.Second, g.Open)
		return nil, failure
	})(msg)
	if !errors.Is(err, failure) || errors.Is(err, dedupe.ErrRetryLater) {
		t.Errorf("%v, want the handler's own error alone", err)
	}
}

// The link goes silent: contexts bound every step, and Close.
func TestSilentLink(t *testing.T) {
	t.Parallel()
	d := testdb.Postgres(t)
	pool, g := gated(t, d)
	store := newStore(t, pool, "")
	commit, _ := mustClaim(t, store, "commit")
	rollback, _ := mustClaim(t, store, "rollback")
	for n := range 3 {
		mustClaim(t, store, fmt.Sprint(n))
	}
	g.Shut()
	steps := map[string]func(ctx context.Context) error{
		"commit": func(ctx context.Context) error { return commit.Commit(ctx, nil) },
		"rollback": func(ctx context.Context) error {
			return errors.Join(rollback.Rollback(ctx), errors.New("whatever it says"))
		},
		"claim": func(ctx context.Context) error {
			_, err := store.Claim(ctx, key("new"), options())
			return err
		},
		"close": func(context.Context) error { return errors.Join(store.Close(), errors.New("closed")) },
	}
	for _, name := range []string{"commit", "rollback", "claim", "close"} {
		do := steps[name]
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err := do(ctx)
		cancel()
		if err == nil || errors.Is(err, dedupe.ErrAborted) {
			t.Errorf("%s: %v", name, err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%s took %v", name, took)
		}
	}
	g.Open()
}

// Duplicates of a running key take no connection.
func TestDuplicatesDontStarveThePool(t *testing.T) {
	d := testdb.Postgres(t)
	config, err := pgxpool.ParseConfig(d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	config.MaxConns = 3
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	store := newStore(t, pool, "")
	running, _ := mustClaim(t, store, "1")
	ctx, cancel := context.WithCancel(t.Context())
	asked := pool.Stat().AcquireCount()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			o := options()
			o.Wait = time.Minute
			if c, err := store.Claim(ctx, key("1"), o); err == nil && c.State() == dedupe.StateClaimed {
				t.Error("claimed twice")
			}
		})
	}
	o := options()
	o.Wait = 300 * time.Millisecond // so long that the others have looked several times
	if c, err := store.Claim(t.Context(), key("1"), o); err != nil || c.State() != dedupe.StateInProgress {
		t.Errorf("%v, %v", c, err)
	}
	if n := pool.Stat().AcquireCount() - asked; n != 0 {
		t.Errorf("duplicates took %d connections", n)
	}
	if other, _ := mustClaim(t, store, "2"); other.Commit(t.Context(), nil) != nil {
		t.Error("another key finds no connection")
	}
	cancel()
	wg.Wait()
	if err := running.Commit(t.Context(), nil); err != nil {
		t.Error(err)
	}
}
