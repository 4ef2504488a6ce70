package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
)

// claim implements dedupe.Claim.
type claim struct {
	store   *Store
	key     dedupe.Key
	id      []byte
	options dedupe.ClaimOptions
	state   dedupe.State
	info    dedupe.ClaimInfo
	ctx     context.Context //nolint:containedctx // a claim carries the context to run under
	cancel  context.CancelCauseFunc
	outputs [][]byte
	token   []byte // of the record that is done

	mu        sync.Mutex
	session   *session // nil once it has ended
	committed bool
	lost      error // why it ended, if neither Commit nor Rollback did it
}

func (c *claim) State() dedupe.State      { return c.state }
func (c *claim) Info() dedupe.ClaimInfo   { return c.info }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Outputs() [][]byte        { return c.outputs }

// Commit implements dedupe.Claim. It makes the record, and commits it with all that the
// handler wrote.
func (c *claim) Commit(ctx context.Context, outputs [][]byte) error {
	if c.state != dedupe.StateClaimed {
		return fmt.Errorf("sqlstore: commit: %w: state is %v", dedupe.ErrInvalid, c.state)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.committed:
		return nil
	case c.lost != nil:
		return c.lost
	case c.session == nil:
		return fmt.Errorf("sqlstore: commit: %w: it was rolled back", dedupe.ErrLeaseLost)
	}
	s, sess := c.store, c.session
	recorded := storeutil.JoinOutputs(outputs)
	var res sql.Result
	err := sess.check()
	if err == nil {
		res, err = sess.tx.ExecContext(ctx, s.text.Commit, sqlrecord.CommitArgs(c.key, c.id, c.options, recorded)...)
	}
	if err != nil {
		return fmt.Errorf("sqlstore: commit %s: %w", c.key, c.notRecorded(ctx, recorded, err))
	}
	defer func() {
		if c.session != nil {
			c.end(ctx, nil)
		}
	}()
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("sqlstore: commit %s: %w: the claim's row is gone: the server has ended the transaction that made it", c.key, errors.Join(dedupe.ErrAborted, err))
	}
	if err := sess.commit(ctx); err != nil {
		c.end(ctx, nil) // a pool of one has no other connection for the look
		if err = s.notCommitted(ctx, c.id, c.options.Token, err); err != nil {
			return fmt.Errorf("sqlstore: commit %s: %w", c.key, err)
		}
	}
	c.committed = true
	return nil
}

// notRecorded ends the claim and says whose fault it is that the record's own statement
// has failed. Nothing can have been committed.
func (c *claim) notRecorded(ctx context.Context, recorded []byte, err error) error {
	ended := errors.Is(err, sql.ErrTxDone) // by the handler
	k := sqlrecord.KindOf(err)
	stood := errors.Is(err, errUnusable) && c.session.stands(ctx)
	stood = c.end(ctx, nil) || stood
	switch {
	case k == sqlrecord.TooLarge || k == sqlrecord.Unanswered && c.store.isTooLarge(ctx, recorded):
		return fmt.Errorf("%w: %d bytes of outputs: %w", dedupe.ErrTooLarge, len(recorded), err)
	case k == sqlrecord.Busy: // SQLite: it had to write before the COMMIT, and readers are in the way
		return err
	case k == sqlrecord.Again: // others were in the way, and the run is as good as new
		return err
	case k == sqlrecord.NoTable, k == sqlrecord.NoColumn, k == sqlrecord.NoRight:
		return c.store.explain(err)
	// An error without an answer, on a session that stands: the driver could not send
	// the statement, since the handler has left its rows open.
	case ended || ctx.Err() == nil && (sqlrecord.IsFault(err) || k == sqlrecord.Unanswered && stood):
		return fmt.Errorf("%w: %w", dedupe.ErrAborted, err)
	}
	return err
}

// notCommitted looks what became of a COMMIT that failed: its answer may have been lost
// after it was done. nil: it is recorded.
func (s *Store) notCommitted(ctx context.Context, id []byte, token string, err error) error {
	if sqlrecord.KindOf(err) == sqlrecord.Busy {
		return err // SQLite: certainly not done, and readers are in the way of a look, too
	}
	var one int
	look := s.cfg.DB.QueryRowContext(ctx, s.text.Find, id, []byte(token)).Scan(&one)
	switch {
	case look == nil:
		return nil
	case !errors.Is(look, sql.ErrNoRows):
		return errors.Join(err, look)
	case sqlrecord.IsFault(err) && sqlrecord.KindOf(err) != sqlrecord.Again:
		return fmt.Errorf("%w: %w", dedupe.ErrAborted, err)
	}
	return err
}

// isTooLarge explains a session of MySQL that was lost with the record: by a packet
// above its limit the server closes the connection, as though the network had.
func (s *Store) isTooLarge(ctx context.Context, recorded []byte) bool {
	if s.cfg.Dialect != MySQL || ctx.Err() != nil {
		return false
	}
	var limit int
	err := s.cfg.DB.QueryRowContext(ctx, "SELECT @@max_allowed_packet").Scan(&limit)
	return err == nil && len(recorded)+packetOverhead > limit
}

// packetOverhead is at least what a packet has beside the outputs of a record.
const packetOverhead = 512

// Rollback implements dedupe.Claim.
func (c *claim) Rollback(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		c.end(ctx, nil)
	}
	return nil
}

// finish ends a claim from outside.
func (c *claim) finish(cause error) {
	// The context first: the handler may be inside of a statement, which the
	// transaction waits for.
	c.cancel(cause)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session != nil {
		c.lost = cause
		c.end(context.Background(), cause)
	}
}

// end gives everything back; with the lock.
func (c *claim) end(ctx context.Context, cause error) (stood bool) {
	stood = c.session.end(ctx)
	c.session = nil
	c.cancel(cause)
	s := c.store
	s.running.leave(c.key)
	s.room.leave()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, c)
	return stood
}

// Settle implements dedupe.Claim.
func (c *claim) Settle(ctx context.Context) error {
	token := c.token
	c.mu.Lock()
	if c.committed {
		token = []byte(c.options.Token)
	}
	c.mu.Unlock()
	if token == nil || c.state == dedupe.StateConflict {
		return nil
	}
	return c.store.settle(ctx, c.key, token)
}

func (s *Store) settle(ctx context.Context, k dedupe.Key, token []byte) error {
	// A look first: an update waits for another's claim, of a record that ran out, in
	// MySQL, and for any in SQLite.
	id := sqlrecord.ID(k)
	r, err := s.read(ctx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && (!bytes.Equal(r.token, token) || r.outputs == nil) {
		return nil
	}
	if err == nil {
		err = s.exec(ctx, s.text.Settle, id, token)
	}
	if err != nil {
		return fmt.Errorf("sqlstore: settle %s: %w", k, s.explain(err))
	}
	return nil
}
