package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

// Values of [Config.PurgeEvery].
const (
	// DefaultPurgeEvery is the default.
	DefaultPurgeEvery = 10 * time.Minute
	// MinPurgeEvery is the shortest.
	MinPurgeEvery = time.Second
	// NoPurge turns the purge off: then somebody else must call [Store.Purge], or the table
	// grows without end.
	NoPurge time.Duration = -1
)

const (
	// firstPurge bounds the time to the first purge, so that processes that don't live
	// for long purge as well. It is random: instances start together.
	firstPurge = time.Minute
	// purgeStep bounds one statement with its transaction.
	purgeStep = 30 * time.Second
	// Between two batches the purge rests for as long as a batch has taken, so that it
	// takes half of what the database has at most.
	minRest, maxRest = 10 * time.Millisecond, 5 * time.Second
)

// purger removes what ran out, from the first claim to the store's Close.
type purger struct {
	store  *Store
	every  time.Duration
	logger watermill.LoggerAdapter
	token  string // of the row that one store at a time has
	begin  sync.Once

	mu     sync.Mutex
	stop   context.CancelFunc // nil until it runs
	ended  chan struct{}      // closes when it has ended
	closed bool
	failed error     // of the last purge
	since  time.Time // since when purges fail
}

// StartPurge begins to purge every Config.PurgeEvery, as the first Claim does. A process
// that claims nothing calls it, if it is to purge. Called again, after Close, or with
// NoPurge it does nothing.
func (s *Store) StartPurge() { s.purge.begin.Do(s.purge.start) }

func (p *purger) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.every == NoPurge {
		return
	}
	ctx, stop := context.WithCancel(context.Background())
	p.stop, p.ended = stop, make(chan struct{})
	go func() {
		defer close(p.ended)
		p.run(ctx)
	}()
}

// end begins to end it. The channel closes when it has ended.
func (p *purger) end() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	if p.stop == nil {
		return closed
	}
	p.stop()
	return p.ended
}

var closed = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (p *purger) run(ctx context.Context) {
	for pause := rand.N(min(p.every, firstPurge)); wait.For(ctx, nil, pause); pause = p.every - rand.N(p.every/5) {
		begin := time.Now()
		n, err := p.purge(ctx)
		if ctx.Err() == nil {
			p.note(n, time.Since(begin), err)
		}
	}
}

func (p *purger) note(n int, took time.Duration, err error) {
	p.mu.Lock()
	before := p.failed
	if p.failed = err; before == nil {
		p.since = time.Now()
	}
	since := p.since
	p.mu.Unlock()
	fields := watermill.LogFields{"table": p.store.cfg.Table, "removed": n}
	switch {
	case err != nil:
		p.logger.Error("Purge of records that ran out has failed; they stay in the table until a later purge, and the next one begins in about "+
			p.every.String(), err, fields.Add(watermill.LogFields{"failing_since": since.Format(time.RFC3339)}))
	case before != nil:
		p.logger.Info("Purge of records that ran out works again", fields)
	case n > 0:
		p.logger.Debug("Purged records that ran out", fields.Add(watermill.LogFields{"took": took.String()}))
	}
}

// warning is what Check says about it; empty: nothing.
func (p *purger) warning() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed == nil {
		return ""
	}
	return fmt.Sprintf("Purges of table %s have failed since %s, so it grows: %v.", p.store.cfg.Table, p.since.Format(time.RFC3339), p.failed)
}

// purge removes all that ran out, unless another store of the table does, or has just
// done.
func (p *purger) purge(ctx context.Context) (n int, err error) {
	s, token := p.store, p.token
	mine, err := p.take(ctx, token)
	if err != nil || !mine {
		return 0, err
	}
	for taken := time.Now(); ; {
		begin := time.Now()
		removed, more, err := s.removeBatch(ctx, purgeBatch)
		n += removed
		if err != nil {
			return n, s.explain(err) // others get the row after PurgeLease
		}
		if !more {
			_, err := p.touch(ctx, s.text.EndPurge, sqlrecord.ID(sqlrecord.PurgeKey()), []byte(token))
			return n, err
		}
		if time.Since(taken) > sqlrecord.PurgeLease/3 {
			taken = time.Now()
			mine, err := p.touch(ctx, s.text.KeepPurge, sqlrecord.PurgeLease.Milliseconds(), sqlrecord.ID(sqlrecord.PurgeKey()), []byte(token))
			if err != nil || !mine {
				return n, err
			}
		}
		if !wait.For(ctx, nil, min(max(time.Since(begin), minRest), maxRest)) {
			return n, nil
		}
	}
}

