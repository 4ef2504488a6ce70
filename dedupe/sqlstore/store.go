package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/dedupe/storeutil"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

// Store implements dedupe.Store and dedupe.Admin.
type Store struct {
	cfg     Config
	text    sqlrecord.Statements
	running running
	room    room
	purge   purger

	mu     sync.Mutex
	closed bool
	live   map[*claim]struct{}
}

var (
	_ dedupe.Store = (*Store)(nil)
	_ dedupe.Admin = (*Store)(nil)
)

// New makes a store. It asks nothing of the database and starts nothing; the table is
// made by [Store.Migrate]. The first Claim starts the purge, which ends with Close.
func New(cfg Config) (*Store, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return nil, err
	}
	s := &Store{cfg: cfg, text: sqlrecord.New(string(cfg.Dialect), cfg.Table), live: make(map[*claim]struct{})}
	s.purge = purger{store: s, every: cfg.PurgeEvery, logger: cfg.Logger, token: dedupe.NewToken()}
	return s, nil
}

// Close implements dedupe.Store: it ends the purge, rolls back what is held, and gives up
// after about 5 s on connections that don't answer. The database stays open.
func (s *Store) Close() error {
	purged := s.purge.end()
	s.mu.Lock()
	s.closed = true
	var claims []*claim
	for c := range s.live {
		claims = append(claims, c)
	}
	s.mu.Unlock()
	var ending sync.WaitGroup // at once: each may take its time on a silent link
	for _, c := range claims {
		ending.Go(func() { c.finish(fmt.Errorf("%w: %w", dedupe.ErrLeaseLost, dedupe.ErrClosed)) })
	}
	ending.Wait()
	timer := time.NewTimer(cleanUp + 2*grace)
	defer timer.Stop()
	select {
	case <-purged:
	case <-timer.C: // a driver that heeds no context
	}
	return nil
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// How often Claim looks while a transaction elsewhere holds the claim.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// Claim implements dedupe.Store.
func (s *Store) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if err := k.Validate(); err != nil {
		return nil, err
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s.StartPurge()
	until := time.Now().Add(o.Wait)
	got, err := s.running.enter(ctx, k, until)
	if err != nil {
		return nil, err
	}
	if !got {
		return &claim{store: s, key: k, state: dedupe.StateInProgress, ctx: ctx}, nil
	}
	var c *claim
	if err = s.room.enter(ctx, s.cfg.DB); err == nil {
		if c, err = s.claim(ctx, k, o, until); err != nil || c.state != dedupe.StateClaimed {
			s.room.leave()
		}
	}
	if err != nil || c.state != dedupe.StateClaimed {
		s.running.leave(k)
	}
	if err != nil {
		return nil, fmt.Errorf("sqlstore: claim %s: %w", k, s.explain(err))
	}
	return c, nil
}

// claim looks until it has found something, or o.Wait is over.
func (s *Store) claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions, until time.Time) (*claim, error) {
	pause := firstLook
	for {
		if s.isClosed() {
			return nil, dedupe.ErrClosed
		}
		c, found, err := s.look(ctx, k, o, until)
		if err != nil || found {
			return c, err
		}
		left := time.Until(until)
		if left <= 0 {
			return &claim{store: s, key: k, state: dedupe.StateInProgress, ctx: ctx}, nil
		}
		if !wait.For(ctx, nil, min(pause, left)) {
			return nil, context.Cause(ctx)
		}
		pause = min(2*pause, lastLook)
	}
}

// tries bounds what is tried again at once: a transaction that the server gave up, a
// record that ran out.
const tries = 10

// look tries to insert the row, and reads the one that is there. found is false while
// another holds the claim.
func (s *Store) look(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions, until time.Time) (c *claim, found bool, err error) {
	id := sqlrecord.ID(k)
	for range tries {
		sess, inserted, held, err := s.insert(ctx, id, k, o, time.Until(until))
		switch {
		case err != nil && sqlrecord.KindOf(err) == sqlrecord.Again:
			continue
		case err != nil:
			return nil, false, err
		case inserted:
			return s.claimed(ctx, sess, id, k, o)
		}
		r, err := s.read(ctx, id)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			if held {
				return nil, false, nil
			}
			continue // it was there, and is gone
		case sqlrecord.KindOf(err) == sqlrecord.Busy: // SQLite, while a commit is being written
			return nil, false, nil
		case err != nil:
			return nil, false, err
		case r.expired:
			switch held, err := s.drop(ctx, id, r.token); {
			case held || sqlrecord.KindOf(err) == sqlrecord.Busy:
				return nil, false, nil
			case err != nil && sqlrecord.KindOf(err) != sqlrecord.Again:
				return nil, false, err
			}
			continue
		}
		return s.done(ctx, id, k, o, r)
	}
	return nil, false, nil
}

