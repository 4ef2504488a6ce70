package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// claim implements dedupe.Claim.
type claim struct {
	store   *Store
	key     dedupe.Key
	name    string
	value   string // of name, as long as it is ours and not recorded
	args    [2]any // name and value, as arguments of commands: each is an allocation
	options dedupe.ClaimOptions
	tag     string // of the token that made the record
	state   dedupe.State
	info    dedupe.ClaimInfo
	ctx     context.Context //nolint:containedctx // a claim carries the context to run under
	outputs [][]byte
	lease   *storeutil.Lease

	committed atomic.Bool
}

func (c *claim) State() dedupe.State      { return c.state }
func (c *claim) Info() dedupe.ClaimInfo   { return c.info }
func (c *claim) Context() context.Context { return c.ctx }
func (c *claim) Outputs() [][]byte        { return c.outputs }

// look asks for the claim once, and reads what there is.
func (c *claim) look(ctx context.Context) (sending, error) {
	sent := c.store.send(ctx, time.Now().Add(c.options.Lease), step{key: c.name, run: c.set})
	switch {
	case errors.Is(sent.err, redis.Nil): // there was nothing, and this try set it
		c.got(ctx, sent.last)
		return sent, nil
	case sent.err != nil:
		return sent, sent.err
	}
	text, ok := sent.value.(string)
	if !ok {
		return sent, fmt.Errorf("unexpected reply %v", sent.value)
	}
	if text == c.value {
		return c.lengthen(ctx)
	}
	r, err := parseRecord(text)
	if err != nil {
		sent.unknown = false // the key is not ours
		return sent, err
	}
	if r.claim {
		c.state = dedupe.StateInProgress
		return sent, nil
	}
	c.info = dedupe.ClaimInfo{CommittedAt: r.at, Group: r.groupOf(c.key.Namespace)}
	if !storeutil.SameDigest(r.digest, storeutil.Digest(c.options.Fingerprint)) {
		c.state = dedupe.StateConflict
	} else {
		c.state, c.outputs, c.tag = dedupe.StateDone, r.outputs, r.tag
	}
	return sent, nil
}

// set is the step that asks.
func (c *claim) set(ctx context.Context, p server.Processor) (any, error) {
	cmd := server.NewCommand(ctx, 1, "set", c.args[0], c.args[1], "nx", "get", "px", max(c.options.Lease.Milliseconds(), 1))
	if err := p.Process(ctx, cmd); err != nil {
		return nil, err
	}
	if cmd.Val() == nil { // nothing there is redis.Nil
		return nil, server.ErrNoReply
	}
	return cmd.Result()
}

// lengthen takes a claim that was there under its token: an earlier try set it, whose
// reply was lost, or an earlier Claim. Its lease may be all but over, and SET NX
// has not lengthened it: another could have it before our first renewal, a third of a
// lease from now.
func (c *claim) lengthen(ctx context.Context) (sending, error) {
	sent := c.store.send(ctx, time.Now().Add(c.options.Lease), c.renewal())
	held, err := sent.yes()
	switch {
	case err != nil:
		sent.unknown = true
		return sent, err
	case !held: // it has ended just now, or is recorded
		return c.look(ctx)
	}
	c.got(ctx, sent.last)
	return sent, nil
}

// got begins the lease.
func (c *claim) got(ctx context.Context, sentAt time.Time) {
	s := c.store
	c.state = dedupe.StateClaimed
	c.lease, c.ctx = storeutil.NewLease(ctx, storeutil.LeaseConfig{Duration: c.options.Lease, SentAt: sentAt, Renew: c.renew})
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.live[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		c.lease.Release(fmt.Errorf("%w: %w", dedupe.ErrLeaseLost, dedupe.ErrClosed))
	}
}

// renewal makes the lease begin anew, if the claim is still ours.
func (c *claim) renewal() step {
	return script(renewScript, c.name, c.value, c.options.Lease.Milliseconds(), tagOf(c.options.Token))
}

