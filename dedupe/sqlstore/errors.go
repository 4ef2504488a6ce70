package sqlstore

import (
	"reflect"
	"strings"
)

// kind is what a database's error means to a claim.
type kind uint8

const (
	unanswered kind = iota // by the link, the context or the driver: nobody knows
	duplicate              // the row is there
	busy                   // somebody holds what is needed
	again                  // the transaction was given up by the server; a new one may succeed
	away                   // the server can't now: it ends the session, or lacks what it needs
	tooLarge               // for the server
	noTable                // what an operator must mend, see Explain
	noColumn
	noRight
	noLogin
	fault // any other answer
)

// IsFault tells that the database has answered with this error, and that what it
// complains of is the transaction: a constraint, a deadlock, a lock that another has, a
// statement before it that failed, a statement that took too long. It is false for an
// error of the link, the context or the driver, and for an answer about the state of the
// server, such as a shutdown.
func IsFault(err error) bool {
	k := kindOf(err)
	return k != unanswered && k != away
}

// kindOf reads the codes that drivers give, by what their error types have in common:
// a package over database/sql that imported the drivers would bring all of them along.
// Types of other packages may have fields of the same names: they don't count.
func kindOf(err error) kind {
	if err == nil {
		return unanswered
	}
	if k := ownKind(err); k != unanswered {
		return k
	}
	switch u := err.(type) { //nolint:errorlint // this is the walk through what an error wraps
	case interface{ Unwrap() error }:
		return kindOf(u.Unwrap())
	case interface{ Unwrap() []error }:
		for _, e := range u.Unwrap() {
			if k := kindOf(e); k != unanswered {
				return k
			}
		}
	}
	return unanswered
}

// driverOf is the package that an error's type is of.
var driverOf = func(v reflect.Value) string { return v.Type().PkgPath() }

func ownKind(err error) kind {
	if s, ok := err.(interface{ SQLState() string }); ok {
		return postgresKind(s.SQLState()) // pgx, lib/pq
	}
	v := reflect.Indirect(reflect.ValueOf(err))
	if !v.IsValid() {
		return unanswered
	}
	from := driverOf(v)
	isSQLite, isMySQL := strings.Contains(from, "sqlite"), strings.Contains(from, "mysql")
	if c, ok := err.(interface{ Code() int }); ok && isSQLite {
		return sqliteKind(c.Code(), err.Error()) // modernc.org/sqlite
	}
	if v.Kind() != reflect.Struct {
		return unanswered
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
	return unanswered
}

func postgresKind(state string) kind {
	switch state {
	case "23505":
		return duplicate
	case "55P03":
		return busy
	case "40001", "40P01":
		return again
	case "25P03", "25P04": // a time-out for the transaction, which ends the session
		return away
	case "25006": // read-only: a server that is a replica since a failover
		return away
	case "57014": // a statement was cancelled, or took too long; the session goes on
		return fault
	case "42P01", "3F000": // no table, no schema
		return noTable
	case "42703":
		return noColumn
	case "42501":
		return noRight
	case "28000", "28P01", "3D000": // user, password, database
		return noLogin
	}
	// Connection; resources; an operator, among them a shutdown; the system.
	for _, class := range []string{"08", "53", "57", "58"} {
		if strings.HasPrefix(state, class) {
			return away
		}
	}
	return fault
}

func mysqlKind(number uint64) kind {
	switch number {
	case 1062:
		return duplicate
	case 1205, 3572:
		return busy
	case 1213, 1020: // a deadlock's victim; MariaDB's "record has changed since last read"
		return again
	case 1153:
		return tooLarge
	case 1053, 1927, 3169, 4031, // shutdown, killed, idle for too long
		1158, 1159, 1160, 1161, // the network
		1040, 1203, 1226, // too many connections
		1021, 1037, 1038, 1041, 1114, 1206, // disk, memory, tables of locks
		1290, 1792, 1836, 1047: // read-only after a failover; a node that has left its cluster
		return away
	case 1146:
		return noTable
	case 1054:
		return noColumn
	case 1142, 1143, 1227:
		return noRight
	case 1044, 1045, 1049, 1698: // user, password, database
		return noLogin
	}
	return fault
}

// sqliteKind needs the text for what has no code of its own.
func sqliteKind(code int, text string) kind {
	switch code & 0xff {
	case 1:
		if strings.Contains(text, "no such table") {
			return noTable
		}
		if strings.Contains(text, "no such column") || strings.Contains(text, "has no column named") {
			return noColumn
		}
	case 5, 6: // BUSY, LOCKED
		return busy
	case 19: // CONSTRAINT
		return duplicate
	case 7, 8, 9, 10, 13, 14, 15: // NOMEM, READONLY, INTERRUPT, IOERR, FULL, CANTOPEN, PROTOCOL
		return away
	case 18: // TOOBIG
		return tooLarge
	}
	return fault
}
