package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	_ "github.com/jackc/pgx/v5/stdlib" // the drivers
	_ "modernc.org/sqlite"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/examples/internal/sqloutbox"
)

// database has a table of orders and an outbox.
type database struct {
	name, url, id string
	db            *sql.DB
	dialect       sqlstore.Dialect
	folder        string // to be removed
}

// connect is all that a forwarder needs.
func connect(url, id string) (*database, error) {
	d := &database{name: "PostgreSQL", url: url, id: id, dialect: sqlstore.Postgres}
	driver, dsn := "pgx", url
	if file, ok := strings.CutPrefix(url, "sqlite:"); ok {
		d.name, d.dialect, driver = "SQLite", sqlstore.SQLite, "sqlite"
		dsn = file + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	}
	var err error
	d.db, err = sql.Open(driver, dsn)
	return d, err
}

func openDatabase(ctx context.Context, url, id string) (*database, error) {
	folder := ""
	if url == "" {
		var err error
		if folder, err = os.MkdirTemp("", "outbox-"); err != nil {
			return nil, err
		}
		url = "sqlite:" + filepath.Join(folder, "shop.db")
	}
	d, err := connect(url, id)
	if err != nil {
		return nil, err
	}
	d.folder = folder
	for _, statement := range []string{
		"CREATE TABLE " + d.orders() + " (id TEXT PRIMARY KEY, amount BIGINT NOT NULL)",
		d.outbox().Schema(),
	} {
		if _, err := d.db.ExecContext(ctx, statement); err != nil {
			return nil, errors.Join(err, d.close(ctx))
		}
	}
	return d, nil
}

func (d *database) orders() string { return "orders_" + d.id }

func (d *database) outbox() *sqloutbox.Outbox {
	return sqloutbox.New(sqloutbox.Config{
		DB: d.db, Dialect: d.dialect, Table: "outbox_" + d.id,
		PollInterval: 20 * time.Millisecond, AckDeadline: 30 * time.Second, Logger: watermill.NopLogger{},
	})
}

// close removes what was made.
func (d *database) close(ctx context.Context) error {
	var errs []error
	if d.folder == "" {
		for _, table := range []string{d.orders(), "outbox_" + d.id} {
			_, err := d.db.ExecContext(ctx, fmt.Sprintf("DROP TABLE IF EXISTS %q", table))
			errs = append(errs, err)
		}
	}
	errs = append(errs, d.db.Close())
	if d.folder != "" {
		errs = append(errs, os.RemoveAll(d.folder))
	}
	return errors.Join(errs...)
}
