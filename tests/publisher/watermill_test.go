package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

type paymentTaken struct {
	OrderID   string `json:"order_id"`
	PaymentID string `json:"payment_id"`
}

// An event bus makes a new message, with a new UUID, each time; the key comes from
// the event, and the receipts reach who called the bus.
func TestEventBus(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	p := newPublisher(t, s.Client())
	bus, err := cqrs.NewEventBusWithConfig(p, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return topic, nil },
		Marshaler:            cqrs.JSONMarshaler{},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, receipts := publisher.CollectReceipts(t.Context())
	for range 2 {
		if err := bus.Publish(ctx, paymentTaken{"1001", "p9001"}); err != nil {
			t.Fatal(err)
		}
	}
	all := receipts.All()
	if len(all) != 2 || all[0].Verdict != publisher.VerdictAdded || all[1].Verdict != publisher.VerdictDuplicate || all[0].Key != "pay:1001:p9001" {
		t.Errorf("receipts %+v", all)
	}
}

// The names that Watermill's packages define and that stand in ours as literals,
// since those packages import routers, metrics and protobuf.
func TestNamesThatAreWatermills(t *testing.T) {
	msg := payment(1)
	msg.Metadata.Set(requeuer.RetriesKey, "3")
	msg.Metadata.Set(middleware.ReasonForPoisonedKey, "it failed")
	msg.Metadata.Set(middleware.PoisonedTopicKey, "orders")
	msg.Metadata.Set(middleware.PoisonedHandlerKey, "charge")
	if a := identity.AttemptOf(msg.Metadata); a != (identity.Attempt{Requeued: 3}) {
		t.Errorf("attempt %+v", a)
	}
	if o := identity.OriginOf(msg.Metadata); o != (identity.Origin{Poisoned: true, Topic: "orders", Handler: "charge"}) {
		t.Errorf("origin %+v", o)
	}
	// A handler's messages by event name: the marshaler's field is the one that
	// child keys tell apart.
	keys := map[string]bool{}
	ctx := eventkey.WithHandled(t.Context(), eventkey.Handled{Handler: "charge", Topic: "orders", Key: "pay:1"})
	for _, event := range []any{paymentTaken{}, struct{ ID string }{}} {
		msg, err := cqrs.JSONMarshaler{}.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		r, err := identity.Resolve(ctx, "events", msg, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		keys[r.Key] = true
	}
	if len(keys) != 2 {
		t.Errorf("keys %v", keys)
	}
}

// Two handlers of one topic give up on one event: both of their copies reach the
// poison topic, and a redelivery adds none.
func TestPoisonQueueOfTwoHandlers(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, poisoned := s.Client(), testserver.Topic(t)
	var seen observe.Events[publisher.Receipt]
	p := newPublisher(t, client, func(c *publisher.Config) { c.Hooks = []publisher.Hooks{{OnPublish: seen.Add}} })
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	poison, err := middleware.PoisonQueue(p.Shared(), poisoned)
	if err != nil {
		t.Fatal(err)
	}
	router.AddMiddleware(poison)
	pubSub := gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})
	for _, name := range []string{"charge", "notify"} {
		router.AddConsumerHandler(name, "orders", pubSub, func(*message.Message) error { return errors.New("it fails") })
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- router.Run(ctx) }()
	<-router.Running()
	for range 3 { // the same event again and again
		if err := pubSub.Publish("orders", payment(1)); err != nil {
			t.Fatal(err)
		}
	}
	testserver.Eventually(t, 5*time.Second, func() error {
		if n := len(seen.All()); n < 6 {
			return fmt.Errorf("%d copies published", n)
		}
		return nil
	})
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	wantEntries(t, client, poisoned, 2)
}
