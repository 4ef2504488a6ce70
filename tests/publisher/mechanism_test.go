package publisher_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Two events under one key in one transaction: the second is compared in memory, and must not
// be taken for a duplicate.
func TestTwoContentsUnderOneKeyInOneCall(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("another content is another event there")
		}
		topic := testserver.Topic(t)
		p := newPublisher(t, s.Client(), mode(m))
		other := with(1, `{"order_id":"1000","payment_id":"p1","amount":7}`)
		receipts, err := p.Send(t.Context(), topic, payment(1), other, payment(1), payment(2))
		wantConflict(t, err, "$.amount")
		for i, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate, publisher.VerdictDuplicate, publisher.VerdictAdded} {
			wantVerdict(t, receipts[i], want)
			if (receipts[i].Err != nil) != (i == 1) {
				t.Errorf("message %d: %v", i, receipts[i].Err)
			}
		}
		wantEntries(t, s.Client(), topic, 2)
	})
}

// Stream and layout record are gone under a running publisher, which makes them anew; and a
// publisher in mode Auto that comes then finds the layout, and with it the keys.
func TestStreamAndLayoutAreGone(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client, topic := s.Client(), testserver.Topic(t)
		running := newPublisher(t, client, mode(m))
		mustPublish(t, running, topic, payment(0))
		if err := client.Del(t.Context(), topic, rediskey.LayoutKey(topic)).Err(); err != nil {
			t.Fatal(err)
		}
		wantVerdict(t, mustPublish(t, running, topic, payment(1))[0], publisher.VerdictAdded)
		late := newPublisher(t, client, mode(m), func(c *publisher.Config) {
			if m == publisher.ModeLatch {
				c.Mode = publisher.ModeAuto
			}
		})
		wantVerdict(t, mustPublish(t, late, topic, payment(1))[0], publisher.VerdictDuplicate)
		wantEntries(t, client, topic, 1)
	})
}

// A deleted stream is made anew by a process that comes new, and another program adds to it
// before the first event does: what the latches of the old stream say is void all the same.
func TestEntryOfAnotherProgramInAStreamMadeAnew(t *testing.T) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			s := testserver.Shared(t, kind)
			client, topic := s.Client(), testserver.Topic(t)
			mustPublish(t, newPublisher(t, client, mode(publisher.ModeLatch)), topic, payment(1))
			if err := client.Del(t.Context(), topic).Err(); err != nil {
				t.Fatal(err)
			}
			link := faultlink.New(t, s.Addr())
			link.Lose(func(c faultlink.Command) bool {
				if c.Is("XGROUP") { // has run, and the publisher does not know it yet
					client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{"payload", "foreign"}})
				}
				return false
			})
			late := newPublisher(t, link.Client(), mode(publisher.ModeLatch))
			wantVerdict(t, mustPublish(t, late, topic, payment(1))[0], publisher.VerdictAdded)
			wantEntries(t, client, topic, 2)
		})
	}
}

// The caller gives up and uses its message again, while the message waits in a sender for a
// connection: what is sent then is what was published.
func TestMessageIsUsedAgainWhileItIsSent(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if s.Kind() == testserver.Redis70 {
			t.Skip("the same as on 8.6")
		}
		for name, change := range map[string]change{
			"plain":       func(*publisher.Config) {},
			"fingerprint": func(c *publisher.Config) { c.Fingerprint = eventkey.JSONWithout("at") },
		} {
			t.Run(name, func(t *testing.T) {
				topic := testserver.Topic(t)
				link := faultlink.New(t, s.Addr())
				sent := new(observe.Events[publisher.Receipt])
				p := newPublisher(t, link.Client(), mode(m), change, func(c *publisher.Config) {
					c.Hooks = []publisher.Hooks{{OnPublish: func(r publisher.Receipt) { sent.Add(r) }}}
				})
				mustPublish(t, p, topic, payment(0))
				link.Cut()
				link.Stall(faultlink.Both) // a new connection waits for the reply to its greeting
				msg := payment(1)
				want := string(msg.Payload)
				for patience := 50 * time.Millisecond; ; patience *= 2 {
					ctx, cancel := context.WithTimeout(t.Context(), patience)
					msg.SetContext(ctx)
					err := p.Publish(topic, msg)
					cancel()
					if errors.Is(err, publisher.ErrOutcomeUnknown) {
						break
					}
					if patience > 20*time.Second {
						t.Fatalf("was never on its way: %v", err)
					}
				}
				before := len(sent.All())
				msg.Metadata.Set("from", "the next message")
				for i := range msg.Payload {
					msg.Payload[i] = 'x'
				}
				link.Resume()
				testserver.Eventually(t, 20*time.Second, func() error {
					if len(sent.All()) <= before {
						return errors.New("not sent yet")
					}
					return nil
				})
				for _, got := range payloads(t, s.Client(), topic) {
					if got != want && got != string(payment(0).Payload) {
						t.Errorf("entry %q, want %q", got, want)
					}
				}
			})
		}
	})
}

// The event of another publisher, of the same content: that the reply was lost does not make
// it our own first try.
func TestLostReplyOfADuplicate(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		other, p := newPublisher(t, s.Client(), mode(m)), newPublisher(t, link.Client(), mode(m))
		mustPublish(t, other, topic, payment(0))
		mustPublish(t, p, topic, payment(1))
		link.LoseNext(1, "xadd", "eval", "evalsha")
		r := mustPublish(t, p, topic, payment(0))[0]
		wantVerdict(t, r, publisher.VerdictDuplicate)
		if !r.Resent || link.Stats().Lost != 1 {
			t.Errorf("no reply was lost: %+v", r)
		}
	})
}