// take asks for the row that one store at a time has while it purges. It is a row with a
// time, and no lock: a lock would be a session's, and hold a connection through the
// pauses.
func (p *purger) take(ctx context.Context, token string) (mine bool, err error) {
	s := p.store
	args := sqlrecord.TakePurgeArgs(token, p.every-p.every/5)
	if mine, err = p.touch(ctx, s.text.TakePurge, args...); err != nil || mine {
		return mine, err
	}
	key := sqlrecord.PurgeKey()
	made, err := p.touch(ctx, s.text.Insert, s.text.InsertArgs(sqlrecord.ID(key), key, token)...)
	if err != nil || !made {
		return false, err
	}
	return p.touch(ctx, s.text.TakePurge, args...)
}

// touch runs a statement about that row, and reports whether it has changed it.
func (p *purger) touch(ctx context.Context, text string, args ...any) (changed bool, err error) {
	s := p.store
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, text, args...)
		if sqlrecord.KindOf(err) == sqlrecord.Duplicate {
			changed = false
			return nil
		}
		if err != nil {
			return err
		}
		n, err := res.RowsAffected()
		changed = n == 1
		return err
	})
	return changed, s.explain(err)
}

// purgeBatch is how many records one statement deletes.
const purgeBatch = 500

// removeBatch removes up to limit records that ran out, by the database's clock. A row
// that somebody is claiming stays for the next time, and nobody waits for anybody but for
// the moment that the batch takes. more means that there may be more.
func (s *Store) removeBatch(ctx context.Context, limit int) (n int, more bool, err error) {
	if s.text.Remove == "" {
		return s.removeByID(ctx, limit)
	}
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		res, err := tx.ExecContext(ctx, s.text.Remove, limit)
		if err != nil {
			return err
		}
		removed, err := res.RowsAffected()
		n = int(removed)
		return err
	})
	if err != nil {
		n = 0
	}
	return n, n == limit, err
}

// removeByID is for MySQL, where deleting a range takes locks on gaps, which block
// claims: the IDs are read without locks, and only rows that nobody has are deleted.
func (s *Store) removeByID(ctx context.Context, limit int) (n int, more bool, err error) {
	step, cancel := context.WithTimeout(ctx, purgeStep)
	defer cancel()
	ids, err := readIDs(s.cfg.DB.QueryContext(step, s.text.Expired, limit))
	if err != nil || len(ids) == 0 {
		return 0, false, err
	}
	err = s.transact(ctx, func(ctx context.Context, tx *sql.Tx) error {
		text, args := sqlrecord.IDs(s.text.Free, ids)
		free, err := readIDs(tx.QueryContext(ctx, text, args...))
		if n = len(free); err != nil || n == 0 {
			return err
		}
		one, err := tx.PrepareContext(ctx, s.text.Delete)
		if err != nil {
			return err
		}
		defer one.Close()
		for _, id := range free {
			if _, err := one.ExecContext(ctx, id); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		n = 0
	}
	return n, len(ids) == limit && n > 0, err
}

func readIDs(rows *sql.Rows, err error) (ids [][]byte, _ error) {
	if err != nil {
		return nil, err
	}
	for rows.Next() {
		var id []byte
		if err := rows.Scan(&id); err != nil {
			return nil, errors.Join(err, rows.Close())
		}
		ids = append(ids, id)
	}
	return ids, errors.Join(rows.Err(), rows.Close())
}

// transact does something in a transaction, again while somebody is in the way. It is
// bounded as claims are, also where the link is silent.
func (s *Store) transact(ctx context.Context, do func(ctx context.Context, tx *sql.Tx) error) error {
	// Sessions lock a name; nobody else has this one.
	id := sqlrecord.ID(dedupe.Key{Event: dedupe.NewToken()})
	return repeat(ctx, func() error {
		ctx, cancel := context.WithTimeout(ctx, purgeStep)
		defer cancel()
		sess, _, err := s.begin(ctx, id, lastLook)
		if err != nil {
			return err
		}
		defer sess.end(ctx)
		if err := do(ctx, sess.tx); err != nil {
			return err
		}
		return sess.commit(ctx)
	})
}
