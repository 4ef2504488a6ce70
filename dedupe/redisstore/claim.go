package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// claim implements dedupe.Claim.
type claim struct {
	store   *Store
	name    string
	options dedupe.Options
	tag     string // of the token that made the record, or will
	state   dedupe.State
	info    dedupe.Info
	ctx     context.Context //nolint:containedctx // a claim carries the context to run under
	outputs [][]byte
	lease   *dedupe.Lease

	committed atomic.Bool
}

func (c *claim) State() dedupe.State      { return c.state }
func (c *claim) Info() dedupe.Info        { return c.info }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Outputs() [][]byte        { return c.outputs }

// renewal makes the lease begin anew, if the claim is still ours.
func (c *claim) renewal() step {
	return c.store.script(renewScript, c.name, claimValue(c.options.Token), c.options.Lease.Milliseconds())
}

func (c *claim) renew(ctx context.Context) error {
	r, _ := c.store.once(ctx, c.renewal())
	held, err := r.yes()
	if err == nil && !held {
		return fmt.Errorf("%w: %s is not held by this owner any more", dedupe.ErrLeaseLost, c.name)
	}
	return err
}

// Commit implements dedupe.Claim.
func (c *claim) Commit(ctx context.Context, outputs [][]byte) error {
	if c.state != dedupe.Claimed {
		return fmt.Errorf("redisstore: commit: %w: state is %v", dedupe.ErrInvalid, c.state)
	}
	if c.committed.Load() {
		return nil
	}
	kind, body, err := encode(dedupe.Digest(c.options.Fingerprint), outputs)
	if err != nil {
		return err
	}
	// A renewal behind the commit would find a record and take the claim for lost.
	if err := c.lease.Stop(); err != nil {
		c.release()
		return err
	}
	defer c.release()
	// Beyond its end the claim may be another's, so nothing is sent any more.
	ctx, cancel := context.WithDeadline(ctx, c.lease.End())
	defer cancel()
	s := c.store
	commit := s.script(commitScript, c.name, claimValue(c.options.Token), kind, c.tag, body, c.options.Retention.Milliseconds())
	sent := s.send(ctx, func(ctx context.Context) (any, error) {
		value, err := commit(ctx)
		if err != nil && s.isTooLarge(ctx, c.name, len(body), err) {
			err = fmt.Errorf("%w: %d bytes: %w", dedupe.ErrTooLarge, len(body), err)
		}
		return value, err
	})
	done, err := sent.yes()
	switch {
	case err != nil:
		return explain("commit", c.name, err)
	case !done:
		return fmt.Errorf("redisstore: commit: %w: %s is not held by this owner any more", dedupe.ErrLeaseLost, c.name)
	}
	c.committed.Store(true)
	return nil
}

// isTooLarge explains a commit that failed. On an argument above proto-max-bulk-len the
// server closes the connection, often before it has read all of it: then the client sees
// its connection reset, as by any fault of the network.
func (s *Store) isTooLarge(ctx context.Context, name string, size int, err error) bool {
	if redis.HasErrorPrefix(err, "Protocol error") {
		return true
	}
	if size <= minBulkLen || server.Classify(err) != server.Ambiguous {
		return false
	}
	node, err := server.Node(ctx, s.cfg.Client, name)
	if err != nil {
		return false
	}
	config, err := node.ConfigGet(ctx, "proto-max-bulk-len").Result()
	if err != nil { // the user may not ask
		return false
	}
	limit, err := strconv.Atoi(config["proto-max-bulk-len"])
	return err == nil && size > limit
}

// Rollback implements dedupe.Claim.
func (c *claim) Rollback(ctx context.Context) error {
	if c.state != dedupe.Claimed || c.committed.Load() {
		return nil
	}
	c.release()
	s := c.store
	if sent := s.send(ctx, s.script(removeScript, c.name, claimValue(c.options.Token))); sent.err != nil {
		return explain("rollback", c.name, sent.err)
	}
	return nil
}

// release ends what the claim has running, and its context.
func (c *claim) release() {
	c.lease.Release(nil)
	c.store.mu.Lock()
	defer c.store.mu.Unlock()
	delete(c.store.live, c)
}

// Settle implements dedupe.Claim.
func (c *claim) Settle(ctx context.Context) error {
	if c.state != dedupe.Done && !c.committed.Load() {
		return nil
	}
	s := c.store
	if sent := s.send(ctx, s.script(settleScript, c.name, c.tag)); sent.err != nil {
		return explain("settle", c.name, sent.err)
	}
	return nil
}
