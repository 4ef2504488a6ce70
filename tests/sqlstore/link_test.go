package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/tests/sqlstore/gate"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

// servers are the databases over a network.
func servers(t *testing.T, run func(t *testing.T, kind sqlstore.Dialect)) {
	for _, kind := range []sqlstore.Dialect{sqlstore.Postgres, sqlstore.MySQL} {
		t.Run(string(kind), func(t *testing.T) { run(t, kind) })
	}
}

// gated is a new database behind a gate, and the way around it.
func gated(t *testing.T, kind sqlstore.Dialect) (behind, direct *sql.DB, g *gate.Gate) {
	t.Helper()
	var driver, dsn string
	var d *testdb.Database
	switch kind {
	case sqlstore.Postgres:
		d = testdb.Postgres(t)
		u, err := url.Parse(d.DSN)
		if err != nil {
			t.Fatal(err)
		}
		g = gate.New(t, u.Host)
		u.Host = g.Addr()
		driver, dsn = "pgx", u.String()
	case sqlstore.MySQL:
		d = testdb.MariaDB(t)
		before, rest, _ := strings.Cut(d.DSN, "(")
		addr, after, _ := strings.Cut(rest, ")")
		g = gate.New(t, addr)
		driver, dsn = "mysql", before+"("+g.Addr()+")"+after
	}
	behind, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Open()
		_ = behind.Close()
	})
	return behind, d.Open(t), g
}

func isCommit(request []byte) bool {
	return bytes.Contains(bytes.ToLower(request), []byte("commit")) && !bytes.Contains(request, []byte("committed_at"))
}

// bounded does something that has a second, and fails if it hangs.
func bounded(t *testing.T, what string, do func(ctx context.Context) error) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		done <- do(ctx)
	}()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatalf("%s hangs, for as long as the link is silent", what)
		return nil
	}
}

// The link goes silent: the context bounds every step, and afterwards all is as it would
// be without the store.
func TestSilentLink(t *testing.T) {
	t.Parallel()
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		t.Parallel()
		steps := map[string]func(t *testing.T, store *sqlstore.Store, g *gate.Gate, k dedupe.Key){
			"claim": func(t *testing.T, store *sqlstore.Store, g *gate.Gate, k dedupe.Key) {
				g.Shut()
				if err := bounded(t, "Claim", func(ctx context.Context) error {
					_, err := store.Claim(ctx, k, options())
					return err
				}); err == nil {
					t.Error("no error")
				}
			},
			"commit": func(t *testing.T, store *sqlstore.Store, g *gate.Gate, k dedupe.Key) {
				c := mustClaim(t, store, k)
				g.Shut()
				err := bounded(t, "Commit", func(ctx context.Context) error { return c.Commit(ctx, nil) })
				if err == nil || errors.Is(err, dedupe.ErrAborted) {
					t.Errorf("commit: %v, want that the store is unavailable", err)
				}
			},
			"the statement COMMIT": func(t *testing.T, store *sqlstore.Store, g *gate.Gate, k dedupe.Key) {
				c := mustClaim(t, store, k)
				g.ShutAt(isCommit)
				err := bounded(t, "COMMIT", func(ctx context.Context) error { return c.Commit(ctx, nil) })
				if err == nil || errors.Is(err, dedupe.ErrAborted) {
					t.Errorf("commit: %v, want that nobody knows", err)
				}
			},
			"rollback": func(t *testing.T, store *sqlstore.Store, g *gate.Gate, k dedupe.Key) {
				c := mustClaim(t, store, k)
				g.Shut()
				_ = bounded(t, "Rollback", func(ctx context.Context) error { return c.Rollback(ctx) }) // whatever it says
			},
			"close": func(t *testing.T, store *sqlstore.Store, g *gate.Gate, k dedupe.Key) {
				mustClaim(t, store, k)
				for n := range 4 {
					mustClaim(t, store, key(fmt.Sprint("close ", n)))
				}
				g.Shut()
				if err := bounded(t, "Close", func(context.Context) error { return store.Close() }); err != nil {
					t.Error(err)
				}
			},
		}
		for name, step := range steps {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				behind, direct, g := gated(t, kind)
				k := key(name) // of its own: MariaDB's locks are the server's, not the database's
				store := newStore(t, behind, kind)
				if err := mustClaim(t, store, key(name+" before")).Commit(t.Context(), nil); err != nil { // a connection idles
					t.Fatal(err)
				}
				step(t, store, g, k)
				// No connection is held up, either, or the pool would run dry.
				eventually(t, func() bool { return behind.Stats().InUse == 0 })
				g.Open()
				// The database ends what was left; then the key is free, or handled.
				other := newStore(t, direct, kind)
				eventually(t, func() bool {
					c, err := other.Claim(t.Context(), k, options())
					if err != nil {
						t.Fatal(err)
					}
					if c.State() == dedupe.StateClaimed {
						err = c.Rollback(t.Context())
					}
					if err != nil {
						t.Error(err)
					}
					return c.State() == dedupe.StateClaimed || c.State() == dedupe.StateDone && name == "the statement COMMIT"
				})
			})
		}
	})
}

