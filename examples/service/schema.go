package main

import (
	"context"
	"database/sql"
	"errors"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// Tables of the service; the outbox and the store bring theirs. A service that lives longer
// keeps its migrations in files, by goose or the like (sqlstore.Migrations has the store's).
const (
	ordersTable = `CREATE TABLE IF NOT EXISTS orders (
		id          TEXT PRIMARY KEY,
		request_key TEXT NOT NULL UNIQUE,
		customer    TEXT NOT NULL,
		amount      BIGINT NOT NULL,
		placed_at   TEXT NOT NULL
	)`
	billsTable = `CREATE TABLE IF NOT EXISTS bills (
		order_id TEXT NOT NULL,
		customer TEXT NOT NULL,
		amount   BIGINT NOT NULL
	)`
	billsIndex = `CREATE INDEX IF NOT EXISTS bills_of_order ON bills (order_id)`
)

// migrateLock keeps instances that start at once apart: in PostgreSQL two CREATE TABLE IF NOT
// EXISTS at the same time may fail. It is a number that nobody else uses.
const migrateLock = "SELECT pg_advisory_xact_lock(4711080001)"

func (d *database) migrate(ctx context.Context, outboxTable string) (err error) {
	tx, err := d.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() {
		if rollback := tx.Rollback(); !errors.Is(rollback, sql.ErrTxDone) { // as it is after a commit
			err = errors.Join(err, rollback)
		}
	}()
	statements := []string{ordersTable, billsTable, billsIndex, outboxTable}
	if d.dialect == sqlstore.Postgres {
		statements = append([]string{migrateLock}, statements...)
	}
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return tx.Commit()
}