func (c *claim) renew(ctx context.Context) error {
	r, _ := c.store.once(ctx, c.renewal())
	held, err := r.number()
	if err == nil && held == 0 {
		return fmt.Errorf("%w: %s is not held by this owner any more", dedupe.ErrLeaseLost, c.name)
	}
	return err
}

// Commit implements dedupe.Claim. It is tried until the server has answered, the claim is
// lost, or ctx ends; the claim is renewed meanwhile, so that a record that takes long to
// send is in time.
//
// The handler has run, so hardly any answer is final: a server that can't write now, a user
// whose rights are being changed and an unknown word of a proxy are all worth another try,
// and each try is refused by the server if the claim is not this owner's any more.
func (c *claim) Commit(ctx context.Context, outputs [][]byte) error {
	if c.state != dedupe.StateClaimed {
		return fmt.Errorf("redisstore: commit: %w: state is %v", dedupe.ErrInvalid, c.state)
	}
	if c.committed.Load() {
		return nil
	}
	kind, body, err := encode(c.key.Namespace, c.options, outputs)
	if err != nil {
		return err
	}
	defer c.release()
	if err := c.lease.Err(); err != nil {
		return err
	}
	ctx, cancel := c.lease.While(ctx)
	defer cancel()
	s := c.store
	commit := script(commitScript, c.args[0], c.args[1], kind, body, c.options.Retention.Milliseconds())
	if len(body) > batchedBytes {
		run := commit.run
		commit = step{run: func(ctx context.Context, p server.Processor) (any, error) {
			value, err := run(ctx, p)
			if err != nil && s.isTooLarge(ctx, c.name, len(body), err) {
				err = fmt.Errorf("%w: %d bytes: %w", dedupe.ErrTooLarge, len(body), err)
			}
			return value, err
		}}
	}
	sent := s.sendUnless(ctx, isFinalAfterTheRun, time.Time{}, commit)
	done, err := sent.yes()
	switch {
	case err != nil && sent.unknown && !errors.Is(err, dedupe.ErrTooLarge):
		// Whatever the last try got, an earlier one may have made the record: this is
		// none of the errors after which nothing was recorded.
		return fmt.Errorf("%v: it is unknown whether the record was made", s.explain("commit", c.name, err)) //nolint:errorlint // as the comment says
	case err != nil:
		return s.explain("commit", c.name, err)
	case !done:
		return fmt.Errorf("redisstore: commit: %w: %s is not held by this owner any more", dedupe.ErrLeaseLost, c.name)
	}
	c.committed.Store(true)
	return nil
}

// isFinalAfterTheRun reports that a commit would get the same answer for as long as the
// claim is held.
func isFinalAfterTheRun(err error) bool {
	return errors.Is(err, dedupe.ErrTooLarge) || errors.Is(err, redis.ErrClosed) || redis.HasErrorPrefix(err, "WRONGTYPE")
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

// Rollback implements dedupe.Claim. It is tried until the lease ends, which gives the claim
// up by itself.
func (c *claim) Rollback(ctx context.Context) error {
	if c.state != dedupe.StateClaimed || c.committed.Load() {
		return nil
	}
	c.release()
	s := c.store
	if sent := s.send(ctx, c.lease.End(), script(removeScript, c.name, c.value)); sent.err != nil {
		return s.explain("rollback", c.name, sent.err)
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
	if c.state != dedupe.StateDone && !c.committed.Load() {
		return nil
	}
	s, tag := c.store, c.tag
	if c.state == dedupe.StateClaimed {
		tag = tagOf(c.options.Token)
	}
	until := time.Now().Add(c.options.Lease)
	if sent := s.send(ctx, until, script(settleScript, c.name, tag)); sent.err != nil {
		return s.explain("settle", c.name, sent.err)
	}
	return nil
}
