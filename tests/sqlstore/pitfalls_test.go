package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

func options() dedupe.ClaimOptions {
	return dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Minute, Retention: time.Hour}
}

func key(event string) dedupe.Key { return dedupe.Key{Namespace: "ledger", Event: event} }

func mustClaim(t testing.TB, s dedupe.Store, k dedupe.Key) dedupe.Claim {
	t.Helper()
	c, err := s.Claim(context.Background(), k, options())
	if err != nil {
		t.Fatal(err)
	}
	if c.State() != dedupe.StateClaimed {
		t.Fatalf("state %v", c.State())
	}
	t.Cleanup(func() { _ = c.Rollback(context.Background()) })
	return c
}

func exec(t testing.TB, db interface {
	ExecContext(context.Context, string, ...any) (sql.Result, error)
}, text string) {
	t.Helper()
	if _, err := db.ExecContext(context.Background(), text); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

func count(t testing.TB, db *sql.DB, text string) (n int) {
	t.Helper()
	if err := db.QueryRowContext(context.Background(), text).Scan(&n); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return n
}

// ledger makes a table for effects.
func ledger(t testing.TB, db *sql.DB) {
	t.Helper()
	exec(t, db, "CREATE TABLE ledger (event VARCHAR(100) NOT NULL, amount INTEGER NOT NULL)")
}

func txOf(t testing.TB, c dedupe.Claim) *sql.Tx {
	t.Helper()
	tx, ok := sqlstore.TxFrom(c.Context())
	if !ok {
		t.Fatal("no transaction on the claim's context")
	}
	return tx
}

// What the handler writes and the record are there together, or neither is.
func TestEffectAndRecordCommitTogether(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		db := d.open(t)
		ledger(t, db)
		store := newStore(t, db, d.dialect)
		once, err := middleware.New(middleware.Config{Store: store, Namespace: "ledger", Retention: time.Hour, Delay: 10 * time.Millisecond}, nil)
		if err != nil {
			t.Fatal(err)
		}
		fail := true
		handle := sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			if _, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('"+msg.UUID+"', 100)"); err != nil {
				return nil, err
			}
			if fail {
				return nil, errors.New("after the write")
			}
			return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
		})
		deliver := func() ([]*message.Message, error) {
			msg := message.NewMessage("p1", nil)
			msg.Metadata.Set(eventkey.MetadataKey, "pay:1")
			out, err := once.Run(context.Background(), msg, "charge", func(context.Context) ([]*message.Message, error) { return handle(msg) })
			msg.Ack()
			return out, err
		}
		if _, err := deliver(); err == nil {
			t.Error("no error")
		}
		if n := count(t, db, "SELECT count(*) FROM ledger"); n != 0 {
			t.Errorf("%d rows of a failed handler", n)
		}
		fail = false
		for range 3 {
			if out, err := deliver(); err != nil || len(out) > 1 {
				t.Errorf("%d messages, %v", len(out), err)
			}
		}
		if n := count(t, db, "SELECT count(*) FROM ledger"); n != 1 {
			t.Errorf("%d rows, want the effect once", n)
		}
		if err := once.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := sqlstore.WithTx(nil)(message.NewMessage("", nil)); !errors.Is(err, sqlstore.ErrNoTx) {
			t.Errorf("outside of a run: %v, want ErrNoTx", err)
		}
	})
}

