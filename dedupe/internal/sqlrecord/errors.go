package sqlrecord

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// Kind is what a database's error means to a claim.
type Kind uint8

// The kinds.
const (
	Unanswered Kind = iota // by the link, the context or the driver: nobody knows
	Duplicate              // the row is there
	Busy                   // somebody holds what is needed
	Again                  // the transaction was given up by the server; a new one may succeed
	Away                   // the server can't now: it ends the session, or lacks what it needs
	TooLarge               // for the server
	NoTable                // what an operator must mend, see Explain
	NoColumn
	NoRight
	NoLogin
	Fault // any other answer
)

// IsFault reports that the database has answered with this error, and that what it
// complains of is the transaction: a constraint, a deadlock, a lock that another has, a
// statement before it that failed, a statement that took too long. It is false for an
// error of the link, the context or the driver, and for an answer about the state of the
// server, such as a shutdown.
func IsFault(err error) bool {
	k := KindOf(err)
	return k != Unanswered && k != Away
}

// KindOf reads the codes that drivers give, by what their error types have in common:
// a package over database/sql that imported the drivers would bring all of them along.
// Types of other packages may have fields of the same names: they don't count.
func KindOf(err error) Kind {
	if err == nil {
		return Unanswered
	}
	if k := ownKind(err); k != Unanswered {
		return k
	}
	switch u := err.(type) { //nolint:errorlint // this is the walk through what an error wraps
	case interface{ Unwrap() error }:
		return KindOf(u.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if k := KindOf(e); k != Unanswered {
				return k
			}
		}
	}
	return Unanswered
}

// driverOf is the package that an error's type is of.
var driverOf = func(v reflect.Value) string { return v.Type().PkgPath() }

func ownKind(err error) Kind {
	if s, ok := err.(interface{ SQLState() string }); ok {
		return postgresKind(s.SQLState()) // pgx, lib/pq
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if !v.IsValid() {
		return Unanswered
	}
	from := driverOf(v)
	isSQLite, isMySQL := strings.Contains(from, "sqlite"), strings.Contains(from, "mysql")
	if c, ok := err.(interface{ Code() int }); ok && isSQLite {
		return sqliteKind(c.Code(), err.Error()) // modernc.org/sqlite
	}
	if v.Kind() != reflect.Struct {
		return Unanswered
	}
	if isMySQL { // go-sql-driver/mysql
		if n := v.FieldByName("Number"); n.IsValid() && n.CanUint() {
			return mysqlKind(n.Uint())
		}
	}
	if isSQLite { // mattn/go-sqlite3
		if c := v.FieldByName("Code"); c.IsValid() && c.CanInt() {
			return sqliteKind(int(c.Int()), err.Error())
		}
	}
	return Unanswered
}

func postgresKind(state string) Kind {
	switch state {
	case "23505":
		return Duplicate
	case "55P03":
		return Busy
	case "40001", "40P01":
		return Again
	case "25P03", "25P04": // a time-out for the transaction, which ends the session
		return Away
	case "25006": // read-only: a server that is a replica since a failover
		return Away
	case "57014": // a statement was cancelled, or took too long; the session goes on
		return Fault
	case "42P01", "3F000": // no table, no schema
		return NoTable
	case "42703":
		return NoColumn
	case "42501":
		return NoRight
	case "28000", "28P01", "3D000": // user, password, database
		return NoLogin
	}
	// Connection; resources; an operator, among them a shutdown; the system.
	for _, class := range []string{"08", "53", "57", "58"} {
		if strings.HasPrefix(state, class) {
			return Away
		}
	}
	return Fault
}

func mysqlKind(number uint64) Kind {
	switch number {
	case 1062:
		return Duplicate
	case 1205, 3572:
		return Busy
	case 1213, 1020: // a deadlock's victim; MariaDB's "record has changed since last read"
		return Again
	case 1153:
		return TooLarge
	case 1053, 1927, 3169, 4031, // shutdown, killed, idle for too long
		1158, 1159, 1160, 1161, // the network
		1040, 1203, 1226, // too many connections
		1021, 1037, 1038, 1041, 1114, 1206, // disk, memory, tables of locks
		1290, 1792, 1836, 1047: // read-only after a failover; a node that has left its cluster
		return Away
	case 1146:
		return NoTable
	case 1054:
		return NoColumn
	case 1142, 1143, 1227:
		return NoRight
	case 1044, 1045, 1049, 1698: // user, password, database
		return NoLogin
	}
	return Fault
}

// sqliteKind needs the text for what has no code of its own.
func sqliteKind(code int, text string) Kind {
	switch code & 0xff {
	case 1:
		if strings.Contains(text, "no such table") {
			return NoTable
		}
		if strings.Contains(text, "no such column") || strings.Contains(text, "has no column named") {
			return NoColumn
		}
	case 5, 6: // BUSY, LOCKED
		return Busy
	case 19: // CONSTRAINT
		return Duplicate
	case 7, 8, 9, 10, 13, 14, 15: // NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL
		return Away
	case 18: // TOOBIG
		return TooLarge
	}
	return Fault
}

// Explain wraps an error of the database after which nothing works before an operator has
// done something about it: the result matches dedupe.ErrRefused and says what. Any other
// it returns as it is.
func Explain(dialect, table string, err error) error {
	if errors.Is(err, dedupe.ErrRefused) {
		return err
	}
	var what string
	switch KindOf(err) {
	case NoTable:
		what = fmt.Sprintf("table %s does not exist: call Store.Migrate once, or apply the files of sqlstore.Migrations for %s", table, dialect)
	case NoColumn:
		what = fmt.Sprintf("table %s is of an older version: call Store.Migrate once", table)
	case NoRight:
		what = fmt.Sprintf("the user lacks a right: GRANT SELECT, INSERT, UPDATE, DELETE ON %s TO the user", table)
	case NoLogin:
		what = "the database does not let the user in: see the DSN"
	default:
		return err
	}
	return fmt.Errorf("%w: %s: %w", dedupe.ErrRefused, what, err)
}
