package cqrshooks_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/onceward/watermill-idempotent/cqrshooks"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/middleware"
)

// OrderPlaced has a key, so that it is one event however often it is published.
type OrderPlaced struct {
	OrderID string `json:"order_id"`
}

// EventKey begins with a word for the type: other types may share the topic.
func (e OrderPlaced) EventKey() []string { return []string{"placed", e.OrderID} }

// Two handlers of a group handle an event. The second fails the first time; when the
// event comes again, the first is not run again.
func Example() {
	store, _ := dedupe.NewMemory(dedupe.MemoryConfig{})
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "billing", Retention: 24 * time.Hour}, nil)
	if err != nil {
		panic(err)
	}
	pubsub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		panic(err)
	}
	marshaler := cqrs.JSONMarshaler{GenerateName: cqrs.StructName}
	processor, err := cqrs.NewEventGroupProcessorWithConfig(router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "orders", nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return pubsub, nil
		},
		OnHandle:  cqrshooks.OnGroupEvent(once),
		Marshaler: marshaler,
		Logger:    watermill.NopLogger{},
	})
	if err != nil {
		panic(err)
	}
	tries, done := 0, make(chan struct{})
	err = processor.AddHandlersGroup("billing",
		cqrshooks.Named("charge", cqrs.NewGroupEventHandler(func(_ context.Context, e *OrderPlaced) error {
			fmt.Println("charge", e.OrderID)
			return nil
		})),
		cqrshooks.Named("mail", cqrs.NewGroupEventHandler(func(_ context.Context, e *OrderPlaced) error {
			if tries++; tries == 1 {
				fmt.Println("mail: the server is busy")
				return errors.New("busy")
			}
			fmt.Println("mail", e.OrderID)
			close(done)
			return nil
		})),
	)
	if err != nil {
		panic(err)
	}
	stopped := make(chan error, 1)
	go func() { stopped <- router.Run(context.Background()) }()
	<-router.Running()

	bus, err := cqrs.NewEventBusWithConfig(pubsub, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "orders", nil },
		OnPublish:            cqrshooks.OnPublish(),
		Marshaler:            marshaler,
	})
	if err != nil {
		panic(err)
	}
	if err := bus.Publish(context.Background(), OrderPlaced{OrderID: "1001"}); err != nil {
		panic(err)
	}
	<-done
	_ = router.Close()
	if err := <-stopped; err != nil {
		panic(err)
	}
	_ = pubsub.Close()
	_ = once.Close(context.Background())
	_ = store.Close()
	// Output:
	// charge 1001
	// mail: the server is busy
	// mail 1001
}
