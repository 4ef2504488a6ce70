package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// A loop of one's own: the handler fails, succeeds, and does not run again. In a Router,
// wrap it by once.Consumer or once.Handler.
func Example() {
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		panic(err)
	}
	once, err := middleware.New(middleware.Config{
		Store:     store,
		Namespace: "payments",
		Retention: 24 * time.Hour,
		Key:       eventkey.Template("pay:{$.payment_id}"),
	}, nil)
	if err != nil {
		panic(err)
	}
	tries := 0
	charge := func(context.Context) ([]*message.Message, error) {
		if tries++; tries == 1 {
			return nil, errors.New("no connection to the bank")
		}
		return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
	}
	for range 3 {
		msg := message.NewMessage("", []byte(`{"payment_id":"p9001"}`))
		out, err := once.Run(context.Background(), msg, "charge", charge)
		fmt.Println(tries, len(out), err)
	}
	_ = once.Close(context.Background())
	_ = store.Close()
	// Output:
	// 1 0 no connection to the bank
	// 2 1 <nil>
	// 2 1 <nil>
}
