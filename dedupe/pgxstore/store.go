// Package pgxstore is dedupe/sqlstore for pgx: a transactional dedupe.Store in
// PostgreSQL whose handlers get a pgx.Tx. It is a module of its own, so that only those
// who use pgx have it. The table, and all that is said about it, is sqlstore's; stores of
// both kinds may share one.
//
//	store, err := pgxstore.New(pgxstore.Config{Pool: pool})
//	err = store.Migrate(ctx)
//	once, err := middleware.New(middleware.Config{Store: store, ...}, logger)
//	router.AddHandler(..., once.Handler(pgxstore.WithTx(
//		func(ctx context.Context, tx pgx.Tx, msg *message.Message) ([]*message.Message, error) {
//			_, err := tx.Exec(ctx, "INSERT INTO ledger ...")
//			return nil, err
//		})))
package pgxstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/internal/sqlrecord"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// Config configures a [Store]. Pool is required.
type Config struct {
	// Pool is the one of the database that the handlers write to. It stays the
	// caller's: Close does not close it. A running handler holds one of its connections;
	// one is never used for a claim, so that handlers that ask for another don't wait for
	// each other.
	Pool *pgxpool.Pool
	// Table is as in sqlstore.Config; default: idempotent_done.
	Table string
	// Isolation is that of the handlers' transactions; default: the database's.
	Isolation pgx.TxIsoLevel
	// MaxInFlight is as in sqlstore.Config.
	MaxInFlight int
	// PurgeEvery is as in sqlstore.Config: how often records that ran out are removed;
	// default: 10 minutes; sqlstore.NoPurge turns it off.
	PurgeEvery time.Duration
	// Logger is as in sqlstore.Config.
	Logger watermill.LoggerAdapter
}

// Store implements dedupe.Store and dedupe.Admin.
type Store struct {
	cfg Config
	db  *sql.DB         // over the same pool
	sql *sqlstore.Store // reads and keeps the records
	// text are the statements that a claim sends over the pool itself.
	text sqlrecord.Statements
	// room has a place for each connection that claims may hold.
	room chan struct{}

	mu      sync.Mutex
	closed  bool
	running map[dedupe.Key]*claim // what this process is handling; nil while it is being claimed
	changed chan struct{}         // closes when a key leaves running
}

var (
	_ dedupe.Store = (*Store)(nil)
	_ dedupe.Admin = (*Store)(nil)
)

// New makes a store. It asks nothing of the database and starts nothing; the table is
// made by [Store.Migrate]. The first Claim starts the purge, which ends with Close.
func New(cfg Config) (*Store, error) {
	if cfg.Pool == nil {
		return nil, errors.New("pgxstore: invalid config: Pool is nil")
	}
	if cfg.MaxInFlight < 0 {
		return nil, fmt.Errorf("pgxstore: invalid config: MaxInFlight %d is negative", cfg.MaxInFlight)
	}
	cfg.Table = cmp.Or(cfg.Table, sqlstore.DefaultTable)
	db := stdlib.OpenDBFromPool(cfg.Pool)
	s, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Postgres, Table: cfg.Table, PurgeEvery: cfg.PurgeEvery, Logger: cfg.Logger})
	if err != nil {
		return nil, fmt.Errorf("pgxstore: %w", errors.Join(err, db.Close()))
	}
	room := make(chan struct{}, max(cfg.Pool.Config().MaxConns-1, 1))
	return &Store{
		cfg: cfg, db: db, sql: s, text: sqlrecord.New(sqlrecord.Postgres, cfg.Table), room: room,
		running: make(map[dedupe.Key]*claim), changed: make(chan struct{}),
	}, nil
}

func (s *Store) explain(err error) error {
	return sqlrecord.Explain(sqlrecord.Postgres, s.cfg.Table, err)
}

// Migrate makes the table where it is missing, as sqlstore does.
func (s *Store) Migrate(ctx context.Context) error { return s.sql.Migrate(ctx) }

// MigrateTo is Migrate up to a version, as in sqlstore.
func (s *Store) MigrateTo(ctx context.Context, version int) error {
	return s.sql.MigrateTo(ctx, version)
}

// SchemaVersion is the version that the schema has in the database, as in sqlstore.
func (s *Store) SchemaVersion(ctx context.Context) (int, error) { return s.sql.SchemaVersion(ctx) }

// Check asks the database whether it can keep records, as sqlstore does.
func (s *Store) Check(ctx context.Context) (warnings []string, err error) {
	warnings, err = s.sql.Check(ctx)
	if w := sqlrecord.PoolWarning(int(s.cfg.Pool.Config().MaxConns), s.cfg.MaxInFlight); w != "" {
		warnings = append(warnings, w)
	}
	return warnings, err
}

// Lookup implements dedupe.Admin.
func (s *Store) Lookup(ctx context.Context, k dedupe.Key) (dedupe.Record, error) {
	return s.sql.Lookup(ctx, k)
}

// Forget implements dedupe.Admin.
func (s *Store) Forget(ctx context.Context, k dedupe.Key) error { return s.sql.Forget(ctx, k) }

// List implements dedupe.Admin.
func (s *Store) List(ctx context.Context, f dedupe.Filter) iter.Seq2[dedupe.Record, error] {
	return s.sql.List(ctx, f)
}

