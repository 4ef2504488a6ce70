package main

import (
	"database/sql"
	"os"
	"path/filepath"
	"strings"

	_ "github.com/jackc/pgx/v5/stdlib" // the drivers
	_ "modernc.org/sqlite"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// maxInFlight is how many events are handled at once. Each holds a connection; the others are
// for requests and the outbox.
const (
	maxInFlight    = 8
	maxConnections = 2 * maxInFlight
)

// database is the one of the service: orders, outbox, bills, and what was handled.
type database struct {
	*sql.DB
	dialect sqlstore.Dialect
	folder  string // removed at the end
}

func openDatabase(url string) (*database, error) {
	d := &database{dialect: sqlstore.Postgres}
	if url == "" {
		var err error
		if d.folder, err = os.MkdirTemp("", "service-"); err != nil {
			return nil, err
		}
		url = sqlitePrefix + filepath.Join(d.folder, "service.db")
	}
	driver, dsn := "pgx", url
	if file, ok := strings.CutPrefix(url, sqlitePrefix); ok {
		d.dialect, driver = sqlstore.SQLite, "sqlite"
		dsn = file + "?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	}
	var err error
	if d.DB, err = sql.Open(driver, dsn); err != nil {
		return nil, err
	}
	d.SetMaxOpenConns(maxConnections)
	return d, nil
}

// Close also removes a database that was only for this run.
func (d *database) Close() error {
	err := d.DB.Close()
	if d.folder != "" {
		_ = os.RemoveAll(d.folder)
	}
	return err
}
