package middleware_test

import (
	"context"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/onceward/watermill-idempotent/cqrshooks"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	oncemw "github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// The chain of docs/handling.md, the outermost first.
func Example_order() {
	build := func(router *message.Router, pub message.Publisher) error {
		poisonQueue, err := middleware.PoisonQueueWithFilter(pub, "poison", oncemw.ShouldPoison)
		if err != nil {
			return err
		}
		retry := middleware.Retry{MaxRetries: 2, ShouldRetry: func(p middleware.RetryParams) bool { return oncemw.ShouldRetry(p.Err) }}
		router.AddMiddleware(
			middleware.Recoverer,     // a panic that got past everything
			middleware.CorrelationID, // also onto recorded messages that are published again
			poisonQueue,              // after the last retry
			retry.Middleware,         // not of what another try can't help
			middleware.Recoverer,     // makes an error of a panic, for Retry and PoisonQueue
		)
		return nil
	}
	_ = build
}

// OrderPlaced is an event.
type OrderPlaced struct{ OrderID string }

// A CQRS handler that writes through the transaction of its record.
func Example_txInACQRSHandler() {
	book := cqrshooks.Named("book", cqrs.NewGroupEventHandler(func(ctx context.Context, e *OrderPlaced) error {
		tx, ok := sqlstore.TxFrom(ctx) // committed with the record, by neither of you
		if !ok {
			return sqlstore.ErrNoTx // OnHandle is missing, or is for another store
		}
		_, err := tx.ExecContext(ctx, "INSERT INTO bookings (order_id) VALUES ($1)", e.OrderID)
		return err
	}))
	_ = book
}

// Two stores in one group: each handler has the one that fits it.
func Example_twoStoresInAGroup() {
	build := func(inDatabase, inRedis *oncemw.Once, config cqrs.EventGroupProcessorConfig) cqrs.EventGroupProcessorConfig {
		transactional := cqrshooks.OnGroupEvent(inDatabase)
		leased := cqrshooks.OnGroupEvent(inRedis)
		config.OnHandle = func(params cqrs.EventGroupProcessorOnHandleParams) error {
			if h, ok := params.Handler.(interface{ HandlerName() string }); ok && h.HandlerName() == "book" {
				return transactional(params)
			}
			return leased(params)
		}
		return config
	}
	_ = build
}

// From an outbox in the database to a stream.
func Example_outbox() {
	build := func(fromOutbox message.Subscriber, pub message.Publisher, logger watermill.LoggerAdapter) error {
		daemon, err := forwarder.NewForwarder(fromOutbox, pub, logger, forwarder.Config{ForwarderTopic: "outbox"})
		if err != nil {
			return err
		}
		return daemon.Run(context.Background())
	}
	_ = build
}

// The reason for a dead letter, without Once.
func Example_noteFailure() {
	build := func(router *message.Router, retry middleware.Retry) {
		router.AddMiddleware(subscriber.NoteFailure, retry.Middleware) // first: outside of all others
	}
	_ = build
}
