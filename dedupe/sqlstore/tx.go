package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// ErrNoTx: there is no transaction on the context: the handler is not wrapped by a
// middleware.Once with this store, or was called after its transaction had ended.
var ErrNoTx = errors.New("sqlstore: no transaction on the context")

type txKey struct{}

// TxFrom returns the transaction that the running handler's record is part of. It is
// committed or rolled back after the handler has returned, by neither it nor you.
func TxFrom(ctx context.Context) (*sql.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(*sql.Tx)
	return tx, ok
}

// WithTx makes a handler of a function that is given the transaction, so that it can't
// be forgotten:
//
//	once.Handler(sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) { ... }))
//
// Return the error of a failed statement. One that is swallowed is found before the
// record is made, and the run counts as failed, where the database has given up the
// transaction: always in PostgreSQL, in MySQL and MariaDB for a deadlock. Any other
// failed statement ends alone in MySQL, MariaDB and SQLite, a wait for a lock that took
// too long among them: the transaction goes on without its effect, and so does the
// record, unless the function returns the error.
//
// An error of the function counts as its failure, except when the session was lost
// meanwhile, as by a restart of the database: then it also matches
// dedupe.ErrRetryLater. A statement that ran into a time-out of the function's own
// counts as failed.
func WithTx(fn func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, ok := TxFrom(ctx)
		if !ok {
			return nil, ErrNoTx
		}
		produced, err := fn(ctx, tx, msg)
		if err != nil && isLost(ctx, tx, err) {
			return nil, fmt.Errorf("sqlstore: %w: %w", dedupe.ErrRetryLater, err)
		}
		return produced, err
	}
}

// lookWithin bounds the look at a session after something has failed.
const lookWithin = time.Second

// isLost tells that a handler failed because its session was lost, or the database can't
// now. A context of the handler's own that ended may close the session too, and is its
// fault.
func isLost(ctx context.Context, tx *sql.Tx, err error) bool {
	if k := kindOf(err); k != unanswered {
		return k == away
	}
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) || errors.Is(err, sql.ErrTxDone) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	_, look := tx.ExecContext(ctx, "SELECT 1")
	return look != nil && !IsFault(look) && !errors.Is(look, sql.ErrTxDone)
}
