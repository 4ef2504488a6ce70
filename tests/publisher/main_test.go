// Package publisher_test checks the publisher on real servers.
package publisher_test

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

// payKey names the payments of these tests.
var payKey = eventkey.Template("pay:{$.order_id}:{$.payment_id}")

// newPublisher makes a publisher that is closed with the test.
func newPublisher(t testing.TB, client redis.UniversalClient, change ...func(*publisher.Config)) *publisher.Publisher {
	t.Helper()
	cfg := publisher.Config{Client: client, ProducerID: "payment-service", Key: payKey}
	for _, c := range change {
		c(&cfg)
	}
	p, err := publisher.New(cfg, testLogger{t})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// payment is a message of payment n, with a UUID of its own, as a retry by an
// application has.
func payment(n int) *message.Message {
	return message.NewMessage(newUUID(), fmt.Appendf(nil, `{"order_id":"%d","payment_id":"p%d","amount":%d}`, 1000+n/2, n, 100+n))
}
