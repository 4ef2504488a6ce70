package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/ThreeDotsLabs/watermill/message"
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
// Return the error of a failed statement: a deadlock's victim has lost all that it had
// written. One that is swallowed is found before the record is made, and the run counts
// as failed.
func WithTx(fn func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error)) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		tx, ok := TxFrom(msg.Context())
		if !ok {
			return nil, ErrNoTx
		}
		return fn(msg.Context(), tx, msg)
	}
}
