package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/subscriber"
)

func Example() {
	client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
	logger := watermill.NewStdLogger(false, false)
	sub, err := subscriber.New(subscriber.Config{
		Client:        client,
		Group:         "billing",
		MaxInFlight:   16,
		MaxDeliveries: 10,
		// Events of one order one after the other; a failing one holds back its order only.
		Order:   subscriber.OrderKey,
		OrderBy: eventkey.Template("{$.order_id}"),
	}, logger)
	if err != nil {
		panic(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		panic(err)
	}
	router.AddConsumerHandler("charge", "orders", sub, func(msg *message.Message) error {
		return nil
	})
	if err := router.Run(context.Background()); err != nil {
		panic(err)
	}
}

var (
	errRateLimit = errors.New("rate limit")
	errNoAccount = errors.New("no such account")
)

func charge(*message.Message) error { return nil }

// A handler that knows what its errors mean.
func ExampleDeliveryOf() {
	handler := func(msg *message.Message) error {
		err := charge(msg)
		d, ok := subscriber.DeliveryOf(msg)
		if !ok {
			return err
		}
		switch {
		case errors.Is(err, errRateLimit):
			d.Delay(30 * time.Second) // not the message's fault: does not count
			return nil
		case errors.Is(err, errNoAccount):
			d.Reject("no account", err) // will never succeed
			return nil
		}
		return err
	}
	_ = handler
}

func ExampleDeadLetterTopic() {
	fmt.Println(subscriber.DeadLetterTopic("orders"))
	// Output: {orders}.dead
}
