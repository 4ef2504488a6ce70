// Package pgxstore_test checks the store for pgx on PostgreSQL.
package pgxstore_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/pgxstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/dedupe/storetest"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/tests/testdb"
)

func TestMain(m *testing.M) { testdb.Main(m) }

func openPool(t testing.TB, d *testdb.Database) *pgxpool.Pool {
	t.Helper()
	pool, err := pgxpool.New(context.Background(), d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool
}

func newStore(t testing.TB, pool *pgxpool.Pool, level pgx.TxIsoLevel) *pgxstore.Store {
	t.Helper()
	s, err := pgxstore.New(pgxstore.Config{Pool: pool, Isolation: level, PurgeEvery: sqlstore.NoPurge})
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
	for _, level := range []pgx.TxIsoLevel{"", pgx.RepeatableRead, pgx.Serializable} {
		t.Run("isolation "+string(level), func(t *testing.T) {
			t.Parallel()
			d := testdb.Postgres(t)
			storetest.Run(t, storetest.Config{
				Open:     func(t testing.TB) dedupe.Store { return newStore(t, openPool(t, d), level) },
				Features: storetest.Features{Transactional: true},
			})
		})
	}
}

// One process with pgx and one with database/sql share the table.
func TestConformanceBesideSQLStore(t *testing.T) {
	t.Parallel()
	d, n := testdb.Postgres(t), 0
	storetest.Run(t, storetest.Config{
		Open: func(t testing.TB) dedupe.Store {
			if n++; n%2 == 0 {
				return newStore(t, openPool(t, d), "")
			}
			s, err := sqlstore.New(sqlstore.Config{DB: d.Open(t), Dialect: sqlstore.Postgres})
			if err == nil {
				err = s.Migrate(context.Background())
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		},
		Features: storetest.Features{Transactional: true},
	})
}

func TestEffectAndRecordCommitTogether(t *testing.T) {
	pool := openPool(t, testdb.Postgres(t))
	if _, err := pool.Exec(t.Context(), "CREATE TABLE ledger (amount INTEGER NOT NULL)"); err != nil {
		t.Fatal(err)
	}
	once, err := middleware.New(middleware.Config{Store: newStore(t, pool, ""), Namespace: "ledger", Retention: time.Hour, Delay: time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	what := "fails"
	handle := pgxstore.WithTx(func(ctx context.Context, tx pgx.Tx, _ *message.Message) ([]*message.Message, error) {
		if _, err := tx.Exec(ctx, "INSERT INTO ledger VALUES (100)"); err != nil {
			return nil, err
		}
		switch what {
		case "fails":
			return nil, errors.New("after the write")
		case "swallows":
			_, _ = tx.Exec(ctx, "INSERT INTO nowhere VALUES (1)") // the transaction is broken now
		}
		return nil, nil
	})
	deliver := func() error {
		msg := message.NewMessage("", nil)
		msg.Metadata.Set(eventkey.MetadataKey, "pay:1")
		_, err := once.Run(context.Background(), msg, "charge", func(context.Context) ([]*message.Message, error) { return handle(msg) })
		return err
	}
	wantRows := func(want int) {
		t.Helper()
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM ledger").Scan(&n); err != nil || n != want {
			t.Errorf("%d rows, %v, want %d", n, err, want)
		}
	}
	if err := deliver(); err == nil {
		t.Error("no error of a handler that fails")
	}
	what = "swallows"
	if err := deliver(); !errors.Is(err, dedupe.ErrAborted) {
		t.Errorf("a swallowed error: %v, want ErrAborted", err)
	}
	wantRows(0)
	what = "succeeds"
	for range 3 {
		if err := deliver(); err != nil {
			t.Error(err)
		}
	}
	wantRows(1)
	if _, err := pgxstore.WithTx(nil)(message.NewMessage("", nil)); !errors.Is(err, pgxstore.ErrNoTx) {
		t.Errorf("outside of a run: %v, want ErrNoTx", err)
	}
}

func TestConfig(t *testing.T) {
	if _, err := pgxstore.New(pgxstore.Config{}); err == nil {
		t.Error("no error without a pool")
	}
	if _, err := pgxstore.New(pgxstore.Config{Pool: openPool(t, testdb.Postgres(t)), Table: "a b"}); err == nil {
		t.Error("no error for a table that is no name")
	}
}

// What ran out goes by itself, from the first claim on, beside a claim that is held; Close
// ends it.
func TestPurgeByItself(t *testing.T) {
	t.Parallel()
	pool := openPool(t, testdb.Postgres(t))
	s, err := pgxstore.New(pgxstore.Config{Pool: pool, PurgeEvery: time.Second, Logger: watermill.NopLogger{}})
	if err == nil {
		err = s.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	claim := func(event string, retention time.Duration) dedupe.Claim {
		c, err := s.Claim(t.Context(), dedupe.Key{Namespace: "n", Event: event},
			dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: 10 * time.Millisecond, Retention: retention})
		if err != nil || c.State() != dedupe.StateClaimed {
			t.Fatal(c, err)
		}
		return c
	}
	for event, retention := range map[string]time.Duration{"short": 20 * time.Millisecond, "long": time.Hour} {
		if err := claim(event, retention).Commit(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	held := claim("held", time.Hour)
	rows := func() (n int) {
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM idempotent_done_readable").Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); rows() != 1; <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("%d records are left, want the one that has an hour", rows())
		}
	}
	if err := held.Commit(t.Context(), nil); err != nil {
		t.Error(err)
	}
	if n, err := s.SchemaVersion(t.Context()); err != nil || n != sqlstore.SchemaVersion {
		t.Errorf("schema version %d, %v", n, err)
	}
	if _, err := pgxstore.New(pgxstore.Config{Pool: pool, PurgeEvery: time.Millisecond}); err == nil {
		t.Error("no error for a purge every millisecond")
	}
	if err := s.Close(); err != nil || pool.Stat().AcquiredConns() != 0 {
		t.Errorf("%d connections are taken after Close, %v", pool.Stat().AcquiredConns(), err)
	}
}
