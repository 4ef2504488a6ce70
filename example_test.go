package idempotent_test

import (
	"context"
	"database/sql"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

var logger = watermill.NewStdLogger(false, false)

// From the consumer group to the messages that the handler returns.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	defer client.Close()
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing"}, logger)
	if err != nil {
		panic(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		panic(err)
	}
	if err := handleOnce(router, client, pub); err != nil {
		panic(err)
	}
	if err := router.Run(context.Background()); err != nil {
		panic(err)
	}
}

func handleOnce(router *message.Router, client redis.UniversalClient, pub message.Publisher) error {
	sub, err := subscriber.New(subscriber.Config{Client: client, Group: "billing"}, logger)
	if err != nil {
		return err
	}
	store, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		return err
	}
	once, err := middleware.New(middleware.Config{
		Store:     store,
		Namespace: "billing",          // the service, the same in all instances
		Retention: 7 * 24 * time.Hour, // longer than an event can take to come again
	}, logger)
	if err != nil {
		return err
	}
	router.AddHandler("charge", "payments", sub, "receipts", pub, once.Handler(charge))
	return nil
}

func charge(msg *message.Message) ([]*message.Message, error) {
	return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
}

// The same with a transactional store: the booking and the record are one commit.
func Example_transaction() {
	var (
		ctx      context.Context
		db       *sql.DB
		router   *message.Router
		sub      message.Subscriber
		pub      message.Publisher
		receipts = func(*message.Message) []*message.Message { return nil }
	)
	_ = func() error {
		store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Postgres})
		if err != nil {
			return err
		}
		if err := store.Migrate(ctx); err != nil { // makes the table, where it is missing
			return err
		}
		once, err := middleware.New(middleware.Config{Store: store, Namespace: "billing", Retention: 7 * 24 * time.Hour}, logger)
		if err != nil {
			return err
		}
		book := func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, "INSERT INTO bookings (payment) VALUES ($1)", string(msg.Payload))
			return receipts(msg), err
		}
		router.AddHandler("book", "payments", sub, "receipts", pub, once.Handler(sqlstore.WithTx(book)))
		return nil
	}
}

// A service whose events bring no key: it is made of the payload.
func Example_keyOfTheConsumer() {
	store, err := redisstore.New(redisstore.Config{Client: redis.NewClient(&redis.Options{Addr: "localhost:6379"})})
	if err != nil {
		panic(err)
	}
	once, err := middleware.New(middleware.Config{
		Store: store, Namespace: "billing", Retention: 7 * 24 * time.Hour,
		Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}"), // for messages of publishers that set none
	}, logger)
	_, _ = once, err
}
