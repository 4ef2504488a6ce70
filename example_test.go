package idempotent_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// What the examples have around them.
var (
	logger   = watermill.NewStdLogger(false, false)
	client   = redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	store, _ = dedupe.NewMemory(dedupe.MemoryConfig{})
)

// From the client to an event that is handled once.
func Example() {
	_ = func(ctx context.Context, router *message.Router) error {
		client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
		billing, err := idempotent.Open(ctx, idempotent.Config{
			Client: client, Service: "billing", // the same in all instances and after a restart
			Key:           eventkey.Template("pay:{$.order_id}:{$.payment_id}"), // which messages are the same event
			Retention:     7 * 24 * time.Hour,                                   // longer than an event can take to come again
			MaxDeliveries: 20,                                                   // about six minutes of tries, then it is a dead letter
		})
		if err != nil {
			return err
		}
		router.AddHandler("charge", "payments", billing.Subscriber(), "receipts", billing.Publisher(), billing.Once().Handler(charge))

		if err := publish(billing); err != nil {
			return err
		}
		if err := router.Run(ctx); err != nil { // until ctx ends
			return err
		}
		return errors.Join(billing.Close(context.WithoutCancel(ctx)), client.Close())
	}
}

func publish(billing *idempotent.PubSub) error {
	msg := message.NewMessage(watermill.NewUUID(), []byte(`{"order_id":"1001","payment_id":"p9001","amount":"49.90"}`))
	if err := billing.Publisher().Publish("payments", msg); err != nil {
		return err // publishing it again is safe
	}
	receipt, _ := publisher.ReceiptOf(msg)
	fmt.Println(receipt.Verdict, receipt.EntryID) // "added", or "duplicate" and the entry of the original
	return nil
}

// All faults at once, before anything is sent.
func ExampleOpen_invalidConfig() {
	_, err := idempotent.Open(context.Background(), idempotent.Config{
		Service:    "billing",
		Key:        eventkey.Template("pay:{$.order_id}:{$.payment_id}"),
		Retention:  7 * 24 * time.Hour,
		Store:      store,
		Subscriber: subscriber.Config{Client: client, Group: "billing-v2"},
	})
	fmt.Println(err)
	// Output:
	// idempotent: invalid config:
	// Client is nil, and so is Publisher.Client: set Client to the *redis.Client or *redis.ClusterClient of the service
	// Service "billing" and Subscriber.Group "billing-v2" differ: leave Subscriber.Group out; for names that differ leave Service empty and set Publisher.ProducerID, Subscriber.Group and Once.Namespace
}

// The parts by themselves, with any Watermill publisher.
func Example_parts() {
	_ = handleOnce
}

func handleOnce(router *message.Router, client redis.UniversalClient, pub message.Publisher) error {
	sub, err := subscriber.New(subscriber.Config{Client: client, Group: "billing", MaxDeliveries: 20}, logger)
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
