package publisher_test

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestPublishTwiceIsOneEntry(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client := s.Client()
		p := newPublisher(t, client)
		topic := testserver.Topic(t)
		first, retry := payment(1), payment(1)
		for _, msg := range []*message.Message{first, retry} {
			if err := p.Publish(topic, msg); err != nil {
				t.Fatal(err)
			}
		}
		a, _ := publisher.ReceiptOf(first)
		b, _ := publisher.ReceiptOf(retry)
		t.Logf("%+v\n%+v", a, b)
		if a.Verdict != publisher.Added || b.Verdict != publisher.Duplicate || a.EntryID != b.EntryID {
			t.Errorf("receipts %+v and %+v", a, b)
		}
		if n := entries(t, client, topic); n != 1 {
			t.Errorf("%d entries", n)
		}
		other := payment(1)
		other.Payload = []byte(`{"order_id":"1000","payment_id":"p1","amount":999}`)
		err := p.Publish(topic, other)
		var conflict *publisher.ConflictError
		if !errors.As(err, &conflict) || conflict.Field != "$.amount" {
			t.Errorf("conflict: %v", err)
		}
		if err := client.XDel(t.Context(), topic, a.EntryID).Err(); err != nil {
			t.Fatal(err)
		}
		gone := payment(1)
		if err := p.Publish(topic, gone); err != nil {
			t.Fatal(err)
		}
		if g, _ := publisher.ReceiptOf(gone); g.Verdict != publisher.OriginalGone || g.EntryID != a.EntryID {
			t.Errorf("after XDEL: %+v", g)
		}
	})
}
