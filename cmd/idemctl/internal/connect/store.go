package connect

import (
	"context"
	"errors"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// The kinds of stores.
const (
	KindRedis = "redis"
	KindSQL   = "sql"
)

// AdminStore is a store that operators can look into.
type AdminStore interface {
	dedupe.Store
	dedupe.Admin
	Check(ctx context.Context) (warnings []string, err error)
}

// Store is a store of what was handled, whose server has answered.
type Store struct {
	AdminStore
	// SQL is nil for a store in Redis.
	SQL *sqlstore.Store
	// Kind is KindRedis or KindSQL.
	Kind string
	// Where says where it is: "Redis at localhost:6379, idem:done:*".
	Where string
	close func() error
}

// Close closes the store and the connections that were made for it.
func (s *Store) Close() error { return errors.Join(s.AdminStore.Close(), s.close()) }

// OpenStore opens the store of a kind; "": in the database if there is one, else in Redis.
// create is as in OpenSQL.
func (s Settings) OpenStore(ctx context.Context, kind string, create bool) (*Store, error) {
	switch {
	case kind == KindSQL || kind == "" && s.SQL != "":
		return s.openSQLStore(ctx, create)
	case kind == KindRedis || kind == "":
		r, err := s.OpenRedis(ctx)
		if err != nil {
			return nil, err
		}
		return s.RedisStore(r, r.Close)
	}
	return nil, exit.Errorf(exit.Usage, "--store %q is unknown", kind).Do("There are redis and sql.")
}

// RedisStore is the store in a Redis that is open already; done ends that with the store.
func (s Settings) RedisStore(r *Redis, done func() error) (*Store, error) {
	store, err := redisstore.New(redisstore.Config{Client: r.UniversalClient, Prefix: s.Prefix})
	if err != nil {
		return nil, errors.Join(exit.Errorf(exit.Usage, "%w", err), done())
	}
	return &Store{AdminStore: store, Kind: KindRedis, Where: "Redis at " + r.Where + ", " + s.Prefix + "*", close: done}, nil
}

func (s Settings) openSQLStore(ctx context.Context, create bool) (*Store, error) {
	if s.SQL == "" {
		return nil, exit.Errorf(exit.Usage, "there is no database").Do("Name it by --sql, or by IDEMCTL_SQL. " + hintDSN)
	}
	db, err := s.OpenSQL(ctx, create)
	if err != nil {
		return nil, err
	}
	store, err := sqlstore.New(sqlstore.Config{DB: db.DB, Dialect: db.Dialect, Table: s.Table, PurgeEvery: sqlstore.NoPurge, Logger: watermill.NopLogger{}})
	if err != nil {
		return nil, errors.Join(exit.Errorf(exit.Usage, "%w", err), db.DB.Close())
	}
	return &Store{AdminStore: store, SQL: store, Kind: KindSQL, Where: string(db.Dialect) + " at " + db.Where + ", table " + s.Table, close: db.DB.Close}, nil
}