// insert begins a transaction with the claim's row. held means that another transaction
// has the claim, or, of SQLite, the database.
func (s *Store) insert(ctx context.Context, id []byte, k dedupe.Key, o dedupe.ClaimOptions, wait time.Duration) (sess *session, inserted, held bool, err error) {
	// SQLite waits without an eye on ctx, so never for long at a time.
	sess, taken, err := s.begin(ctx, id, min(wait, lastLook))
	if err != nil && sqlrecord.KindOf(err) == sqlrecord.Busy || taken {
		return nil, false, true, nil
	}
	if err != nil {
		return nil, false, false, err
	}
	res, err := sess.tx.ExecContext(ctx, s.text.Insert, s.text.InsertArgs(id, k, o.Token)...)
	n := int64(0)
	if err == nil {
		n, err = res.RowsAffected()
	}
	if err == nil && n == 1 {
		if err = sess.inserted(ctx); err == nil {
			return sess, true, false, nil
		}
	}
	sess.end(ctx)
	switch sqlrecord.KindOf(err) {
	case sqlrecord.Duplicate:
		return nil, false, false, nil
	case sqlrecord.Busy:
		return nil, false, true, nil
	}
	// Without a row and without an error PostgreSQL does not say which: there is one,
	// or another has the lock.
	return nil, false, s.cfg.Dialect == Postgres, err
}

func (s *Store) claimed(ctx context.Context, sess *session, id []byte, k dedupe.Key, o dedupe.ClaimOptions) (*claim, bool, error) {
	c := &claim{store: s, key: k, id: id, options: o, state: dedupe.StateClaimed, session: sess}
	c.ctx, c.cancel = context.WithCancelCause(context.WithValue(ctx, txKey{}, sess.tx))
	s.mu.Lock()
	closed := s.closed
	if !closed {
		s.live[c] = struct{}{}
	}
	s.mu.Unlock()
	if closed {
		c.cancel(dedupe.ErrClosed)
		sess.end(ctx)
		return nil, false, dedupe.ErrClosed
	}
	return c, true, nil
}

func (s *Store) done(ctx context.Context, id []byte, k dedupe.Key, o dedupe.ClaimOptions, r row) (*claim, bool, error) {
	c := &claim{store: s, key: k, id: id, options: o, state: dedupe.StateDone, ctx: ctx, token: r.token}
	c.info.CommittedAt, c.info.Group = r.at, r.group
	if !storeutil.SameDigest(r.digest, storeutil.Digest(o.Fingerprint)) {
		c.state = dedupe.StateConflict
		return c, true, nil
	}
	var err error
	c.outputs, err = storeutil.SplitOutputs(r.outputs)
	return c, true, err
}

// row is a record as it is stored.
type row struct {
	key                    dedupe.Key
	token, digest, outputs []byte
	at, ends               time.Time
	expired                bool
	group                  string
}

type scanner interface{ Scan(dest ...any) error }

func scan(from scanner, before ...any) (r row, err error) {
	var ns, topic, handler, event, group []byte
	var at, ends, now int64
	var hasGroup bool
	err = from.Scan(append(before, &ns, &topic, &handler, &event, &r.token, &at, &ends, &r.digest, &r.outputs, &group, &hasGroup, &now)...)
	if r.group = string(group); hasGroup && r.group == "" { // SQLite's driver makes nil of no bytes
		r.group = string(ns)
	}
	r.key = dedupe.Key{Namespace: string(ns), Topic: string(topic), Handler: string(handler), Event: string(event)}
	r.at, r.ends, r.expired = time.UnixMilli(at), time.UnixMilli(ends), ends <= now
	return r, err
}

func (s *Store) read(ctx context.Context, id []byte) (row, error) {
	return scan(s.cfg.DB.QueryRowContext(ctx, s.text.Record, id))
}

// drop deletes a record, unless somebody is claiming its key: held. MySQL would wait
// for that one's end otherwise.
func (s *Store) drop(ctx context.Context, id, token []byte) (held bool, err error) {
	sess, held, err := s.begin(ctx, id, lastLook)
	if err != nil || held {
		return held, err
	}
	defer sess.end(ctx)
	if _, err := sess.tx.ExecContext(ctx, s.text.Drop, id, token); err != nil {
		return false, err
	}
	return false, sess.commit(ctx)
}

// exec runs one statement in a transaction of its own.
func (s *Store) exec(ctx context.Context, text string, args ...any) error {
	return repeat(ctx, func() error {
		_, err := s.cfg.DB.ExecContext(ctx, text, args...)
		return err
	})
}

// repeatFor bounds repeat.
const repeatFor = 20 * time.Second

// repeat does it again while somebody is in the way, or the server asks for it.
func repeat(ctx context.Context, do func() error) error {
	pause, giveUp := firstLook, time.Now().Add(repeatFor)
	for {
		err := do()
		if k := sqlrecord.KindOf(err); k != sqlrecord.Again && k != sqlrecord.Busy || time.Now().After(giveUp) {
			return err
		}
		if !wait.For(ctx, nil, rand.N(pause)+pause/2) { // those who collided don't again
			return errors.Join(context.Cause(ctx), err)
		}
		pause = min(2*pause, lastLook)
	}
}