// COMMIT is done and its answer lost: the store looks, and the run counts.
func TestReplyOfCommitLost(t *testing.T) {
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		behind, direct, g := gated(t, kind)
		behind.SetMaxOpenConns(1) // its connection is given back before the look
		ledger(t, direct)
		c := mustClaim(t, newStore(t, behind, kind), key("1"))
		exec(t, txOf(t, c), "INSERT INTO ledger VALUES ('1', 100)")
		g.Lose(isCommit)
		if err := c.Commit(t.Context(), nil); err != nil {
			t.Errorf("commit: %v", err)
		}
		if n := count(t, direct, "SELECT count(*) FROM ledger"); n != 1 {
			t.Errorf("%d effects", n)
		}
	})
}

// killOthers ends all sessions of the database but this one, as a restart would.
func killOthers(t *testing.T, db *sql.DB, kind sqlstore.Dialect) {
	t.Helper()
	if kind == sqlstore.Postgres {
		exec(t, db, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND datname = current_database()")
		return
	}
	rows, err := db.QueryContext(t.Context(), "SELECT id FROM information_schema.processlist WHERE id <> connection_id() AND db = database()")
	if err != nil {
		t.Fatal(err)
	}
	var ids []int
	for rows.Next() {
		var id int
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	if err := errors.Join(rows.Err(), rows.Close()); err != nil {
		t.Fatal(err)
	}
	for _, id := range ids {
		exec(t, db, fmt.Sprint("KILL ", id))
	}
}

// A session that was lost during the run, by a restart of the database, is no failure
// of the handler, whether or not the handler has noticed.
func TestSessionLostDuringTheRun(t *testing.T) {
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		d := newDatabase(t, kind)
		db, admin := d.open(t), d.open(t)
		ledger(t, db)
		store := newStore(t, db, kind)

		c := mustClaim(t, store, key("1"))
		exec(t, txOf(t, c), "INSERT INTO ledger VALUES ('1', 100)")
		killOthers(t, admin, kind)
		if err := c.Commit(t.Context(), nil); err == nil || errors.Is(err, dedupe.ErrAborted) {
			t.Errorf("commit: %v, want that the store is unavailable", err)
		}
		wantUntouched(t, admin, store, "1")

		for name, want := range map[string]bool{"noticed": true, "noticed and swallowed": false, "on its own": false, "its own time-out": false} {
			c := claimSoon(t, store, name)
			msg := message.NewMessage("", nil)
			msg.SetContext(c.Context())
			_, err := sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
				switch name {
				case "noticed", "noticed and swallowed":
					killOthers(t, admin, kind)
					_, err := tx.ExecContext(ctx, "INSERT INTO ledger VALUES ('1', 100)")
					if name == "noticed" {
						return nil, err
					}
					return nil, c.Commit(context.Background(), nil)
				case "its own time-out":
					ctx, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
					defer cancel()
					_, err := tx.ExecContext(ctx, map[sqlstore.Dialect]string{sqlstore.Postgres: "SELECT pg_sleep(5)", sqlstore.MySQL: "SELECT sleep(5)"}[kind])
					return nil, err
				}
				return nil, errors.New("no such account")
			})(msg)
			if err == nil || errors.Is(err, dedupe.ErrRetryLater) != want || errors.Is(err, dedupe.ErrAborted) {
				t.Errorf("%s: %v, want ErrRetryLater %v", name, err, want)
			}
			if err := c.Rollback(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := claimSoon(t, store, "1").Commit(t.Context(), nil); err != nil {
			t.Error(err)
		}
	})
}

// claimSoon claims as soon as the database has ended what was killed.
func claimSoon(t *testing.T, store *sqlstore.Store, event string) (c dedupe.Claim) {
	t.Helper()
	eventually(t, func() (ok bool) {
		var err error
		c, err = store.Claim(t.Context(), key(event), options())
		return err == nil && c.State() == dedupe.StateClaimed
	})
	return c
}

