package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the drivers
	_ "modernc.org/sqlite"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// database is the one in use, with tables that nobody else has.
type database struct {
	db      *sql.DB
	dialect sqlstore.Dialect
	url     string
	suffix  string
}

func connect(url, suffix string) (*database, error) {
	d := &database{dialect: sqlstore.Postgres, url: url, suffix: suffix}
	driver, dsn := "pgx", url
	if file, ok := strings.CutPrefix(url, "sqlite:"); ok {
		d.dialect, driver = sqlstore.SQLite, "sqlite"
		dsn = file + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	}
	var err error
	d.db, err = sql.Open(driver, dsn)
	return d, err
}

// open connects, and makes the tables.
func open(ctx context.Context, url string) (*database, error) {
	d, err := connect(url, fmt.Sprintf("%08x", rand.Uint32()))
	if err != nil {
		return nil, err
	}
	store, err := d.store(ctx)
	if err == nil {
		err = store.Migrate(ctx)
	}
	if err == nil {
		_, err = d.db.ExecContext(ctx, "CREATE TABLE "+d.ledger()+" (payment VARCHAR(40) NOT NULL, amount INTEGER NOT NULL)")
	}
	if err != nil {
		return nil, errors.Join(err, d.db.Close())
	}
	return d, nil
}

func (d *database) ledger() string { return "ledger_example_" + d.suffix }
func (d *database) done() string   { return "ledger_done_" + d.suffix }

func (d *database) store(context.Context) (*sqlstore.Store, error) {
	return sqlstore.New(sqlstore.Config{DB: d.db, Dialect: d.dialect, Table: d.done()})
}

func (d *database) number(ctx context.Context, text string) (n int, err error) {
	err = d.db.QueryRowContext(ctx, text).Scan(&n)
	return n, err
}

func (d *database) booked(ctx context.Context, id string) (int, error) {
	return d.number(ctx, "SELECT count(*) FROM "+d.ledger()+" WHERE payment = '"+id+"'")
}

func (d *database) sum(ctx context.Context) (int, error) {
	return d.number(ctx, "SELECT coalesce(sum(amount), 0) FROM "+d.ledger())
}

// close drops what the run has made, also when it was interrupted.
func (d *database) close(ctx context.Context) error {
	ctx = context.WithoutCancel(ctx)
	var all []error
	for _, what := range []string{"VIEW " + d.done() + "_readable", "TABLE " + d.done() + "_version", "TABLE " + d.done(), "TABLE " + d.ledger()} {
		_, err := d.db.ExecContext(ctx, "DROP "+what)
		all = append(all, err)
	}
	return errors.Join(append(all, d.db.Close())...)
}
