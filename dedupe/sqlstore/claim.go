package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// claim implements dedupe.Claim.
type claim struct {
	store   *Store
	key     dedupe.Key
	id      []byte
	options dedupe.Options
	state   dedupe.State
	info    dedupe.Info
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
func (c *claim) Info() dedupe.Info        { return c.info }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Outputs() [][]byte        { return c.outputs }

// Commit implements dedupe.Claim. It makes the record, and commits it with all that the
// handler wrote.
func (c *claim) Commit(ctx context.Context, outputs [][]byte) error {
	if c.state != dedupe.Claimed {
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
	defer c.end(ctx, nil)
	s, tx := c.store, c.session.tx
	res, err := tx.ExecContext(ctx, s.text.commit,
		c.options.Retention.Milliseconds(), nullable(dedupe.Digest(c.options.Fingerprint)), nullable(dedupe.JoinOutputs(outputs)), c.id, []byte(c.options.Token))
	if err != nil {
		// Nothing can have been committed: the record's own statement has failed.
		return fmt.Errorf("sqlstore: commit %s: %w: %w", c.key, dedupe.ErrAborted, err)
	}
	if n, err := res.RowsAffected(); err != nil || n != 1 {
		return fmt.Errorf("sqlstore: commit %s: %w: the claim's row is gone: the server has ended the transaction that made it", c.key, errors.Join(dedupe.ErrAborted, err))
	}
	if err := tx.Commit(); err != nil {
		if kindOf(err) == again {
			return fmt.Errorf("sqlstore: commit %s: %w: %w", c.key, dedupe.ErrAborted, err)
		}
		// It may have been done, and its answer lost.
		var one int
		if look := s.cfg.DB.QueryRowContext(ctx, s.text.find, c.id, []byte(c.options.Token)).Scan(&one); look != nil {
			if errors.Is(look, sql.ErrNoRows) {
				look = nil
			}
			return fmt.Errorf("sqlstore: commit %s: %w", c.key, errors.Join(err, look))
		}
	}
	c.committed = true
	return nil
}

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
func (c *claim) end(ctx context.Context, cause error) {
	c.session.end(ctx)
	c.session = nil
	c.cancel(cause)
	s := c.store
	s.running.leave(c.key)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, c)
}

// Settle implements dedupe.Claim.
func (c *claim) Settle(ctx context.Context) error {
	token := c.token
	c.mu.Lock()
	if c.committed {
		token = []byte(c.options.Token)
	}
	c.mu.Unlock()
	if token == nil || c.state == dedupe.Conflict {
		return nil
	}
	return c.store.settle(ctx, c.key, token)
}

// SettleRecord settles the record of k that was made with the token, as the claim's
// Settle does: for stores over another interface to PostgreSQL.
func (s *Store) SettleRecord(ctx context.Context, k dedupe.Key, token string) error {
	return s.settle(ctx, k, []byte(token))
}

func (s *Store) settle(ctx context.Context, k dedupe.Key, token []byte) error {
	// A look first: an update waits for another's claim, of a record that ran out, in
	// MySQL, and for any in SQLite.
	id := idOf(k)
	r, err := s.read(ctx, id)
	if errors.Is(err, sql.ErrNoRows) || err == nil && (!bytes.Equal(r.token, token) || r.outputs == nil) {
		return nil
	}
	if err == nil {
		err = s.exec(ctx, s.text.settle, id, token)
	}
	if err != nil {
		return fmt.Errorf("sqlstore: settle %s: %w", k, err)
	}
	return nil
}

// nullable makes NULL of no bytes.
func nullable(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}
