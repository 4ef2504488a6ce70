// An app on Redis Streams: it charges orders, publishes the charges, and moves
// what it can't charge to a poison queue.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/examples/existing-app/demo"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

func main() { demo.Main(run) }

type order struct {
	ID     int `json:"order_id"`
	Amount int `json:"amount"`
}

// run charges orders until ctx ends.
func run(ctx context.Context, client redis.UniversalClient, logger watermill.LoggerAdapter) error {
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing", Key: eventkey.Template("{$.order_id}")}, logger)
	if err != nil {
		return err
	}
	sub, err := subscriber.New(subscriber.Config{Client: client, Group: "billing", MaxDeliveries: 20}, logger) // then to {orders}.dead
	if err != nil {
		return err
	}
	poison, err := middleware.PoisonQueue(pub, "orders.poison")
	if err != nil {
		return err
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return err
	}
	router.AddMiddleware(poison)
	router.AddHandler("charge", "orders", sub, "charges", pub, charge)
	return router.Run(ctx)
}

func charge(msg *message.Message) ([]*message.Message, error) {
	var o order
	if err := json.Unmarshal(msg.Payload, &o); err != nil {
		return nil, fmt.Errorf("order: %w", err)
	}
	if o.Amount <= 0 {
		return nil, errors.New("nothing to charge")
	}
	return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
}
