package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// payKey names the payments of these tests.
var payKey = eventkey.Template("pay:{$.order_id}:{$.payment_id}")

type change = func(*publisher.Config)

func mode(m publisher.Mode) change { return func(c *publisher.Config) { c.Mode = m } }

// newPublisher makes a publisher that is closed with the test.
func newPublisher(t testing.TB, client redis.UniversalClient, changes ...change) *publisher.Publisher {
	t.Helper()
	cfg := publisher.Config{Client: client, ProducerID: "payment-service", Key: payKey}
	for _, c := range changes {
		c(&cfg)
	}
	p, err := publisher.New(cfg, observe.NewLogger(t))
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

// setup is a server and a mode that it can do.
type setup struct {
	name string
	kind testserver.Kind
	mode publisher.Mode
}

// everyMode has each mode once, the latch on an old server as well.
func everyMode() []setup {
	return []setup{
		{"idmp", testserver.Redis86, publisher.ModeIDMP},
		{"idmpauto", testserver.Redis86, publisher.ModeIDMPAuto},
		{"latch", testserver.Redis86, publisher.ModeLatch},
		{"latch-7.0", testserver.Redis70, publisher.ModeLatch},
	}
}

func eachMode(t *testing.T, run func(t *testing.T, s *testserver.Server, m publisher.Mode)) {
	for _, s := range everyMode() {
		t.Run(s.name, func(t *testing.T) { run(t, testserver.Shared(t, s.kind), s.mode) })
	}
}

// payment is a message of payment n, with a UUID of its own, as a retry by an
// application has.
func payment(n int) *message.Message {
	return message.NewMessage(uuid.NewString(), fmt.Appendf(nil, `{"order_id":"%d","payment_id":"p%d","amount":%d}`, 1000+n/2, n, 100+n))
}

func payments(from, to int) []*message.Message {
	var msgs []*message.Message
	for n := from; n < to; n++ {
		msgs = append(msgs, payment(n))
	}
	return msgs
}

func mustPublish(t testing.TB, p message.Publisher, topic string, msgs ...*message.Message) []publisher.Receipt {
	t.Helper()
	if err := p.Publish(topic, msgs...); err != nil {
		t.Fatal(err)
	}
	return receiptsOf(t, msgs)
}

func receiptsOf(t testing.TB, msgs []*message.Message) []publisher.Receipt {
	t.Helper()
	var receipts []publisher.Receipt
	for _, msg := range msgs {
		r, ok := publisher.ReceiptOf(msg)
		if !ok {
			t.Fatalf("no receipt of %s", msg.UUID)
		}
		receipts = append(receipts, r)
	}
	return receipts
}

func wantVerdict(t testing.TB, r publisher.Receipt, want publisher.Verdict) {
	t.Helper()
	if r.Verdict != want {
		t.Errorf("verdict %v, want %v: %+v", r.Verdict, want, r)
	}
}

// entries is the number of entries in a stream; 0 when there is none.
func entries(t testing.TB, client redis.UniversalClient, topic string) int {
	t.Helper()
	n, err := client.XLen(context.Background(), topic).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

func wantEntries(t testing.TB, client redis.UniversalClient, topic string, want int) {
	t.Helper()
	if n := entries(t, client, topic); n != want {
		t.Errorf("%d entries in the stream, want %d", n, want)
	}
}

// payloads are those of a stream, in order.
func payloads(t testing.TB, client redis.UniversalClient, topic string) []string {
	t.Helper()
	list, err := client.XRange(context.Background(), topic, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range list {
		all = append(all, fmt.Sprint(e.Values["payload"]))
	}
	return all
}

func wantConflict(t testing.TB, err error, field string) {
	t.Helper()
	var conflict *publisher.ConflictError
	if !errors.As(err, &conflict) || !errors.Is(err, publisher.ErrConflict) || conflict.Field != field {
		t.Errorf("error %v, want a conflict in field %q", err, field)
	}
}
