package oncetest_test

import (
	"context"
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

func TestChargeUnderALostLease(t *testing.T) {
	ctx := context.Background()
	cfg := oncetest.Config{Handler: charge, Message: func() *message.Message { return newPayment("pay:1001") }}
	report, err := oncetest.Run(ctx, cfg, oncetest.LeaseLost)
	// report.Runs == 2: is the card charged once?
	if err != nil || report.Runs != 2 {
		t.Errorf("%+v, %v", report, err)
	}
}
