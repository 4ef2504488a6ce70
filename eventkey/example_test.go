package eventkey_test

import (
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
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

func ExampleJSONWithout() {
	f := eventkey.JSONWithout("received_at")
	first := message.NewMessage("", []byte(`{"amount": 5, "received_at": "10:00"}`))
	retry := message.NewMessage("", []byte(`{"amount": 5, "received_at": "10:05"}`))
	other := message.NewMessage("", []byte(`{"amount": 6, "received_at": "10:05"}`))
	a, _ := f.Sum(first)
	b, _ := f.Sum(retry)
	c, _ := f.Sum(other)
	fmt.Println(string(a) == string(b), string(a) == string(c), identity.FirstDifference(f, first.Payload, other.Payload))
	// Output: true false $.amount
}

func ExampleNextAttempt() {
	msg := message.NewMessage("", nil)
	fmt.Println(identity.IdempotentID("pay:1001", identity.AttemptOf(msg.Metadata), identity.OriginOf(msg.Metadata)))
	eventkey.NextAttempt(msg)
	fmt.Println(identity.IdempotentID("pay:1001", identity.AttemptOf(msg.Metadata), identity.OriginOf(msg.Metadata)))
	// Output:
	// pay:1001
	// ~1.0:pay:1001
}
