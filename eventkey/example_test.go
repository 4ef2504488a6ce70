package eventkey_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

func ExampleTemplate() {
	source := eventkey.Template("pay:{tenant}:{$.order_id}:{$.payment_id}")

	msg := message.NewMessage("", []byte(`{"order_id": 1001, "payment_id": "p:9001"}`))
	msg.Metadata.Set("tenant", "eu")
	fmt.Println(source.Key("payments", msg))

	msg.Payload = []byte(`{"order_id": 1001}`)
	_, err := source.Key("payments", msg)
	var missing *eventkey.NoKeyError
	fmt.Println(errors.As(err, &missing), missing.Field)
	// Output:
	// pay:eu:1001:p%3A9001 <nil>
	// true $.payment_id
}

func ExampleJoin() {
	orderID, paymentID := "1001", "p9001"
	fmt.Println(eventkey.Join("pay", orderID, paymentID))
	fmt.Println(eventkey.Join("a:b", "c"), eventkey.Join("a", "b:c"))
	// Output:
	// pay:1001:p9001
	// a%3Ab:c a:b%3Ac
}

func ExampleFirst() {
	// The key that the caller chose, else one made of the payload.
	source := eventkey.First(eventkey.Metadata("Idempotency-Key"), eventkey.Template("pay:{$.payment_id}"))

	msg := message.NewMessage("", []byte(`{"payment_id": "p9001"}`))
	fmt.Println(source.Key("payments", msg))
	msg.Metadata.Set("Idempotency-Key", "8e03978e")
	fmt.Println(source.Key("payments", msg))
	// Output:
	// pay:p9001 <nil>
	// 8e03978e <nil>
}

func ExampleFunc() {
	source := eventkey.Func(func(topic string, msg *message.Message) (string, error) {
		id := msg.Metadata.Get("aggregate_id")
		if id == "" {
			return "", eventkey.ErrNoKey
		}
		return eventkey.Join(topic, id, msg.Metadata.Get("version")), nil
	})
	msg := message.NewMessage("", nil)
	msg.Metadata.Set("aggregate_id", "1001")
	msg.Metadata.Set("version", "7")
	fmt.Println(source.Key("orders", msg))
	// Output: orders:1001:7 <nil>
}

func ExampleValidate() {
	fmt.Println(eventkey.Validate(eventkey.Template("pay:{order_id}{payment_id}")))
	// Output: key template "pay:{order_id}{payment_id}": nothing separates {order_id} from {payment_id}, so different values could give one key: put a colon or other ASCII punctuation, except %, between them
}

func ExampleMetadata() {
	source := eventkey.Metadata("event_id")
	msg := message.NewMessage("", nil)
	msg.Metadata.Set("event_id", "8e03978e")
	fmt.Println(source.Key("payments", msg))

	_, err := source.Key("payments", message.NewMessage("b2c4", nil))
	fmt.Println(errors.Is(err, eventkey.ErrNoKey), err)
	// Output:
	// 8e03978e <nil>
	// true no idempotency key: event_id is missing or empty (message "b2c4" for topic "payments")
}

func ExampleCanonicalJSON() {
	source := eventkey.CanonicalJSON()
	first, _ := source.Key("readings", message.NewMessage("", []byte(`{"sensor": 7, "celsius": 21.5}`)))
	retry, _ := source.Key("readings", message.NewMessage("", []byte(`{"celsius":21.5,"sensor":7}`)))
	fmt.Println(first == retry)
	// Output: true
}

// sameContent reports whether a fingerprint takes two payloads for the same content.
func sameContent(f eventkey.Fingerprint, a, b string) bool {
	sumA, errA := f.Sum(message.NewMessage("", []byte(a)))
	sumB, errB := f.Sum(message.NewMessage("", []byte(b)))
	return errors.Join(errA, errB) == nil && bytes.Equal(sumA, sumB)
}

func ExampleJSONWithout() {
	f := eventkey.JSONWithout("received_at", "items[*].updated_at")
	const first = `{"amount": 5, "received_at": "10:00", "items": [{"sku": "x", "updated_at": 1}]}`
	fmt.Println(sameContent(f, first, `{"amount": 5, "received_at": "10:05", "items": [{"sku": "x", "updated_at": 2}]}`))
	fmt.Println(sameContent(f, first, `{"amount": 6, "received_at": "10:05", "items": [{"sku": "x", "updated_at": 2}]}`))
	// Output:
	// true
	// false
}

func ExampleJSONOnly() {
	f := eventkey.JSONOnly("amount", "items[*].sku")
	const first = `{"amount": 5, "items": [{"sku": "x", "shelf": 1}]}`
	fmt.Println(sameContent(f, first, `{"amount": 5, "items": [{"sku": "x", "shelf": 2}], "note": "retry"}`))
	fmt.Println(sameContent(f, first, `{"amount": 5, "items": [{"sku": "x"}, {"sku": "y"}]}`))
	// Output:
	// true
	// false
}

func ExampleNextAttempt() {
	msg := message.NewMessage("", nil)
	msg.Metadata.Set(eventkey.MetadataKey, "pay:1001")
	eventkey.NextAttempt(msg) // once, before the first try of a replay
	fmt.Println(msg.Metadata.Get(eventkey.MetadataKey), msg.Metadata.Get(eventkey.MetadataAttempt))
	// Output: pay:1001 1
}

func ExampleWithHandled() {
	handle := func(ctx context.Context) {
		handled, ok := eventkey.HandledFrom(ctx)
		fmt.Println(handled.Handler, "handles", handled.Key, ok)
	}
	msg := message.NewMessage("", nil)
	ctx := eventkey.WithHandled(context.Background(), eventkey.Handled{
		Namespace: "billing", Handler: "charge", Topic: "payments", Key: "pay:1001", Metadata: msg.Metadata,
	})
	handle(ctx) // which publishes with this context
	// Output: charge handles pay:1001 true
}
