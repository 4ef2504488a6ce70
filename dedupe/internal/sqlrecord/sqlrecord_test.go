package sqlrecord

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
)

func TestParametersAreNumbered(t *testing.T) {
	if text := New(Postgres, "done").Commit; strings.Contains(text, "?") || !strings.Contains(text, "$6") {
		t.Error(text)
	}
	if text := New(SQLite, "done").Commit; strings.Contains(text, "$") || strings.Count(text, "?") != 6 {
		t.Error(text)
	}
	for dialect := range dialects {
		if text := New(dialect, "done").List; strings.Contains(text, "{") || strings.Contains(text, "--") {
			t.Errorf("%s: %s", dialect, text)
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
		if got := KindOf(foreign); got != Unanswered {
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
	if got := KindOf(errors.Join(errors.New("no code"), &mysqlError{1213})); got != Again {
		t.Errorf("joined: %d", got)
	}
	for err, want := range map[error]Kind{
		stateError("23505"):         Duplicate,
		stateError("40001"):         Again,
		stateError("40P01"):         Again,
		stateError("55P03"):         Busy,
		stateError("42P01"):         NoTable,
		stateError("3F000"):         NoTable,
		stateError("42703"):         NoColumn,
		stateError("42501"):         NoRight,
		stateError("28P01"):         NoLogin,
		stateError("42601"):         Fault,
		stateError("25P02"):         Fault, // a failed statement was swallowed
		stateError("23503"):         Fault,
		stateError("P0001"):         Fault,
		stateError("57P01"):         Away, // shutdown
		stateError("25P03"):         Away,
		stateError("57014"):         Fault, // a statement took too long
		&mysqlError{1969}:           Fault,
		stateError("53100"):         Away, // disk full
		stateError("53300"):         Away, // too many connections
		stateError("57P03"):         Away, // starting up
		stateError("25006"):         Away, // read-only
		&mysqlError{1040}:           Away,
		&mysqlError{1203}:           Away,
		&mysqlError{1290}:           Away,
		&mysqlError{1792}:           Away,
		&mysqlError{1146}:           NoTable,
		&mysqlError{1054}:           NoColumn,
		&mysqlError{1142}:           NoRight,
		&mysqlError{1045}:           NoLogin,
		codeError(5):                Busy,
		codeError(517):              Busy, // SQLITE_BUSY_SNAPSHOT
		codeError(1555):             Duplicate,
		codeError(787):              Duplicate, // of a foreign key
		codeError(1):                Fault,
		codeError(13):               Away,
		codeError(18):               TooLarge,
		&mysqlError{1062}:           Duplicate,
		&mysqlError{1213}:           Again,
		&mysqlError{1205}:           Busy,
		&mysqlError{1064}:           Fault,
		&mysqlError{1927}:           Away,
		&mysqlError{1153}:           TooLarge,
		cgoError{6}:                 Busy,
		errors.New("no code"):       Unanswered,
		context.DeadlineExceeded:    Unanswered,
		&driverError{"wrapped too"}: Unanswered,
	} {
		if got := KindOf(fmt.Errorf("claim: %w", err)); got != want {
			t.Errorf("%T %v is %d, want %d", err, err, got, want)
		}
	}
	if KindOf(nil) != Unanswered {
		t.Error("nil")
	}
}

type driverError struct{ text string }

func (e *driverError) Error() string { return e.text }
