package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
)

// What the examples have around them.
var (
	ctx    = context.Background()
	logger = watermill.NopLogger{}
	client redis.UniversalClient
	alert  = func(string, ...any) {}
)

func Example() {
	publish := func() error {
		client := redis.NewClient(&redis.Options{Addr: "localhost:6379"})
		pub, err := publisher.New(publisher.Config{
			Client:     client,
			ProducerID: "payment-service", // the same in all instances and after a restart
			Topics: map[string]publisher.TopicConfig{
				"payments": {Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}")},
			},
		}, logger)
		if err != nil {
			return err
		}
		msg := message.NewMessage(watermill.NewUUID(), []byte(`{"order_id":"1001","payment_id":"p9001","amount":"49.90"}`))
		if err := pub.Publish("payments", msg); err != nil {
			return err // publishing it again is safe
		}
		receipt, _ := publisher.ReceiptOf(msg)
		fmt.Println(receipt.Verdict, receipt.EntryID) // "added", or "duplicate" and the entry of the original
		return nil
	}
	_ = publish
}

func Example_forwarder() {
	outbox := func() error {
		pub, err := publisher.New(publisher.Config{
			Client:     client,
			ProducerID: "order-service",
			Topics: map[string]publisher.TopicConfig{
				"outbox": {
					// The key of the message inside the envelope.
					Key: eventkey.First(
						// Of a dead letter that is copied back: each is a new attempt.
						eventkey.Template("{$.metadata.idempotency_key}/{$.metadata._dead_group}/{$.metadata._dead_origin}/{$.metadata._dead_at}"),
						eventkey.Template("{$.metadata.idempotency_key}"),
						eventkey.Template("{$.metadata.idempotency_child_key}"), // of a message that a handler returns
					),
					// An envelope has the message's UUID in it, which a retry may make anew.
					Fingerprint: eventkey.JSONWithout("uuid"),
				},
			},
		}, logger)
		if err != nil {
			return err
		}
		bus := forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: "outbox"})
		_ = bus
		return nil
	}
	_ = outbox
}

func ExampleNew() {
	// All faults at once, before anything is sent.
	_, err := publisher.New(publisher.Config{
		Key:    eventkey.Template("pay:{$.order_id"),
		Window: publisher.Window{Duration: 48 * time.Hour},
	}, nil)
	fmt.Println(err)
	// Output:
	// publisher: invalid config:
	// Client is nil
	// ProducerID "": invalid producer ID: it is empty. It names the logical producer, such as "payment-service", and must be the same in all instances and after restarts, since keys are remembered per producer ID
	// Key: key template "pay:{$.order_id": the { at byte 4 is not closed: write {{ for a literal brace
	// key template "pay:{$.order_id": it has no valid field, so every message would get the same key
	// Window.Duration 48h0m0s is outside 1 s to 24h0m0s
}

func ExampleConfig() {
	pub, err := publisher.New(publisher.Config{
		Client:     client,
		ProducerID: "order-service",
		Key:        eventkey.Metadata("event_id"),
		// Each retry has another time of receipt; that makes no conflict of it.
		Fingerprint: eventkey.JSONWithout("received_at"),
		Window:      publisher.Window{Duration: 6 * time.Hour, Entries: 500_000},
		Topics: map[string]publisher.TopicConfig{
			"payments": {Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}")},
		},
		DefaultMaxlen: 1_000_000,
	}, logger)
	_, _ = pub, err
}

func ExampleIsPermanent() {
	var pub *publisher.Publisher
	handle := func(w http.ResponseWriter, msg *message.Message) {
		err := pub.Publish("payments", msg)
		var conflict *publisher.ConflictError
		switch {
		case err == nil:
			w.WriteHeader(http.StatusAccepted) // also for a duplicate: the event was added before
		case errors.As(err, &conflict):
			http.Error(w, "this payment was sent with another "+conflict.Field, http.StatusConflict)
		case publisher.IsPermanent(err):
			http.Error(w, err.Error(), http.StatusBadRequest)
		default: // outcome unknown, not sent, not replicated, or an operator must mend something
			http.Error(w, "try again", http.StatusServiceUnavailable)
		}
	}
	_ = handle
}

