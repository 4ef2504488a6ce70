package sqlstore_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"time"
)

// fakeDB is as much of a database as the example needs: it knows the statements of the store
// and of a ledger by their first words. The real ones are in tests/sqlstore.
type fakeDB struct {
	mu     sync.Mutex
	done   map[string][]driver.Value // by ID: namespace, topic, ... as SELECT has them
	ledger int
}

func openDB() *sql.DB { return sql.OpenDB(&fakeDB{done: make(map[string][]driver.Value)}) }

func (db *fakeDB) Connect(context.Context) (driver.Conn, error) { return &fakeConn{db: db}, nil }
func (db *fakeDB) Driver() driver.Driver                        { return nil }

// fakeConn has what its transaction does when it commits.
type fakeConn struct {
	db     *fakeDB
	claim  []driver.Value
	effect []func()
}

func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }
func (c *fakeConn) Close() error                        { return nil }
func (c *fakeConn) Begin() (driver.Tx, error)           { return c, nil }
func (c *fakeConn) Rollback() error                     { c.effect = nil; return nil }

func (c *fakeConn) Commit() error {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	for _, effect := range c.effect {
		effect()
	}
	c.effect = nil
	return nil
}

func (c *fakeConn) ExecContext(_ context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	values := make([]driver.Value, len(args))
	for i, arg := range args {
		values[i] = arg.Value
	}
	switch {
	case strings.HasPrefix(text, "INSERT INTO ledger"):
		c.effect = append(c.effect, func() { c.db.ledger++ })
	case strings.HasPrefix(text, "INSERT INTO idempotent_done"):
		if _, ok := c.db.done[string(values[0].([]byte))]; ok {
			return driver.RowsAffected(0), nil
		}
		c.claim = values
	case strings.HasPrefix(text, "UPDATE idempotent_done SET committed_at"):
		now := time.Now().UnixMilli()
		row := append(slices.Clone(c.claim[1:6]), now, now+values[0].(int64), values[1], values[2], values[3], values[3] != nil, now)
		c.effect = append(c.effect, func() { c.db.done[string(values[4].([]byte))] = row })
	}
	return driver.RowsAffected(1), nil
}

func (c *fakeConn) QueryContext(_ context.Context, text string, args []driver.NamedValue) (driver.Rows, error) {
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	switch {
	case strings.Contains(text, "FROM ledger"):
		return &fakeRow{[]driver.Value{int64(c.db.ledger)}}, nil
	case strings.HasPrefix(text, "SELECT namespace"):
		return &fakeRow{c.db.done[string(args[0].Value.([]byte))]}, nil
	}
	return &fakeRow{[]driver.Value{int64(1)}}, nil // busy_timeout, the column that is there
}

// fakeRow is one row, or none.
type fakeRow struct{ values []driver.Value }

func (r *fakeRow) Columns() []string { return make([]string, len(r.values)) }
func (r *fakeRow) Close() error      { return nil }

func (r *fakeRow) Next(into []driver.Value) error {
	if r.values == nil {
		return io.EOF
	}
	copy(into, r.values)
	r.values = nil
	return nil
}
