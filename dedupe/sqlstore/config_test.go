package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"strings"
	"testing"
)

// noDriver is enough for a *sql.DB that nobody asks.
type noDriver struct{}

func (noDriver) Connect(context.Context) (driver.Conn, error) { return nil, errors.New("none") }
func (noDriver) Driver() driver.Driver                        { return nil }

func TestConfig(t *testing.T) {
	db := sql.OpenDB(noDriver{})
	defer db.Close()
	for want, cfg := range map[string]Config{
		"DB is nil": {Dialect: Postgres},
		"Dialect":   {DB: db},
		`"oracle"`:  {DB: db, Dialect: "oracle"},
		"Table":     {DB: db, Dialect: SQLite, Table: "done; DROP TABLE ledger"},
	} {
		if _, err := New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	for _, table := range []string{"", "done", "shop.done", "_d1"} {
		if _, err := New(Config{DB: db, Dialect: MySQL, Table: table}); err != nil {
			t.Errorf("table %q: %v", table, err)
		}
	}
}
