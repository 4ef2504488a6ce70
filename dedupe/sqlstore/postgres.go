package sqlstore

import (
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// Statement is one with its parameters.
type Statement struct {
	Text string
	Args []any
}

// PostgresStatements are those of a claim, for stores over another interface to
// PostgreSQL than database/sql: dedupe/pgxstore. table is as in [Config].
type PostgresStatements struct {
	// Insert makes the claim's row, as the first statement of its transaction. One row
	// affected: it is claimed. None: there is a record, or another transaction has the
	// claim.
	Insert Statement
	// Find tells whether a commit whose answer was lost was done: a row, or none.
	Find Statement

	text  statements
	id    []byte
	key   dedupe.Key
	token []byte
}

// PostgresClaim makes them.
func PostgresClaim(table string, k dedupe.Key, token string) (PostgresStatements, error) {
	cfg := Config{Dialect: Postgres, Table: table}
	if cfg.Table == "" {
		cfg.Table = DefaultTable
	}
	if err := checkTable(cfg.Table); err != nil {
		return PostgresStatements{}, err
	}
	p := PostgresStatements{text: cfg.statements(), id: idOf(k), key: k, token: []byte(token)}
	number, _ := lockOf(p.id)
	p.Insert = Statement{p.text.insert, []any{p.id, []byte(k.Namespace), []byte(k.Topic), []byte(k.Handler), []byte(k.Event), p.token, number}}
	p.Find = Statement{p.text.find, []any{p.id, p.token}}
	return p, nil
}

// Commit makes the record of the claim's row, as the last statement before COMMIT. One
// row affected, or the transaction is not the one that inserted it.
func (p PostgresStatements) Commit(o dedupe.Options, outputs [][]byte) Statement {
	return Statement{p.text.commit, commitArgs(p.key, p.id, o, storeutil.JoinOutputs(outputs))}
}

// commitArgs are the parameters of the statement that makes the record.
func commitArgs(k dedupe.Key, id []byte, o dedupe.Options, outputs []byte) []any {
	return []any{
		o.Retention.Milliseconds(), nullable(storeutil.Digest(o.Fingerprint)), nullable(outputs), groupColumn(k.Namespace, o.Group), id, []byte(o.Token),
	}
}