func ExamplePublisher_Check() {
	var pub *publisher.Publisher
	report, err := pub.Check(ctx, "payments", "refunds")
	if err != nil {
		alert("publishing would fail: %v", err)
	}
	for _, warning := range report.Warnings {
		alert("%s", warning)
	}
	// How long is a key remembered at 200 new events a second?
	if lasts := report.TimeToOverflow(200); lasts < 30*time.Minute {
		alert("keys are forgotten after %v, retries come for up to 30 minutes", lasts)
	}
	for _, t := range report.Topics {
		fmt.Println(report.Server, t.Topic, t.Layout.Mode, t.Layout.Shards, t.Window, t.Memory)
	}
}

func ExampleTopicReport_TimeToOverflow() {
	t := publisher.TopicReport{Window: publisher.Window{Duration: time.Hour, Entries: 100_000}}
	fmt.Println(t.TimeToOverflow(10))
	fmt.Println(t.TimeToOverflow(200))
	// Output:
	// 1h0m0s
	// 8m20s
}

func ExampleHooks() {
	hooks := publisher.Hooks{
		OnWindow: func(e publisher.WindowEvent) {
			switch e.Kind {
			case publisher.WindowOverflow:
				alert("%s: %d keys were forgotten too early; the window holds %d", e.Topic, e.Evicted, e.Effective.Entries)
			case publisher.WindowDiffers:
				alert("%s: the window is %v, not %v", e.Topic, e.Effective, e.Wanted)
			}
		},
		OnLayout: func(e publisher.LayoutEvent) {
			alert("%s: the layout is %v, this instance wanted %v", e.Topic, e.Layout, e.Wanted)
		},
		OnPublish: func(r publisher.Receipt) {
			switch {
			case errors.Is(r.Err, publisher.ErrConflict):
				alert("%s: two events under the key %s", r.Topic, r.Key)
			case r.Verdict == publisher.VerdictOriginalGone:
				alert("%s: %s was published again after its entry was deleted or trimmed", r.Topic, r.Key)
			}
		},
	}
	_ = publisher.Config{Hooks: []publisher.Hooks{hooks}}
}

func ExampleCollectReceipts() {
	var publish func(context.Context) error // EventBus.Publish, CommandBus.Send, …
	ctx, receipts := publisher.CollectReceipts(ctx)
	err := publish(ctx)
	for _, r := range receipts.All() {
		fmt.Println(r.Topic, r.Key, r.Verdict, r.EntryID, r.Err)
	}
	_ = err
}

func ExamplePublisher_Shared() {
	var (
		pub    *publisher.Publisher
		router *message.Router
		sub    message.Subscriber
		charge message.HandlerFunc
		refund message.HandlerFunc
	)
	// The Router closes the publisher of a handler that ends. Shared handles keep
	// the publisher for the other one.
	router.AddHandler("charge", "orders", sub, "payments", pub.Shared(), charge)
	router.AddHandler("refund", "returns", sub, "payments", pub.Shared(), refund)
}

func ExampleNewGuard() {
	decorate := func() (message.Publisher, error) {
		guard, err := publisher.NewGuard(publisher.Config{
			Client:     client,
			ProducerID: "order-service",
			Key:        eventkey.Template("order:{$.order_id}:{$.event}"),
		}, logger)
		if err != nil {
			return nil, err
		}
		pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: guard.Client()}, logger)
		if err != nil {
			return nil, err
		}
		return guard.Decorator()(pub)
	}
	_ = decorate
}

func Example_contentAsKey() {
	pub, err := publisher.New(publisher.Config{
		Client:     client,
		ProducerID: "sensor-gateway",
		// Equal content is one event. The metadata field tells two sensors apart.
		Key: eventkey.Content("sensor_id"),
	}, logger)
	_, _ = pub, err
}
