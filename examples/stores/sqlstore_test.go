package stores_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite" // the driver

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// An event comes three times, and the first run fails after it has written: its effect is
// there once. With a Router it would be once.Handler(book).
func Example_sqlstore() {
	if err := bookThreeTimes(context.Background()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// delivery 1: the bank does not answer, 0 bookings
	// delivery 2: handled, 1 bookings
	// delivery 3: handled, 1 bookings
}

func bookThreeTimes(ctx context.Context) (err error) {
	dir, err := os.MkdirTemp("", "example-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	db, err := sql.Open("sqlite", filepath.Join(dir, "bookings.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	if _, err := db.ExecContext(ctx, "CREATE TABLE bookings (payment TEXT)"); err != nil {
		return err
	}

	store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.SQLite})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if err := store.Migrate(ctx); err != nil { // makes the table of records
		return err
	}
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "billing", Retention: 7 * 24 * time.Hour}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, once.Close(ctx)) }()

	runs := 0
	book := sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		if _, err := tx.ExecContext(ctx, "INSERT INTO bookings (payment) VALUES (?)", string(msg.Payload)); err != nil {
			return nil, err
		}
		if runs++; runs == 1 {
			return nil, errors.New("the bank does not answer")
		}
		return nil, nil
	})
	for n := range 3 {
		msg := message.NewMessage("", []byte("p1001"))
		msg.Metadata.Set(eventkey.MetadataKey, "pay:p1001")
		_, err := once.Run(ctx, msg, "book", func(context.Context) ([]*message.Message, error) { return book(msg) })
		outcome := "handled"
		if err != nil {
			outcome = err.Error()
		}
		var bookings int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM bookings").Scan(&bookings); err != nil {
			return err
		}
		fmt.Printf("delivery %d: %s, %d bookings\n", n+1, outcome, bookings)
	}
	return nil
}
