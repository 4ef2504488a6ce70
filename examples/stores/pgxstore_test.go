package stores_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/onceward/watermill-idempotent/dedupe/pgxstore"
	"github.com/onceward/watermill-idempotent/middleware"
)

// A handler that is given a pgx.Tx, in a Router.
func Example_pgxstore() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		panic(err)
	}
	defer pool.Close()
	store, once, err := billing(ctx, pool)
	if err != nil {
		panic(err)
	}
	router := message.NewDefaultRouter(nil)
	var sub message.Subscriber // any, such as subscriber.New of this project
	var pub message.Publisher
	router.AddHandler("book", "payments", sub, "receipts", pub, once.Handler(pgxstore.WithTx(book)))
	err = router.Run(ctx)
	if err = errors.Join(err, once.Close(ctx), store.Close()); err != nil {
		panic(err)
	}
}

func billing(ctx context.Context, pool *pgxpool.Pool) (*pgxstore.Store, *middleware.Once, error) {
	store, err := pgxstore.New(pgxstore.Config{Pool: pool, Table: "example_done"})
	if err != nil {
		return nil, nil, err
	}
	if err := store.Migrate(ctx); err != nil { // makes the table of records
		return nil, nil, err
	}
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "billing", Retention: 7 * 24 * time.Hour}, nil)
	return store, once, err
}

// book writes through the transaction of its record.
func book(ctx context.Context, tx pgx.Tx, msg *message.Message) ([]*message.Message, error) {
	if _, err := tx.Exec(ctx, "INSERT INTO example_bookings (payment) VALUES ($1)", string(msg.Payload)); err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage("", msg.Payload)}, nil // the receipt
}

// The example's handler on a real database: DATABASE_URL=postgres://... go test ./stores
func TestBookWithPgx(t *testing.T) {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		t.Skip("DATABASE_URL is not set")
	}
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	const drop = "DROP VIEW IF EXISTS example_done_readable; DROP TABLE IF EXISTS example_bookings, example_done_version, example_done"
	for _, text := range []string{drop, "CREATE TABLE example_bookings (payment text)"} {
		if _, err := pool.Exec(ctx, text); err != nil {
			t.Fatal(err)
		}
	}
	store, once, err := billing(ctx, pool)
	if err != nil {
		t.Fatal(err)
	}
	for range 3 { // each delivery gets the receipt, until one of them is acknowledged
		msg := message.NewMessage("", []byte("p1001"))
		msg.Metadata.Set("idempotency_key", "pay:p1001")
		receipts, err := once.Run(ctx, msg, "book", func(context.Context) ([]*message.Message, error) { return pgxstore.WithTx(book)(msg) })
		if err != nil || len(receipts) != 1 {
			t.Errorf("%d receipts, %v", len(receipts), err)
		}
	}
	var n int
	if err := pool.QueryRow(ctx, "SELECT count(*) FROM example_bookings").Scan(&n); err != nil || n != 1 {
		t.Errorf("%d bookings, %v", n, err)
	}
	if err := errors.Join(once.Close(ctx), store.Close()); err != nil {
		t.Error(err)
	}
	if _, err := pool.Exec(ctx, drop); err != nil {
		t.Error(err)
	}
}
