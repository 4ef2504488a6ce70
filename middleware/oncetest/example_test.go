package oncetest_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware/oncetest"
)

func charge(*message.Message) ([]*message.Message, error) {
	return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
}

func newPayment(key string) *message.Message {
	msg := message.NewMessage("", []byte(`{"amount":"49.90"}`))
	msg.Metadata.Set(eventkey.MetadataKey, key)
	return msg
}

func TestCharge(t *testing.T) {
	oncetest.Check(t, oncetest.Config{
		Handler: charge, // message.HandlerFunc; oncetest.Consumer(fn) for one without messages
		Message: func() *message.Message { return newPayment("pay:1001") },
	})
}

// The process dies after the receipt was published, and the payment comes again: the card is
// charged once, and the receipt published once. In a test of yours, Check goes through all
// faults.
func ExampleRun() {
	charged := 0
	report, err := oncetest.Run(context.Background(), oncetest.Config{
		Handler: func(*message.Message) ([]*message.Message, error) {
			charged++
			return []*message.Message{message.NewMessage("", []byte("receipt"))}, nil
		},
		Message: func() *message.Message {
			msg := message.NewMessage("", []byte(`{"amount":"49.90"}`))
			msg.Metadata.Set(eventkey.MetadataKey, "pay:1001")
			return msg
		},
	}, oncetest.CrashBeforeAck)
	if err != nil {
		panic(err)
	}
	fmt.Println("charged:", charged, "skipped:", report.Skipped, "receipts:", len(report.Published))
	fmt.Println("complaints:", report.Complaints())
	// Output:
	// charged: 1 skipped: 1 receipts: 1
	// complaints: []
}

// A lease can be lost while the handler runs, and then it runs again: what it does besides
// its messages must bear that.
func ExampleRun_leaseLost() {
	ctx := context.Background()
	cfg := oncetest.Config{
		Handler: func(msg *message.Message) ([]*message.Message, error) {
			// Charge the card under an idempotency key of the bank's.
			return nil, msg.Context().Err()
		},
		Message: func() *message.Message { return newPayment("pay:1001") },
	}
	report, err := oncetest.Run(ctx, cfg, oncetest.LeaseLost)
	// report.Runs == 2: is the card charged once?
	if err != nil {
		panic(err)
	}
	fmt.Println("runs:", report.Runs)
	// Output:
	// runs: 2
}
