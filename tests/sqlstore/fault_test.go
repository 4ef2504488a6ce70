package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// inTx runs a function as WithTx does in a handler.
func inTx(c dedupe.Claim, fn func(ctx context.Context, tx *sql.Tx) error) error {
	msg := message.NewMessage("", nil)
	msg.SetContext(c.Context())
	_, err := sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, _ *message.Message) ([]*message.Message, error) {
		return nil, fn(ctx, tx)
	})(msg)
	return err
}

// What is the handler's own fault counts, or the event would come again for ever: an
// error of its own while rows are open, which keep the connection from being looked at.
func TestOwnErrorWithRowsOpen(t *testing.T) {
	own := errors.New("validation failed")
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			db := newDatabase(t, kind).open(t)
			ledger(t, db)
			exec(t, db, "INSERT INTO ledger VALUES ('a', 1), ('b', 2)")
			c := mustClaim(t, newStore(t, db, kind), key("1"))
			err := inTx(c, func(ctx context.Context, tx *sql.Tx) error {
				rows, err := tx.QueryContext(ctx, "SELECT amount FROM ledger")
				if err != nil || !rows.Next() {
					t.Fatal(err)
				}
				return own
			})
			if !errors.Is(err, own) || errors.Is(err, dedupe.ErrRetryLater) {
				t.Errorf("error %v, want the handler's alone", err)
			}
			_ = c.Rollback(t.Context())
		})
	}
}

// A statement that takes longer than the server allows is repeated for ever otherwise.
func TestStatementThatTookTooLong(t *testing.T) {
	for kind, texts := range map[sqlstore.Dialect][2]string{
		sqlstore.Postgres: {"SET LOCAL statement_timeout = '50ms'", "SELECT pg_sleep(5)"},
		sqlstore.MySQL: {"SET @x = 1", "SET STATEMENT max_statement_time = 0.05 FOR SELECT * FROM ledger a, ledger b, ledger c, ledger d, " +
			"ledger e, ledger f, ledger g, ledger h ORDER BY RAND()"},
	} {
		t.Run(string(kind), func(t *testing.T) {
			db := newDatabase(t, kind).open(t)
			ledger(t, db)
			for i := range 30 {
				exec(t, db, fmt.Sprintf("INSERT INTO ledger VALUES ('x%d', 1)", i))
			}
			c := mustClaim(t, newStore(t, db, kind), key("1"))
			err := inTx(c, func(ctx context.Context, tx *sql.Tx) error {
				exec(t, tx, texts[0])
				_, err := tx.ExecContext(ctx, texts[1])
				return err
			})
			if err == nil || errors.Is(err, dedupe.ErrRetryLater) {
				t.Errorf("error %v, want one that counts", err)
			}
			_ = c.Rollback(t.Context())
		})
	}
}

// A record that the store had no time for is an outage, not the handler's fault.
func TestCommitAfterItsTime(t *testing.T) {
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			c := mustClaim(t, newStore(t, newDatabase(t, kind).open(t), kind), key("1"))
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if err := c.Commit(ctx, nil); err == nil || errors.Is(err, dedupe.ErrAborted) {
				t.Errorf("error %v, want one of an outage", err)
			}
		})
	}
}