// The database refuses at COMMIT: the fault of what was written, and as definite as one
// of a statement.
func TestConstraintAtCommit(t *testing.T) {
	const accounts, entries = "CREATE TABLE account (id INT PRIMARY KEY)",
		"CREATE TABLE entry (account INT REFERENCES account (id) DEFERRABLE INITIALLY DEFERRED)"
	for name, set := range map[string]struct {
		kind   sqlstore.Dialect
		tables []string
	}{
		"postgres, foreign key": {sqlstore.Postgres, []string{accounts, entries}},
		"postgres, trigger": {sqlstore.Postgres, []string{
			"CREATE TABLE entry (account INT)",
			"CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'sum is not zero'; END $$",
			"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON entry DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()",
		}},
		"sqlite": {sqlstore.SQLite, []string{accounts, entries}},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDatabase(t, set.kind)
			db := d.open(t)
			for _, text := range set.tables {
				exec(t, db, text)
			}
			if set.kind == sqlstore.SQLite {
				db.SetMaxOpenConns(2)
				exec(t, db, "PRAGMA foreign_keys = 1")
			}
			store := newStore(t, db, set.kind)
			c := mustClaim(t, store, key("1"))
			if set.kind == sqlstore.SQLite && count(t, db, "SELECT count(*) FROM pragma_foreign_keys WHERE foreign_keys = 1") == 1 {
				t.Fatal("the claim is on another connection")
			}
			exec(t, txOf(t, c), "INSERT INTO entry VALUES (77)")
			if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
				t.Errorf("commit: %v, want ErrAborted", err)
			}
			if n := count(t, db, "SELECT count(*) FROM entry"); n != 0 {
				t.Errorf("%d effects without a record", n)
			}
			if _, err := store.Lookup(t.Context(), key("1")); !errors.Is(err, dedupe.ErrNotFound) {
				t.Errorf("lookup: %v, want ErrNotFound", err)
			}
		})
	}
}

// A handler that leaves its rows open takes the connection from the record: its fault,
// though the driver calls it a bad connection.
func TestRowsLeftOpen(t *testing.T) {
	servers(t, func(t *testing.T, kind sqlstore.Dialect) {
		d := newDatabase(t, kind)
		db := d.open(t)
		ledger(t, db)
		exec(t, db, "INSERT INTO ledger VALUES ('a', 1), ('b', 2)")
		c := mustClaim(t, newStore(t, db, kind), key("1"))
		rows, err := txOf(t, c).QueryContext(t.Context(), "SELECT amount FROM ledger") //nolint:sqlclosecheck // that is the point
		if err != nil || !rows.Next() {
			t.Fatal(err)
		}
		if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
			t.Errorf("commit: %v, want ErrAborted", err)
		}
		if err := rows.Err(); err != nil {
			t.Log(err)
		}
		eventually(t, func() bool { return db.Stats().InUse == 0 })
	})
}

// As before, and the look at the session is answered late.
func TestRowsLeftOpenOnASlowLink(t *testing.T) {
	t.Parallel()
	behind, direct, g := gated(t, sqlstore.MySQL)
	ledger(t, direct)
	exec(t, direct, "INSERT INTO ledger VALUES ('a', 1), ('b', 2)")
	c := mustClaim(t, newStore(t, behind, sqlstore.MySQL), key("slow link"))
	rows, err := txOf(t, c).QueryContext(t.Context(), "SELECT amount FROM ledger") //nolint:sqlclosecheck // that is the point
	if err != nil || !rows.Next() {
		t.Fatal(err)
	}
	g.Shut()
	time.AfterFunc(2*time.Second, g.Open)
	if err := c.Commit(t.Context(), nil); !errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("commit: %v, want ErrAborted", err)
	}
	if err := rows.Err(); err != nil {
		t.Log(err)
	}
}

// MariaDB closes the connection on a packet that is too large: no outage, and not the
// same again.
func TestRecordTooLarge(t *testing.T) {
	d := newDatabase(t, sqlstore.MySQL)
	admin := d.open(t)
	var before int
	if err := admin.QueryRowContext(t.Context(), "SELECT @@global.max_allowed_packet").Scan(&before); err != nil {
		t.Fatal(err)
	}
	exec(t, admin, "SET GLOBAL max_allowed_packet = 1048576")
	t.Cleanup(func() { exec(t, admin, fmt.Sprint("SET GLOBAL max_allowed_packet = ", before)) })
	store := newStore(t, d.open(t), sqlstore.MySQL)
	for _, size := range []int{2 << 20, 8 << 20, 20 << 20} { // with a word of the server's, and without
		c := claimSoon(t, store, "1")
		if err := c.Commit(t.Context(), [][]byte{make([]byte, size)}); !errors.Is(err, dedupe.ErrTooLarge) {
			t.Errorf("%d bytes: %v, want ErrTooLarge", size, err)
		}
	}
	if err := claimSoon(t, store, "1").Commit(t.Context(), [][]byte{make([]byte, 1<<19)}); err != nil {
		t.Errorf("a smaller one: %v", err)
	}
}
