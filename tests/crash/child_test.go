package crash_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"
	_ "modernc.org/sqlite"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// order is what a child is told.
type order struct {
	Addr, In, Out string // of Redis, and the topics
	Store         string // redis, or a dialect
	Driver, DSN   string // of a dialect
	Point         string // where to die; empty: end when all is handled
}

const (
	group = "billing"
	lease = 3 * time.Second // a machine may stall for two
)

// The points, in the order of the flow.
const (
	beforeClaim   = "before the claim"
	afterClaim    = "after the claim"
	afterEffect   = "after the effect, before the record"
	afterRecord   = "after the record, before the publish"
	afterOutput1  = "after output 1 of 2"
	afterOutputs  = "after the outputs, before the acknowledgement"
	afterAck      = "after the acknowledgement"
	beforeSettle  = "after the broker's acknowledgement, before the settling"
	withoutACrash = ""
	frozen        = "frozen after the effect" // SIGSTOP; it goes on when thawed
)

// die is kill -9: no deferred call runs, no connection is closed in order.
func die() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

func (o order) at(point string) {
	if o.Point == point {
		die()
	}
}

// child is a consumer process.
func child() error {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &o); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: o.Addr})
	store, effect, err := o.open(client)
	if err != nil {
		return err
	}
	once, err := middleware.New(middleware.Config{
		Store: &dyingStore{store, o, client}, Namespace: "billing", Retention: time.Hour, Lease: lease, Delay: 100 * time.Millisecond,
		Hooks: []middleware.Hooks{{OnLeaseLost: func(middleware.Event) { client.Incr(context.Background(), o.In+":lost") }}},
	}, nil)
	if err != nil {
		return err
	}
	sub, err := subscriber.New(subscriber.Config{
		Client: client, Group: group, Block: 50 * time.Millisecond, Heartbeat: 200 * time.Millisecond, MinIdle: lease,
	}, nil)
	if err != nil {
		return err
	}
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing"}, nil)
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return err
	}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			if o.Point == afterAck {
				go func() { <-msg.Acked(); die() }()
			}
			return h(msg)
		}
	})
	router.AddHandler("charge", o.In, sub, o.Out, dyingPublisher{pub, o}, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		if err := client.Incr(msg.Context(), o.In+":runs").Err(); err != nil {
			return nil, err
		}
		if err := effect(msg); err != nil {
			return nil, err
		}
		o.at(afterEffect)
		if o.Point == frozen {
			if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
				return nil, err
			}
			// The signal may reach another thread first, while this one runs on.
			timer := time.NewTimer(lease / 4)
			defer timer.Stop()
			<-timer.C
		}
		return []*message.Message{message.NewMessage("", []byte("receipt")), message.NewMessage("", []byte("mail"))}, nil
	}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	go func() {
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for range tick.C {
			if ctx.Err() != nil || (o.Point == withoutACrash || o.Point == frozen) && handled(ctx, client, o.In) {
				cancel()
				return
			}
		}
	}()
	if err := router.Run(ctx); err != nil {
		return err
	}
	bounded, stop := context.WithTimeout(context.Background(), 10*time.Second)
	defer stop()
	return once.Close(bounded)
}

// handled tells whether the group has nothing left to do.
func handled(ctx context.Context, client *redis.Client, topic string) bool {
	groups, err := client.XInfoGroups(ctx, topic).Result()
	return err == nil && len(groups) == 1 && groups[0].Pending == 0 && groups[0].Lag == 0
}

// open opens the store, and gives the effect of the handler: a row in the same
// database, or a counter in Redis.
func (o order) open(client *redis.Client) (dedupe.Store, func(*message.Message) error, error) {
	if o.Store == "redis" {
		s, err := redisstore.New(redisstore.Config{Client: client})
		return s, func(msg *message.Message) error { return client.Incr(msg.Context(), o.In+":effects").Err() }, err
	}
	db, err := sql.Open(o.Driver, o.DSN)
	if err != nil {
		return nil, nil, err
	}
	s, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Dialect(o.Store)})
	if err != nil {
		return nil, nil, err
	}
	effect := func(msg *message.Message) error {
		tx, ok := sqlstore.TxFrom(msg.Context())
		if !ok {
			return sqlstore.ErrNoTx
		}
		_, err := tx.ExecContext(msg.Context(), "INSERT INTO ledger VALUES (100)")
		return err
	}
	return s, effect, s.Migrate(context.Background())
}

// dyingStore dies around the store's steps.
type dyingStore struct {
	dedupe.Store
	o      order
	client *redis.Client
}

func (s *dyingStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	s.o.at(beforeClaim)
	c, err := s.Store.Claim(ctx, k, o)
	if err != nil {
		return nil, err
	}
	if c.State() == dedupe.StateClaimed {
		s.o.at(afterClaim)
	}
	return dyingClaim{c, s}, nil
}

type dyingClaim struct {
	dedupe.Claim
	store *dyingStore
}

func (c dyingClaim) Commit(ctx context.Context, outputs [][]byte) error {
	err := c.Claim.Commit(ctx, outputs)
	if err == nil {
		c.store.o.at(afterRecord)
	}
	return err
}

func (c dyingClaim) Settle(ctx context.Context) error {
	if o := c.store.o; o.Point == beforeSettle {
		for !handled(ctx, c.store.client, o.In) {
			if ctx.Err() != nil {
				return fmt.Errorf("the broker has no acknowledgement: %w", ctx.Err())
			}
		}
		die()
	}
	return c.Claim.Settle(ctx)
}

// dyingPublisher dies between the messages that the Router gives it.
type dyingPublisher struct {
	message.Publisher
	o order
}

func (p dyingPublisher) Publish(topic string, msgs ...*message.Message) error {
	for i, msg := range msgs {
		if err := p.Publisher.Publish(topic, msg); err != nil {
			return err
		}
		if i == 0 {
			p.o.at(afterOutput1)
		}
	}
	p.o.at(afterOutputs)
	return nil
}