// A handler that swallows the error of a failed statement: PostgreSQL's transaction is
// broken, MariaDB's deadlock victim has none any more, and what it writes after that
// would commit by itself. Nothing is recorded, nothing is there, and the run has failed.
func TestSwallowedError(t *testing.T) {
	t.Run("postgres", func(t *testing.T) {
		d := newDatabase(t, sqlstore.Postgres)
		db := d.open(t)
		ledger(t, db)
		store := newStore(t, db, d.dialect)
		c := mustClaim(t, store, key("1"))
		tx := txOf(t, c)
		exec(t, tx, "INSERT INTO ledger VALUES ('1', 1)")
		if _, err := tx.ExecContext(t.Context(), "INSERT INTO nowhere VALUES (1)"); err == nil {
			t.Fatal("no error to swallow")
		}
		if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
			t.Errorf("commit: %v, want ErrAborted", err)
		}
		wantUntouched(t, db, store, "1")
	})
	t.Run("mariadb deadlock", func(t *testing.T) {
		d := newDatabase(t, sqlstore.MySQL)
		db := d.open(t)
		exec(t, db, "CREATE TABLE ledger (event VARCHAR(100) NOT NULL, amount INTEGER NOT NULL)")
		exec(t, db, "CREATE TABLE account (id INT PRIMARY KEY, amount INT) ENGINE=InnoDB")
		exec(t, db, "INSERT INTO account VALUES (1, 0), (2, 0)")
		store := newStore(t, db, d.dialect)
		c := mustClaim(t, store, key("1"))
		tx := txOf(t, c)
		exec(t, tx, "UPDATE account SET amount = 1 WHERE id = 1")
		// Another transaction, that has written more, so that ours is the victim.
		other, err := db.BeginTx(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = other.Rollback() }()
		for n := range 50 {
			exec(t, other, fmt.Sprintf("INSERT INTO ledger VALUES ('other %d', 1)", n))
		}
		exec(t, other, "UPDATE account SET amount = 2 WHERE id = 2")
		blocked := make(chan error, 1)
		go func() {
			_, err := other.ExecContext(context.Background(), "UPDATE account SET amount = 2 WHERE id = 1")
			blocked <- err
		}()
		eventually(t, func() bool { // it waits for ours
			// InnoDB repeats its last answer while it is asked again within 0.1 s.
			<-time.After(150 * time.Millisecond)
			return count(t, db, "SELECT count(*) FROM information_schema.innodb_lock_waits") > 0
		})
		if _, err := tx.ExecContext(t.Context(), "UPDATE account SET amount = 1 WHERE id = 2"); err == nil {
			t.Fatal("ours is not the victim")
		}
		if err := <-blocked; err != nil {
			t.Fatal(err)
		}
		exec(t, tx, "INSERT INTO ledger VALUES ('1', 1)") // as though nothing had happened
		if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
			t.Errorf("commit: %v, want ErrAborted", err)
		}
		if err := other.Rollback(); err != nil {
			t.Fatal(err)
		}
		wantUntouched(t, db, store, "1")
		// The connection went back as it was: what others do on it commits by itself.
		for n := range 5 {
			exec(t, db, fmt.Sprintf("INSERT INTO ledger VALUES ('plain %d', 1)", n))
		}
		if n := count(t, d.open(t), "SELECT count(*) FROM ledger WHERE event LIKE 'plain%'"); n != 5 {
			t.Errorf("%d of 5 plain inserts committed: autocommit was left off", n)
		}
	})
}

func wantUntouched(t *testing.T, db *sql.DB, store *sqlstore.Store, event string) {
	t.Helper()
	if n := count(t, db, "SELECT count(*) FROM ledger WHERE event = '"+event+"'"); n != 0 {
		t.Errorf("%d effects without a record", n)
	}
	if _, err := store.Lookup(t.Context(), key(event)); !errors.Is(err, dedupe.ErrNotFound) {
		t.Errorf("lookup: %v, want ErrNotFound", err)
	}
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("never")
		}
	}
}

