package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// A payment comes twice. What the handler writes and the record that it has run commit
// together, so it is in the ledger once. openDB stands for sql.Open and a driver.
func Example() {
	ctx := context.Background()
	db := openDB()
	defer db.Close()
	store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.SQLite})
	if err != nil {
		panic(err)
	}
	defer store.Close()
	if err := store.Migrate(ctx); err != nil {
		panic(err)
	}
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "payments", Retention: 24 * time.Hour}, nil)
	if err != nil {
		panic(err)
	}
	charge := sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
		fmt.Println("charge", string(msg.Payload))
		_, err := tx.ExecContext(ctx, "INSERT INTO ledger (payment) VALUES (?)", string(msg.Payload))
		return nil, err
	})
	for range 2 {
		msg := message.NewMessage("", []byte("p9001"))
		msg.Metadata.Set(eventkey.MetadataKey, "pay:p9001")
		// In a Router: once.Handler(charge).
		_, err := once.Run(ctx, msg, "charge", func(context.Context) ([]*message.Message, error) {
			return charge(msg)
		})
		if err != nil {
			panic(err)
		}
	}
	var payments int
	err = db.QueryRowContext(ctx, "SELECT count(*) FROM ledger").Scan(&payments)
	fmt.Println(payments, "payment in the ledger", err)
	_ = once.Close(ctx)
	// Output:
	// charge p9001
	// 1 payment in the ledger <nil>
}

// The files that make the schema, for a tool that applies them.
func ExampleMigrations() {
	files, err := sqlstore.Migrations(sqlstore.Postgres, "shop.handled")
	if err != nil {
		panic(err)
	}
	names, err := fs.Glob(files, "*.sql")
	fmt.Println(names, err)
	// Output: [00001_records.up.sql 00002_readable.up.sql] <nil>
}

// Into a folder, and as text.
func ExampleSchema() {
	_ = func() error {
		files, err := sqlstore.Migrations(sqlstore.Postgres, "shop.handled")
		if err != nil {
			return err
		}
		if err := os.CopyFS("migrations/handled", files); err != nil { // or give it to the tool
			return err
		}
		text, err := sqlstore.Schema(sqlstore.Postgres, "shop.handled", 1)
		fmt.Println(text)
		return err
	}
}
