package publisher_test

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// panics is a fingerprint that can't say where two payloads differ.
type panics struct{}

func (panics) Sum(msg *message.Message) ([]byte, error) { return msg.Payload, nil }
func (panics) FirstDifference(_, _ []byte) string       { panic("difference") }

// Code of the application's that panics while a batch is sent must not take the batch,
// the topic or the process along.
func TestUserCodePanics(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		p := newPublisher(t, s.Client(), mode(m), func(c *publisher.Config) {
			c.RetryFor = 2 * time.Second
			c.Fingerprint = panics{}
			c.Hooks = []publisher.Hooks{{
				OnPublish: func(publisher.Receipt) { panic("hook") },
				OnWindow:  func(publisher.WindowEvent) { panic("hook") },
			}}
		})
		for n := range 5 { // more than there are senders
			wantVerdict(t, mustPublish(t, p, topic, payment(n))[0], publisher.VerdictAdded)
		}
		if m != publisher.ModeIDMPAuto { // there other content is another event
			msg := payment(0)
			msg.Payload = append(msg.Payload, ' ')
			if err := p.Publish(topic, msg); !errors.Is(err, publisher.ErrConflict) {
				t.Errorf("error %v, want a conflict", err)
			}
		}
		wantEntries(t, s.Client(), topic, 5)

		q := newPublisher(t, s.Client(), mode(m), func(c *publisher.Config) {
			c.Producer = eventkey.Func(func(string, *message.Message) (string, error) { panic("producer") })
		})
		if err := q.Publish(topic, payments(5, 205)...); !publisher.IsPermanent(err) { // encoded by several goroutines
			t.Errorf("error %v", err)
		}
		wantEntries(t, s.Client(), topic, 5)
	})
}

// A handler that publishes by itself may try again: under the child key of its first
// try, which was lost or never sent, also with the new UUID that an EventBus gives.
func TestHandlerPublishesAgain(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("has no keys")
		}
		link := faultlink.New(t, s.Addr())
		p := newPublisher(t, link.Client(), mode(m), func(c *publisher.Config) { c.Key, c.RetryFor = nil, time.Second })
		topic := testserver.Topic(t)
		warm := payment(0)
		warm.Metadata.Set(eventkey.MetadataKey, "warm")
		mustPublish(t, p, topic, warm)

		handling := func(key string) func(payload string) *message.Message {
			ctx := eventkey.WithHandled(t.Context(), eventkey.Handled{Namespace: "billing", Handler: "charge", Topic: "payments", Key: key})
			return func(payload string) *message.Message {
				msg := message.NewMessage("", []byte(payload)) // no UUID: none can be taken for another's
				msg.SetContext(ctx)
				return msg
			}
		}
		unknown := handling("unknown")
		link.Lose(func(faultlink.Command) bool { return true })
		if err := p.Publish(topic, unknown("paid")); !errors.Is(err, publisher.ErrOutcomeUnknown) {
			t.Fatalf("error %v", err)
		}
		link.Heal()
		if err := p.Publish(topic, unknown("something else")); !errors.Is(err, publisher.ErrNoKey) {
			t.Errorf("another message under a key that may be taken: %v", err)
		}
		wantVerdict(t, mustPublish(t, p, topic, unknown("paid"))[0], publisher.VerdictDuplicate)
		if err := p.Publish(topic, unknown("paid")); !errors.Is(err, publisher.ErrNoKey) {
			t.Errorf("a second message of the same payload, after the first was published: %v", err)
		}

		notSent := handling("not sent")
		link.Refuse()
		link.Cut()
		if err := p.Publish(topic, notSent("paid")); !errors.Is(err, publisher.ErrNotSent) {
			t.Fatalf("error %v", err)
		}
		link.Accept()
		wantVerdict(t, mustPublish(t, p, topic, notSent("something else"))[0], publisher.VerdictAdded)

		beside := handling("beside a bad one")
		if err := p.Publish(topic, beside("paid"), nil); err == nil {
			t.Fatal("a nil message")
		}
		wantVerdict(t, mustPublish(t, p, topic, beside("paid"))[0], publisher.VerdictAdded)
		wantEntries(t, s.Client(), topic, 4)
	})
}

// What the decorator refuses has a receipt, too: that of an earlier publish must not
// stay.
func TestGuardRefusesWithAReceipt(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	p, _ := guarded(t, s.Client(), redisstream.PublisherConfig{})
	topic, msg := testserver.Topic(t), payment(1)
	mustPublish(t, p, topic, msg)
	ctx, receipts := publisher.CollectReceipts(msg.Context())
	msg.SetContext(ctx)
	msg.Payload = []byte("no JSON, so no key")
	if err := p.Publish(topic, msg); err == nil {
		t.Fatal("published")
	}
	if r, ok := publisher.ReceiptOf(msg); !ok || r.Err == nil || r.Verdict != publisher.VerdictUnknown {
		t.Errorf("receipt %+v", r)
	}
	if all := receipts.All(); len(all) != 1 || all[0].Err == nil {
		t.Errorf("collected %+v", all)
	}
}
