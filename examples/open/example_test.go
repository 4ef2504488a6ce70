package open_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
)

// A payment is published twice, as by a producer that does not know whether the first time
// was a success, and charged once.
func Example() {
	server, err := miniredis.Run()
	if err != nil {
		panic(err)
	}
	defer server.Close()
	if err := chargeOnce(context.Background(), server.Addr()); err != nil {
		fmt.Println(err)
	}
	// Output:
	// published: added
	// published: duplicate
	// charged {"order_id":"1001","payment_id":"p9001"}
	// published: added
	// charged {"order_id":"1001","payment_id":"p9002"}
}

func chargeOnce(ctx context.Context, addr string) (err error) {
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	billing, err := idempotent.Open(ctx, idempotent.Config{
		Client: client, Service: "billing",
		Key:           eventkey.Template("pay:{$.order_id}:{$.payment_id}"),
		Retention:     7 * 24 * time.Hour,
		MaxDeliveries: 20, // then it is in {payments}.dead, with the error of its handler
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, billing.Close(ctx)) }()

	for _, id := range []string{"p9001", "p9001"} {
		if err := publish(billing, id); err != nil {
			return err
		}
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		return err
	}
	charged := make(chan struct{})
	router.AddConsumerHandler("charge", "payments", billing.Subscriber(), billing.Once().Consumer(func(msg *message.Message) error {
		fmt.Println("charged", string(msg.Payload))
		charged <- struct{}{}
		return nil
	}))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(ctx) }()
	<-charged
	if err := publish(billing, "p9002"); err != nil {
		return err
	}
	<-charged
	return errors.Join(router.Close(), <-ended)
}

func publish(billing *idempotent.PubSub, id string) error {
	msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"order_id":"1001","payment_id":%q}`, id))
	if err := billing.Publisher().Publish("payments", msg); err != nil {
		return err
	}
	receipt, _ := publisher.ReceiptOf(msg)
	fmt.Println("published:", receipt.Verdict)
	return nil
}
