package sqlstore

import (
	"errors"
	"reflect"
)

// kind is what a database's error means to a claim.
type kind uint8

const (
	other     kind = iota
	duplicate      // the row is there
	busy           // somebody holds what is needed
	again          // the transaction was given up by the server; a new one may succeed
)

// kindOf reads the codes that drivers give, by what their error types have in common:
// a package over database/sql that imported the drivers would bring all of them along.
func kindOf(err error) kind {
	for ; err != nil; err = errors.Unwrap(err) {
		if s, ok := err.(interface{ SQLState() string }); ok {
			switch s.SQLState() { // PostgreSQL: pgx, lib/pq
			case "23505":
				return duplicate
			case "55P03":
				return busy
			case "40001", "40P01":
				return again
			}
			return other
		}
		if c, ok := err.(interface{ Code() int }); ok {
			return sqliteKind(c.Code()) // modernc.org/sqlite
		}
		v := reflect.Indirect(reflect.ValueOf(err))
		if v.Kind() != reflect.Struct {
			continue
		}
		if n := v.FieldByName("Number"); n.IsValid() && n.CanUint() { // go-sql-driver/mysql
			switch n.Uint() {
			case 1062:
				return duplicate
			case 1205, 3572:
				return busy
			case 1213, 1020: // a deadlock's victim; MariaDB's "record has changed since last read"
				return again
			}
			return other
		}
		if c := v.FieldByName("Code"); c.IsValid() && c.CanInt() { // mattn/go-sqlite3
			return sqliteKind(int(c.Int()))
		}
	}
	return other
}

func sqliteKind(code int) kind {
	switch code & 0xff {
	case 5, 6: // BUSY, LOCKED
		return busy
	case 19: // CONSTRAINT
		return duplicate
	}
	return other
}
