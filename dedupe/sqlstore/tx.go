package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
)

// ErrNoTx means that there is no transaction on the context: the handler is not wrapped by a
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
// What ends the transaction behind the store's back leaves effects without a record, and
// they are there again after the next delivery: in MySQL and MariaDB a statement that
// commits implicitly (CREATE, ALTER, TRUNCATE, LOCK TABLES); in SQLite, after the error
// was swallowed, INSERT OR ROLLBACK, RAISE(ROLLBACK) and a write whose context has ended.
//
// An error of the function counts as its failure, except when the session was lost
// meanwhile, as by a restart of the database, and the function returns the driver's
// error or wraps it: then it also matches dedupe.ErrRetryLater. A statement that took too
// long, for the server or for a context of the function's own, counts as failed. One
// above MySQL's max_allowed_packet can look like a lost session: keep the driver's limit
// at or below the server's.
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

// lookWithin bounds the look at a session after something has failed. An answer that
// comes later makes an outage of the handler's failure.
const lookWithin = 5 * time.Second

// isLost reports that a handler failed because its session was lost, or the database can't
// now. A context of the handler's own that ended may close the session too, and is its
// fault.
func isLost(ctx context.Context, tx *sql.Tx, err error) bool {
	if k := sqlrecord.KindOf(err); k != sqlrecord.Unanswered {
		return k == sqlrecord.Away
	}
	// With rows left open the look would fail as well; an error of the handler's own says
	// nothing about the session.
	if ctx.Err() != nil || !isOfTheLink(err) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	_, look := tx.ExecContext(ctx, "SELECT 1")
	return look != nil && !sqlrecord.IsFault(look) && !errors.Is(look, sql.ErrTxDone)
}

// isOfTheLink reports that an error is one that drivers give when a connection fails.
func isOfTheLink(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false // net.Error as well, but of the handler's own
	}
	for _, target := range []error{driver.ErrBadConn, sql.ErrConnDone, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed} {
		if errors.Is(err, target) {
			return true
		}
	}
	var network net.Error
	return errors.As(err, &network) || strings.Contains(err.Error(), "invalid connection") || strings.Contains(err.Error(), "conn closed")
}
