package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// fake is a database that says yes to everything but refuses the statements that begin
// with refuse.
type fake struct {
	refuse         string
	opened, closed int
	log            []string
}

func (f *fake) Connect(context.Context) (driver.Conn, error) {
	f.opened++
	return &fakeConn{f}, nil
}
func (f *fake) Driver() driver.Driver { return nil }

type fakeConn struct{ *fake }

func (c *fakeConn) Close() error                        { c.closed++; return nil }
func (c *fakeConn) Begin() (driver.Tx, error)           { return c, nil }
func (c *fakeConn) Prepare(string) (driver.Stmt, error) { return nil, errors.New("not prepared") }
func (c *fakeConn) Commit() error                       { return nil }
func (c *fakeConn) Rollback() error                     { return nil }

func (c *fakeConn) BeginTx(context.Context, driver.TxOptions) (driver.Tx, error) { return c, nil }

func (c *fakeConn) ExecContext(_ context.Context, text string, _ []driver.NamedValue) (driver.Result, error) {
	c.log = append(c.log, text)
	if c.refuse != "" && strings.HasPrefix(text, c.refuse) {
		return nil, errors.New("refused")
	}
	return driver.RowsAffected(1), nil
}

func (c *fakeConn) QueryContext(context.Context, string, []driver.NamedValue) (driver.Rows, error) {
	return &oneRow{values: []driver.Value{int64(1), "name", int64(1), int64(1)}}, nil
}

type oneRow struct{ values []driver.Value }

func (r *oneRow) Columns() []string { return make([]string, len(r.values)) }
func (r *oneRow) Close() error      { return nil }
func (r *oneRow) Next(into []driver.Value) error {
	if r.values == nil {
		return io.EOF
	}
	copy(into, r.values)
	r.values = nil
	return nil
}

// A connection that could not be put back as it was must not get into other hands: it
// would go on without autocommit, or with the lock.
func TestConnectionThatCantBePutBackIsClosed(t *testing.T) {
	for refuse, want := range map[string]int{"": 0, "ROLLBACK": 1, "SET autocommit = 1": 1, "DO RELEASE_LOCK": 1} {
		f := &fake{refuse: refuse}
		db := sql.OpenDB(f)
		s, err := New(Config{DB: db, Dialect: MySQL})
		if err != nil {
			t.Fatal(err)
		}
		c, err := s.Claim(t.Context(), dedupe.Key{Namespace: "n", Event: "e"},
			dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Minute, Retention: time.Hour})
		if err != nil || c.State() != dedupe.StateClaimed {
			t.Fatal(c, err)
		}
		if err := c.Rollback(t.Context()); err != nil {
			t.Fatal(err)
		}
		if f.closed != want {
			t.Errorf("%q refused: %d of %d connections closed, want %d; sent %q", refuse, f.closed, f.opened, want, f.log)
		}
		if err := errors.Join(s.Close(), db.Close()); err != nil {
			t.Error(err)
		}
	}
}
