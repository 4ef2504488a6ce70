package pgxstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// ErrNoTx means that there is no transaction on the context: the handler is not wrapped by a
// middleware.Once with this store, or was called after its transaction had ended.
var ErrNoTx = errors.New("pgxstore: no transaction on the context")

type txKey struct{}

// TxFrom returns the transaction that the running handler's record is part of. It is
// committed or rolled back after the handler has returned, by neither it nor you.
func TxFrom(ctx context.Context) (pgx.Tx, bool) {
	tx, ok := ctx.Value(txKey{}).(pgx.Tx)
	return tx, ok
}

// WithTx makes a handler of a function that is given the transaction, so that it can't
// be forgotten. Return the error of a failed statement; one that is swallowed is found
// before the record is made, and the run counts as failed.
//
// An error of the function counts as its failure, except when the session was lost
// meanwhile, as by a restart of the database: then it also matches
// dedupe.ErrRetryLater. A statement that ran into a time-out of the function's own
// counts as failed.
func WithTx(fn func(ctx context.Context, tx pgx.Tx, msg *message.Message) ([]*message.Message, error)) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		ctx := msg.Context()
		tx, ok := TxFrom(ctx)
		if !ok {
			return nil, ErrNoTx
		}
		produced, err := fn(ctx, tx, msg)
		if err != nil && isLost(ctx, tx, err) {
			return nil, fmt.Errorf("pgxstore: %w: %w", dedupe.ErrRetryLater, err)
		}
		return produced, err
	}
}

// lookWithin bounds the look at a session after the handler has failed. An answer that
// comes later makes an outage of the handler's failure.
const lookWithin = 5 * time.Second

// isLost reports that a handler failed because its session was lost, or the database can't
// now. A context of the handler's own that ended closes the session too, and is its fault.
func isLost(ctx context.Context, tx pgx.Tx, err error) bool {
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		return !sqlrecord.IsFault(err)
	}
	if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lookWithin)
	defer cancel()
	return tx.Conn().Ping(ctx) != nil && tx.Conn().IsClosed()
}

// waiting is a claim that another holds.
type waiting struct {
	ctx context.Context //nolint:containedctx // as in the interface
}

func inProgress(ctx context.Context) dedupe.Claim { return waiting{ctx} }

func (waiting) State() dedupe.State            { return dedupe.StateInProgress }
func (waiting) Info() dedupe.ClaimInfo         { return dedupe.ClaimInfo{} }
func (w waiting) Context() context.Context     { return w.ctx }
func (waiting) Outputs() [][]byte              { return nil }
func (waiting) Rollback(context.Context) error { return nil }
func (waiting) Settle(context.Context) error   { return nil }
func (waiting) Commit(context.Context, [][]byte) error {
	return fmt.Errorf("pgxstore: commit: %w: state is %v", dedupe.ErrInvalid, dedupe.StateInProgress)
}

// claim is one that is held.
type claim struct {
	store   *Store
	key     dedupe.Key
	id      []byte
	options dedupe.ClaimOptions
	ctx     context.Context //nolint:containedctx // a claim carries the context to run under
	cancel  context.CancelCauseFunc

	mu        sync.Mutex
	tx        pgx.Tx // nil once it has ended
	committed bool
	lost      error
}

func (c *claim) State() dedupe.State      { return dedupe.StateClaimed }
func (c *claim) Info() dedupe.ClaimInfo   { return dedupe.ClaimInfo{} }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Outputs() [][]byte        { return nil }

// Commit implements dedupe.Claim.
func (c *claim) Commit(ctx context.Context, outputs [][]byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.committed:
		return nil
	case c.lost != nil:
		return c.lost
	case c.tx == nil:
		return fmt.Errorf("pgxstore: commit: %w: it was rolled back", dedupe.ErrLeaseLost)
	}
	defer c.end(ctx, nil)
	args := sqlrecord.CommitArgs(c.key, c.id, c.options, storeutil.JoinOutputs(outputs))
	tag, err := c.tx.Exec(ctx, c.store.text.Commit, args...)
	if err != nil || tag.RowsAffected() != 1 {
		return fmt.Errorf("pgxstore: commit %s: %w", c.key, c.notRecorded(ctx, err))
	}
	if err := c.tx.Commit(ctx); err != nil {
		if err = c.notCommitted(ctx, err); err != nil {
			return fmt.Errorf("pgxstore: commit %s: %w", c.key, err)
		}
	}
	c.committed = true
	return nil
}

// notRecorded says whose fault it is that the record's own statement has failed, or has
// found no row. Nothing can have been committed.
func (c *claim) notRecorded(ctx context.Context, err error) error {
	var answer *pgconn.PgError
	switch refused := c.store.explain(err); {
	case errors.Is(refused, dedupe.ErrRefused):
		return refused
	case errors.As(err, &answer):
		if !sqlrecord.IsFault(err) || givenUp(err) { // the server can't now, or others were in the way
			return err
		}
	case err != nil && (ctx.Err() != nil || c.tx.Conn().IsClosed()):
		return err
	}
	// On a session that stands it is the fault of the handler, which may also have left its
	// rows open.
	return errors.Join(dedupe.ErrAborted, err)
}

// notCommitted looks what became of a COMMIT that failed: its answer may have been lost
// after it was done. nil: it is recorded.
func (c *claim) notCommitted(ctx context.Context, err error) error {
	var one int
	look := c.store.cfg.Pool.QueryRow(ctx, c.store.text.Find, c.id, []byte(c.options.Token)).Scan(&one)
	switch {
	case look == nil:
		return nil
	case !errors.Is(look, pgx.ErrNoRows):
		return errors.Join(err, look)
	case sqlrecord.IsFault(err) && !givenUp(err):
		return fmt.Errorf("%w: %w", dedupe.ErrAborted, err)
	}
	return err
}

// Rollback implements dedupe.Claim.
func (c *claim) Rollback(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx != nil {
		c.end(ctx, nil)
	}
	return nil
}

// finish ends a claim from outside.
func (c *claim) finish(cause error) {
	c.cancel(cause) // first, for a handler that is inside of a statement
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.tx != nil {
		c.lost = cause
		c.end(context.Background(), cause)
	}
}

// end gives everything back; with the lock.
func (c *claim) end(ctx context.Context, cause error) {
	rollback(ctx, c.tx)
	c.tx = nil
	c.cancel(cause)
	c.store.leave(c.key)
	<-c.store.room
}

// Settle implements dedupe.Claim.
func (c *claim) Settle(ctx context.Context) error {
	c.mu.Lock()
	committed := c.committed
	c.mu.Unlock()
	if !committed {
		return nil
	}
	var err error
	for range tries {
		if _, err = c.store.cfg.Pool.Exec(ctx, c.store.text.Settle, c.id, []byte(c.options.Token)); !givenUp(err) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("pgxstore: settle %s: %w", c.key, c.store.explain(err))
	}
	return nil
}