// Purge implements dedupe.Admin.
func (s *Store) Purge(ctx context.Context, before time.Time, limit int) (int, error) {
	return s.sql.Purge(ctx, before, limit)
}

// StartPurge begins to purge, as the first Claim does; see sqlstore.
func (s *Store) StartPurge() { s.sql.StartPurge() }

// Close implements dedupe.Store: it ends the purge, rolls back what is held, and gives up after about 5 s
// on connections that don't answer. The pool stays open.
func (s *Store) Close() error {
	s.mu.Lock()
	s.closed = true
	var claims []*claim
	for _, c := range s.running {
		if c != nil {
			claims = append(claims, c)
		}
	}
	s.mu.Unlock()
	var ending sync.WaitGroup // at once: each may take its time on a silent link
	for _, c := range claims {
		ending.Go(func() { c.finish(fmt.Errorf("%w: %w", dedupe.ErrLeaseLost, dedupe.ErrClosed)) })
	}
	ending.Wait()
	return errors.Join(s.sql.Close(), s.db.Close())
}

// How often Claim looks while a transaction elsewhere holds the claim.
const (
	firstLook = 5 * time.Millisecond
	lastLook  = 200 * time.Millisecond
)

// Claim implements dedupe.Store.
func (s *Store) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if err := errors.Join(k.Validate(), o.Validate()); err != nil {
		return nil, err
	}
	s.sql.StartPurge()
	until, pause := time.Now().Add(o.Wait), firstLook
	for {
		c, changed, err := s.look(ctx, k, o)
		if err != nil {
			return nil, fmt.Errorf("pgxstore: claim %s: %w", k, s.explain(err))
		}
		left := time.Until(until)
		if c.State() != dedupe.StateInProgress || left <= 0 {
			return c, nil
		}
		timer := time.NewTimer(min(pause, left))
		select {
		case <-timer.C:
		case <-changed:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
		timer.Stop()
		pause = min(2*pause, lastLook)
	}
}

// tries bounds what is tried again at once: a transaction that the server gave up, a
// record that ran out.
const tries = 10

// look looks once. changed closes when a key of this process ends.
func (s *Store) look(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (c dedupe.Claim, changed <-chan struct{}, err error) {
	if ctx.Err() != nil {
		return nil, nil, context.Cause(ctx)
	}
	// A duplicate of a key that runs here needs no connection.
	s.mu.Lock()
	changed = s.changed
	_, taken := s.running[k]
	if s.closed {
		err = dedupe.ErrClosed
	} else if !taken {
		s.running[k] = nil
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return nil, nil, err
	case taken:
		return inProgress(ctx), changed, nil
	}
	mine, err := s.insert(ctx, k, o)
	if mine != nil {
		return mine, nil, nil
	}
	s.leave(k)
	if err != nil {
		return nil, nil, err
	}
	// There is a record, or somebody elsewhere is at it; sqlstore finds out.
	o.Wait = 0
	for range tries {
		if c, err = s.sql.Claim(ctx, k, o); err != nil || c.State() != dedupe.StateClaimed {
			return c, changed, err
		}
		// The record ran out, or the other is gone: the next look will get it.
		if err = c.Rollback(ctx); err == nil {
			return inProgress(ctx), closedChannel, nil
		}
	}
	return nil, nil, err
}

var closedChannel = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

func (s *Store) leave(k dedupe.Key) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.running, k)
	close(s.changed)
	s.changed = make(chan struct{})
}

// insert begins the handler's transaction with the claim's row; nil without an error if
// there is one already.
func (s *Store) insert(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (*claim, error) {
	id := sqlrecord.ID(k)
	select {
	case s.room <- struct{}{}:
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), sqlrecord.PoolTaken(int(s.cfg.Pool.Config().MaxConns)))
	}
	claimed := false
	defer func() {
		if !claimed {
			<-s.room
		}
	}()
	var err error
	for range tries {
		var tx pgx.Tx
		if tx, err = s.cfg.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: s.cfg.Isolation}); err != nil {
			return nil, err
		}
		var tag pgconn.CommandTag
		tag, err = tx.Exec(ctx, s.text.Insert, s.text.InsertArgs(id, k, o.Token)...)
		if err == nil && tag.RowsAffected() == 1 {
			c := &claim{store: s, key: k, id: id, options: o, tx: tx}
			claimed = true // its end gives the place back
			c.ctx, c.cancel = context.WithCancelCause(context.WithValue(ctx, txKey{}, tx))
			s.mu.Lock()
			closed := s.closed
			s.running[k] = c
			s.mu.Unlock()
			if closed {
				c.finish(dedupe.ErrClosed)
				return nil, dedupe.ErrClosed
			}
			return c, nil
		}
		rollback(ctx, tx)
		if err == nil || !givenUp(err) {
			return nil, err
		}
	}
	return nil, err
}

// givenUp reports that the server ended a transaction that may succeed in another try.
func givenUp(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40001" || pg.Code == "40P01")
}

// cleanUp bounds what is done for a connection that is given back.
const cleanUp = 5 * time.Second

func rollback(ctx context.Context, tx pgx.Tx) {
	bound := cleanUp
	if until, ok := ctx.Deadline(); ok && ctx.Err() == nil {
		bound = min(bound, time.Until(until))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
	defer cancel()
	_ = tx.Rollback(ctx) // it has ended then, or pgx closes the connection
}
