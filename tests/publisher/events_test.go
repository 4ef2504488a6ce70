package publisher_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Each message of each call has one event with what its caller gets, also where nothing
// was sent; and each outcome says how long it took.
func TestEveryOutcomeHasOneEvent(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	link := faultlink.New(t, s.Addr())
	events := new(observe.Events[publisher.Receipt])
	hooked := func(c *publisher.Config) {
		c.MaxPayload, c.RetryFor = 10_000, 2*time.Second
		c.Hooks = []publisher.Hooks{{OnPublish: events.Add}}
	}
	p := newPublisher(t, link.Client(), hooked)
	seen := 0
	expect := func(what string, publish func(string, ...*message.Message) error, topic string, want error, msgs ...*message.Message) {
		t.Helper()
		err := publish(topic, msgs...)
		if want != nil && !errors.Is(err, want) || want == nil && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		got := events.All()[seen:]
		seen += len(got)
		if len(got) != len(msgs) {
			t.Fatalf("%s: %d events for %d messages: %+v", what, len(got), len(msgs), got)
		}
		for _, msg := range msgs {
			r, _ := publisher.ReceiptOf(msg)
			i := slices.IndexFunc(got, func(e publisher.Receipt) bool { return e.MessageUUID == msg.UUID })
			if i < 0 || got[i] != r {
				t.Errorf("%s: receipt %+v, events %+v", what, r, got)
			}
			if r.Duration <= 0 || r.Duration > time.Minute {
				t.Errorf("%s: took %v", what, r.Duration)
			}
		}
	}
	keyless := func() *message.Message { return with(1, `{"order_id":"1"}`) }
	large := func() *message.Message {
		return with(1, `{"order_id":"1","payment_id":"x","fill":%q}`, strings.Repeat("x", 20_000))
	}
	expect("added", p.Publish, topic, nil, payments(0, 3)...)
	expect("duplicates", p.Publish, topic, nil, payments(0, 3)...)
	expect("no key", p.Publish, topic, publisher.ErrNoKey, payment(5), keyless(), payment(6))
	expect("too large", p.Publish, topic, publisher.ErrTooLarge, payment(5), large())
	conflict := with(1, `{"order_id":"1000","payment_id":"p1","amount":7}`)
	expect("conflict", p.Publish, topic, publisher.ErrConflict, conflict, payment(7))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	late := payment(8)
	late.SetContext(ended)
	expect("context ended", p.Publish, topic, publisher.ErrNotSent, late, payment(9))
	link.Answer("OOM command not allowed", -1, "exec")
	expect("refused", p.Publish, topic, publisher.ErrNotSent, payment(8), payment(9))
	link.Heal()
	link.Lose(func(c faultlink.Command) bool { return c.Is("XADD") })
	expect("unknown", p.Publish, topic, publisher.ErrOutcomeUnknown, payment(8), payment(9))
	link.Heal()
	if err := p.Publish(rediskey.LayoutKey(topic), payment(1)); err == nil || len(events.All()) != seen+1 {
		t.Errorf("reserved topic: %v, %d events", err, len(events.All())-seen)
	}
	seen = len(events.All())

	guard, err := publisher.NewGuard(publisher.Config{Client: s.Client(), ProducerID: "payment-service", Key: payKey, MaxPayload: 10_000,
		Hooks: []publisher.Hooks{{OnPublish: events.Add}}}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	decorated, err := guard.Decorator()(redisPublisher(t, guard.Client()))
	if err != nil {
		t.Fatal(err)
	}
	expect("guarded", decorated.Publish, topic, nil, payments(20, 23)...)
	expect("guarded, no key", decorated.Publish, topic, publisher.ErrNoKey, payment(24), keyless())
	elsewhere, err := guard.Decorator()(redisPublisher(t, s.Client()))
	if err != nil {
		t.Fatal(err)
	}
	expect("unguarded", elsewhere.Publish, topic, publisher.ErrUnguarded, payment(24))
	_ = guard.Close()
	expect("guard closed", decorated.Publish, topic, publisher.ErrClosed, payment(25), payment(26))

	_ = p.Close()
	expect("closed", p.Publish, topic, publisher.ErrClosed, payment(30), payment(31))
	if err := p.Publish(topic, payment(32)); !strings.Contains(err.Error(), "Shared()") {
		t.Errorf("no hint at Shared: %v", err)
	}
}

// A topic, or its layout record, that is a key of another type is an operator's to mend.
func TestWrongTypeIsNamed(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client := s.Client()
		for _, before := range []bool{true, false} { // before the set-up, and under a running publisher
			for _, side := range []bool{false, true} {
				topic := testserver.Topic(t)
				key := topic
				if side {
					key = rediskey.LayoutKey(topic)
				}
				p := newPublisher(t, client, mode(m))
				if !before {
					if side {
						continue // which mode IDMP does not look at
					}
					mustPublish(t, p, topic, payment(0))
				}
				replace(t, client, key)
				err := p.Publish(topic, payment(1))
				if !errors.Is(err, publisher.ErrWrongType) || publisher.IsPermanent(err) || !strings.Contains(err.Error(), key) {
					t.Errorf("publish: %v", err)
				}
				if _, err := p.Check(t.Context(), topic); !errors.Is(err, publisher.ErrWrongType) {
					t.Errorf("check: %v", err)
				}
			}
		}
	})
}

func replace(t *testing.T, client *redis.Client, key string) {
	t.Helper()
	if err := client.Set(t.Context(), key, "x", 0).Err(); err != nil {
		t.Fatal(err)
	}
}

func redisPublisher(t *testing.T, client redis.UniversalClient) message.Publisher {
	t.Helper()
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	return pub
}
