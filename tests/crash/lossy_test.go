package crash_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/pgxstore"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// lossy makes connections that lose replies, of any server: what has arrived is thrown
// away and the connection closed. A nil one loses nothing.
type lossy struct {
	rate float64

	mu     sync.Mutex
	random *rand.Rand
	count  int
}

func (l *lossy) loses() bool {
	if l == nil {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.random.Float64() >= l.rate {
		return false
	}
	l.count++
	return true
}

func (l *lossy) lost() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

func (l *lossy) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	return lossyConn{c, l}, err
}

type lossyConn struct {
	net.Conn
	link *lossy
}

func (c lossyConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err == nil && c.link.loses() {
		_ = c.Close()
		return 0, net.ErrClosed
	}
	return n, err
}

// openDB opens the database of a transactional store.
func (l load) openDB(link *lossy) (*sql.DB, error) {
	switch l.Store {
	case "sqlite":
		return sql.Open("sqlite", l.DSN)
	case "mysql":
		cfg, err := mysql.ParseDSN(l.DSN)
		if err != nil {
			return nil, err
		}
		cfg.DialFunc = link.dial
		connector, err := mysql.NewConnector(cfg)
		if err != nil {
			return nil, err
		}
		return sql.OpenDB(connector), nil
	default:
		cfg, err := pgx.ParseConfig(l.DSN)
		if err != nil {
			return nil, err
		}
		cfg.DialFunc = link.dial
		return stdlib.OpenDB(*cfg), nil
	}
}

// open opens the store, and gives the effect of a handler.
func (l load) open(link *lossy) (dedupe.Store, func(ctx context.Context, e int) error, error) {
	ctx := context.Background()
	insert := func(e int) string { return fmt.Sprintf("INSERT INTO ledger VALUES ('%d')", e) }
	switch l.Store {
	case "redis":
		s, err := redisstore.New(redisstore.Config{Client: redis.NewClient(&redis.Options{Addr: l.DSN, Dialer: link.dial})})
		return s, nil, err
	case "pgx":
		cfg, err := pgxpool.ParseConfig(l.DSN)
		if err != nil {
			return nil, nil, err
		}
		cfg.ConnConfig.DialFunc = link.dial
		pool, err := pgxpool.NewWithConfig(ctx, cfg)
		if err != nil {
			return nil, nil, err
		}
		s, err := pgxstore.New(pgxstore.Config{Pool: pool})
		if err != nil {
			return nil, nil, err
		}
		return s, func(ctx context.Context, e int) error {
			tx, ok := pgxstore.TxFrom(ctx)
			if !ok {
				return pgxstore.ErrNoTx
			}
			_, err := tx.Exec(ctx, insert(e))
			return err
		}, migrate(ctx, s)
	default:
		db, err := l.openDB(link)
		if err != nil {
			return nil, nil, err
		}
		s, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Dialect(l.Store)})
		if err != nil {
			return nil, nil, err
		}
		return s, func(ctx context.Context, e int) error {
			tx, ok := sqlstore.TxFrom(ctx)
			if !ok {
				return sqlstore.ErrNoTx
			}
			_, err := tx.ExecContext(ctx, insert(e))
			return err
		}, migrate(ctx, s)
	}
}

// migrate tries again where a reply was lost: an application would be started again.
func migrate(ctx context.Context, s interface{ Migrate(context.Context) error }) (err error) {
	for range 5 {
		if err = s.Migrate(ctx); err == nil {
			return nil
		}
	}
	return err
}