// Nine duplicates of a running key, and a pool of ten: they need no connection, and
// the handler and another key find theirs.
func TestDuplicatesDontStarveThePool(t *testing.T) {
	for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			d := newDatabase(t, kind)
			db := d.open(t)
			db.SetMaxOpenConns(10)
			store := newStore(t, db, d.dialect)
			c := mustClaim(t, store, key("1"))
			var wg sync.WaitGroup
			ctx, cancel := context.WithCancel(t.Context())
			for range 20 {
				wg.Go(func() {
					o := options()
					o.Wait = time.Minute
					if d, err := store.Claim(ctx, key("1"), o); err == nil && d.State() == dedupe.StateClaimed {
						t.Error("claimed twice")
					}
				})
			}
			if n := db.Stats().InUse; n > 2 {
				t.Errorf("%d connections in use", n)
			}
			bounded, stop := context.WithTimeout(t.Context(), 10*time.Second)
			defer stop()
			if _, err := store.Lookup(bounded, key("2")); !errors.Is(err, dedupe.ErrNotFound) {
				t.Errorf("the pool is starved: %v", err)
			}
			if err := mustClaim(t, store, key("2")).Commit(bounded, nil); err != nil {
				t.Error(err)
			}
			cancel()
			wg.Wait()
			if err := c.Commit(bounded, nil); err != nil {
				t.Error(err)
			}
		})
	}
}

// One writer at a time: another key is in progress in bounded time, and goes when the
// first has ended; what is done is found meanwhile.
func TestTwoKeysOnSQLite(t *testing.T) {
	t.Parallel()
	d := newDatabase(t, sqlstore.SQLite)
	store, other := newStore(t, d.open(t), d.dialect), newStore(t, d.open(t), d.dialect)
	if err := mustClaim(t, store, key("done")).Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	c := mustClaim(t, store, key("1"))
	for _, s := range []*sqlstore.Store{store, other} {
		begin := time.Now()
		o := options()
		o.Wait = 100 * time.Millisecond
		got, err := s.Claim(t.Context(), key("2"), o)
		if err != nil || got.State() != dedupe.StateInProgress {
			t.Fatalf("%v, %v, want in progress", got, err)
		}
		if took := time.Since(begin); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	}
	if err := c.Commit(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if err := mustClaim(t, other, key("2")).Commit(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// Twenty instances start at once, and one more while handlers run.
func TestMigrateAtOnce(t *testing.T) {
	each(t, func(t *testing.T, d *database) {
		var wg sync.WaitGroup
		for range 20 {
			db := d.open(t)
			wg.Go(func() {
				s, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: d.dialect})
				if err == nil {
					err = s.Migrate(context.Background())
				}
				if err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		store := newStore(t, d.open(t), d.dialect)
		c := mustClaim(t, store, key("1"))
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		if err := store.Migrate(ctx); err != nil {
			t.Errorf("while a handler runs: %v", err)
		}
		if err := c.Commit(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

// Purging goes on beside claims.
func TestPurgeDoesNotBlockClaims(t *testing.T) {
	t.Parallel()
	for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			d := newDatabase(t, kind)
			store := newStore(t, d.open(t), d.dialect)
			for n := range 300 {
				if err := mustClaim(t, store, key(fmt.Sprint("old ", n))).Commit(t.Context(), nil); err != nil {
					t.Fatal(err)
				}
			}
			held := mustClaim(t, store, key("held"))
			purged := make(chan error, 1)
			go func() {
				n, err := newStore(t, d.open(t), d.dialect).Purge(context.Background(), time.Now().Add(time.Minute), 0)
				if err == nil && n < 300 {
					err = fmt.Errorf("purged %d of 300", n)
				}
				purged <- err
			}()
			for n := 0; ; n++ {
				begin := time.Now()
				c := mustClaim(t, store, key(fmt.Sprint("new ", n)))
				if err := c.Rollback(t.Context()); err != nil {
					t.Fatal(err)
				}
				if took := time.Since(begin); took > 5*time.Second {
					t.Errorf("a claim waited %v", took)
				}
				select {
				case err := <-purged:
					if err != nil {
						t.Error(err)
					}
					if err := held.Commit(t.Context(), nil); err != nil {
						t.Error(err)
					}
					return
				default:
				}
			}
		})
	}
}
