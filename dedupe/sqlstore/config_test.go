package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"reflect"
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
			t.Errorf("error %v does not tell %q", err, want)
		}
	}
	for _, table := range []string{"", "done", "shop.done", "_d1"} {
		if _, err := New(Config{DB: db, Dialect: MySQL, Table: table}); err != nil {
			t.Errorf("table %q: %v", table, err)
		}
	}
}

func TestParametersAreNumbered(t *testing.T) {
	cfg := Config{Dialect: Postgres, Table: "done"}
	if text := cfg.statements().commit; strings.Contains(text, "?") || !strings.Contains(text, "$6") {
		t.Error(text)
	}
	cfg.Dialect = SQLite
	if text := cfg.statements().commit; strings.Contains(text, "$") || strings.Count(text, "?") != 6 {
		t.Error(text)
	}
	for kind := range dialects {
		cfg.Dialect = kind
		for _, text := range append(cfg.migration(), cfg.statements().list) {
			if strings.Contains(text, "{") || strings.Contains(text, "--") {
				t.Errorf("%s: %s", kind, text)
			}
		}
	}
}

type stateError string

func (e stateError) Error() string    { return string(e) }
func (e stateError) SQLState() string { return string(e) }

type codeError int

func (e codeError) Error() string { return fmt.Sprint(int(e)) }
func (e codeError) Code() int     { return int(e) }

type mysqlError struct{ Number uint16 }

func (e *mysqlError) Error() string { return fmt.Sprint(e.Number) }

type cgoError struct{ Code int }

func (e cgoError) Error() string { return fmt.Sprint(e.Code) }

// nestedError has the field of a driver's behind a nil pointer.
type nestedError struct{ *cgoError }

func (nestedError) Error() string { return "nested" }

// The real drivers' errors are seen in tests/sqlstore; these have their shapes.
func TestKindsOfErrors(t *testing.T) {
	for _, foreign := range []error{codeError(5), &mysqlError{1213}, cgoError{6}, nestedError{}} {
		if got := kindOf(foreign); got != unanswered {
			t.Errorf("%T of no driver is %d", foreign, got)
		}
	}
	before := driverOf
	defer func() { driverOf = before }()
	driverOf = func(v reflect.Value) string {
		switch v.Interface().(type) {
		case codeError:
			return "modernc.org/sqlite"
		case mysqlError:
			return "github.com/go-sql-driver/mysql"
		case cgoError:
			return "example.com/vendor/github.com/mattn/go-sqlite3"
		}
		return before(v)
	}
	if got := kindOf(errors.Join(errors.New("no code"), &mysqlError{1213})); got != again {
		t.Errorf("joined: %d", got)
	}
	for err, want := range map[error]kind{
		stateError("23505"):         duplicate,
		stateError("40001"):         again,
		stateError("40P01"):         again,
		stateError("55P03"):         busy,
		stateError("42P01"):         noTable,
		stateError("3F000"):         noTable,
		stateError("42703"):         noColumn,
		stateError("42501"):         noRight,
		stateError("28P01"):         noLogin,
		stateError("42601"):         fault,
		stateError("25P02"):         fault, // a failed statement was swallowed
		stateError("23503"):         fault,
		stateError("P0001"):         fault,
		stateError("57P01"):         away, // shutdown
		stateError("25P03"):         away,
		stateError("57014"):         fault, // a statement took too long
		&mysqlError{1969}:           fault,
		stateError("53100"):         away, // disk full
		stateError("53300"):         away, // too many connections
		stateError("57P03"):         away, // starting up
		stateError("25006"):         away, // read-only
		&mysqlError{1040}:           away,
		&mysqlError{1203}:           away,
		&mysqlError{1290}:           away,
		&mysqlError{1792}:           away,
		&mysqlError{1146}:           noTable,
		&mysqlError{1054}:           noColumn,
		&mysqlError{1142}:           noRight,
		&mysqlError{1045}:           noLogin,
		codeError(5):                busy,
		codeError(517):              busy, // SQLITE_BUSY_SNAPSHOT
		codeError(1555):             duplicate,
		codeError(787):              duplicate, // of a foreign key
		codeError(1):                fault,
		codeError(13):               away,
		codeError(18):               tooLarge,
		&mysqlError{1062}:           duplicate,
		&mysqlError{1213}:           again,
		&mysqlError{1205}:           busy,
		&mysqlError{1064}:           fault,
		&mysqlError{1927}:           away,
		&mysqlError{1153}:           tooLarge,
		cgoError{6}:                 busy,
		errors.New("no code"):       unanswered,
		context.DeadlineExceeded:    unanswered,
		&driverError{"wrapped too"}: unanswered,
	} {
		if got := kindOf(fmt.Errorf("claim: %w", err)); got != want {
			t.Errorf("%T %v is %d, want %d", err, err, got, want)
		}
	}
	if kindOf(nil) != unanswered {
		t.Error("nil")
	}
}

type driverError struct{ text string }

func (e *driverError) Error() string { return e.text }
