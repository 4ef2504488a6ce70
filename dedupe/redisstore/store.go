// Package redisstore is a leased dedupe.Store in Redis 7.0 or newer, Valkey, or a
// cluster of either: one key for each event and handler, removed by the server when
// its time is over.
//
// A claim is SET NX GET PX, a key with the owner's token and the lease for its time to
// live; a renewal lengthens it, a commit replaces it by the record, a rollback deletes
// it, all by scripts that check the token. Every step is sent again until the server
// has answered, and every step survives that.
//
// Handlers that run at the same time share round trips: their commands go out as pipelines,
// to each master of a cluster its own. A command that finds nothing on its way is sent at once.
//
// Redis measures leases by its wall clock. A jump ahead ends early those that it jumps
// over; their owners hear of it at the next renewal, a third of the lease later at most.
//
// A record whose outputs are settled costs at most 150 bytes above its key. So the
// memory is about
//
//	events a second × retention × (150 bytes + key)
//
// for each handler: 100 events a second, a day, keys of 60 bytes: 1.8 GB.
//
// Redis acknowledges before it replicates. After a failover the last claims and records
// may be missing, and a handler whose record is missing runs again when its event comes
// again. Where an effect must be there once even then, the record has to be where the
// effect is: dedupe/sqlstore.
package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

// Store implements dedupe.Store and dedupe.Admin.
type Store struct {
	cfg     Config
	names   prefix
	ending  chan struct{}
	running sync.WaitGroup // tries on their way, and clean-ups
	batch   *batcher

	mu     sync.Mutex
	closed bool
	live   map[*claim]struct{}
}

var (
	_ dedupe.Store = (*Store)(nil)
	_ dedupe.Admin = (*Store)(nil)
)

// New makes a store. It does not dial.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, names: prefix(cfg.Prefix), ending: make(chan struct{}), live: make(map[*claim]struct{})}
	s.batch = newBatcher(cfg.Client, &s.running)
	return s, nil
}

// begin reports whether something may be started; running.Done must follow.
func (s *Store) begin() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	return true
}

// Close implements dedupe.Store. A command that is on its way is waited for; the
// client's time-outs bound that.
func (s *Store) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.ending)
	}
	var claims []*claim
	for c := range s.live {
		claims = append(claims, c)
	}
	clear(s.live)
	s.mu.Unlock()
	for _, c := range claims {
		c.lease.Release(fmt.Errorf("%w: %w", dedupe.ErrLeaseLost, dedupe.ErrClosed))
	}
	s.running.Wait()
	return nil
}

// How often Claim looks while another holds the claim.
const (
	firstLook = 10 * time.Millisecond
	lastLook  = 250 * time.Millisecond
)

// Claim implements dedupe.Store.
func (s *Store) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if err := k.Validate(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	c := &claim{store: s, key: k, name: s.names.name(k), value: claimValue(o.Token), options: o, ctx: ctx}
	c.args = [2]any{c.name, c.value}
	giveUp := time.Now().Add(o.Wait)
	pause := firstLook
	for {
		sent, err := c.look(ctx)
		if err != nil {
			// What can't be read is neither got nor to be given up.
			if sent.unknown {
				s.giveUpLater(c, sent.pending)
			}
			return nil, s.explain("claim", c.name, err)
		}
		left := time.Until(giveUp)
		if c.state != dedupe.StateInProgress {
			return c, nil
		}
		if left <= 0 {
			c.info.RetryAfter = s.left(ctx, c.name, o.Lease)
			return c, nil
		}
		if !wait.For(ctx, s.ending, min(pause, left)) {
			return nil, cmp.Or(context.Cause(ctx), dedupe.ErrClosed)
		}
		pause = min(2*pause, lastLook)
	}
}

// giveUpLater deletes a claim that nobody waits for any more. The try that is still on
// its way goes first, or the claim would come after its deletion. One that comes even
// later, from a connection that hung, stays until the lease ends it.
func (s *Store) giveUpLater(c *claim, pending <-chan struct{}) {
	if !s.begin() {
		return
	}
	go func() {
		defer s.running.Done()
		if pending != nil {
			<-pending
		}
		s.send(context.Background(), time.Now().Add(c.options.Lease), script(removeScript, c.name, c.value))
	}()
}

// left is how long another's claim lasts. It is only a hint: an error is no trouble.
func (s *Store) left(ctx context.Context, name string, lease time.Duration) time.Duration {
	r, _ := s.once(ctx, step{run: func(ctx context.Context, _ server.Processor) (any, error) {
		return s.cfg.Client.PTTL(ctx, name).Result()
	}})
	d, _ := r.value.(time.Duration)
	return min(max(d, 0), lease)
}
