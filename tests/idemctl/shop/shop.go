// Package shop fills a server with what an operator meets at night: a topic of payments with
// retries that came too late, an instance with a producer ID of its own, a group that lags, dead
// letters, records of handled events, and a topic with latches.
package shop

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// What Fill makes.
const (
	Topic    = "payments"
	Latched  = "refunds" // a topic in mode latch
	Service  = "billing" // the producer ID, the group and the namespace
	Handler  = "charge"
	Lagging  = "ledger" // a group that has read a little
	Payments = 200      // events that the service has published and handled
	Retried  = 12       // how many of them were published again, and caught
	Late     = 3        // how many came again after the window
	Failing  = 3        // events that no handler could handle
	Unread   = 25       // events that were published when nobody handled any more
	Refunds  = 5        // events of the latched topic
)

var key = eventkey.Template("pay:{$.id}")

// Payload is that of a payment.
func Payload(id int) string {
	return fmt.Sprintf(`{"id":%d,"amount":%d,"currency":"EUR"}`, id, 100+id%7*50)
}

func payment(id int) *message.Message {
	return message.NewMessage(watermill.NewUUID(), []byte(Payload(id)))
}

// Fill fills an empty server. It takes a few seconds.
func Fill(ctx context.Context, client redis.UniversalClient) error {
	for _, step := range []func(context.Context, redis.UniversalClient) error{early, work, strangers, latched} {
		if err := step(ctx, client); err != nil {
			return err
		}
	}
	return nil
}

// early adds payments 8001 … as they were added three hours ago.
func early(ctx context.Context, client redis.UniversalClient) error {
	for i := range Late {
		id := 8001 + i
		msg := payment(id)
		md := maps.Clone(msg.Metadata)
		md[eventkey.MetadataKey] = fmt.Sprintf("pay:%d", id)
		fields, err := wire.Encode(msg, md)
		if err != nil {
			return err
		}
		at := time.Now().Add(-3*time.Hour + time.Duration(i)*time.Minute).UnixMilli()
		if err := client.XAdd(ctx, &redis.XAddArgs{Stream: Topic, ID: fmt.Sprintf("%d-0", at), Values: []any(fields)}).Err(); err != nil {
			return err
		}
	}
	return nil
}

// work is the service's: it publishes and handles, and ends.
func work(ctx context.Context, client redis.UniversalClient) (err error) {
	service, err := idempotent.Open(ctx, idempotent.Config{
		Client: client, Service: Service, Key: key, Retention: 24 * time.Hour, MaxDeliveries: 3, Logger: watermill.NopLogger{},
		Subscriber: subscriber.Config{Block: 50 * time.Millisecond, RedeliverAfter: 5 * time.Millisecond, RedeliverMax: 20 * time.Millisecond, Consumer: "billing-1"},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, service.Close(context.WithoutCancel(ctx))) }()
	pub := service.Publisher()
	for id := 1; id <= Payments; id++ {
		if err := pub.Publish(Topic, payment(id)); err != nil {
			return err
		}
	}
	var again []*message.Message
	for id := range Retried {
		again = append(again, payment(id+1))
	}
	for i := range Late {
		again = append(again, payment(8001+i))
	}
	for id := range Failing {
		again = append(again, payment(9001+id))
	}
	if err := pub.Publish(Topic, again...); err != nil {
		return err
	}
	if err := client.XAdd(ctx, &redis.XAddArgs{Stream: Topic, Values: []string{"_watermill_message_uuid", "broken", "metadata", "\xc1", "payload", "{}"}}).Err(); err != nil {
		return err
	}
	if err := handle(ctx, client, service); err != nil {
		return err
	}
	for id := range Unread {
		if err := pub.Publish(Topic, payment(5001+id)); err != nil {
			return err
		}
	}
	return nil
}

// handle runs handlers until everything is handled or dead.
func handle(ctx context.Context, client redis.UniversalClient, service *idempotent.PubSub) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	router.AddConsumerHandler(Handler, Topic, service.Subscriber(), service.Once().Consumer(func(msg *message.Message) error {
		if strings.Contains(string(msg.Payload), `"id":900`) {
			return errors.New("card service: dial tcp 10.0.0.7:443: connection refused")
		}
		return nil
	}))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for done := false; !done; {
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), router.Close(), <-ended)
		case <-tick.C:
		}
		groups, err := client.XInfoGroups(ctx, Topic).Result()
		if err != nil {
			return errors.Join(err, router.Close(), <-ended)
		}
		dead, err := client.XLen(ctx, subscriber.DeadLetterTopic(Topic)).Result()
		if err != nil {
			return errors.Join(err, router.Close(), <-ended)
		}
		done = len(groups) == 1 && groups[0].Lag == 0 && groups[0].Pending == 0 && dead == Failing+1
	}
	return errors.Join(router.Close(), <-ended)
}

// strangers are another group, an instance with a producer ID of its own, and a program that
// publishes past the library.
func strangers(ctx context.Context, client redis.UniversalClient) (err error) {
	if err := client.XGroupCreate(ctx, Topic, Lagging, "0").Err(); err != nil {
		return err
	}
	if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: Lagging, Consumer: "ledger-1", Streams: []string{Topic, ">"}, Count: 2}).Err(); err != nil {
		return err
	}
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing-7f9c4d5b6c-x2v8q", Key: key}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	if err := pub.Publish(Topic, payment(101), payment(102)); err != nil {
		return err
	}
	msg := payment(103)
	fields, err := wire.Encode(msg, msg.Metadata)
	if err != nil {
		return err
	}
	return client.XAdd(ctx, &redis.XAddArgs{Stream: Topic, Values: []any(fields)}).Err()
}

func latched(ctx context.Context, client redis.UniversalClient) (err error) {
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: Service, Key: key, Mode: publisher.ModeLatch}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()
	for id := range Refunds {
		if err := pub.Publish(Latched, payment(7001+id)); err != nil {
			return err
		}
	}
	return nil
}
