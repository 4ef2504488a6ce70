package subscriber_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// One right is missing, and all else works: Health says so the whole time.
func TestHealthIsSteadyWhileARightIsMissing(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, command := range []string{"xack", "xclaim"} {
			t.Run(command, func(t *testing.T) {
				topic := testserver.Topic(t)
				limited := s.User(fmt.Sprint("no-", command, time.Now().UnixNano()), "~*", "+@all", "-"+command)
				sub := newSubscriber(t, limited, beating)
				messages, _ := subscribe(t, sub, topic)
				publish(t, s.Client(), topic, "0", "1")
				msg := receive(t, messages)
				if command == "xack" {
					msg.Ack()
				}
				testserver.Eventually(t, within, func() error {
					if sub.Health() == nil {
						return fmt.Errorf("healthy")
					}
					return nil
				})
				for end := time.Now().Add(6 * beat); time.Now().Before(end); <-time.After(time.Millisecond) {
					if sub.Health() == nil {
						t.Fatal("Health says that all is well")
					}
				}
			})
		}
	})
}

// DeleteOnAck needs no right to another key than those of reading.
func TestDeleteOnAckWithTheRightsOfReading(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		s.As(t).Needs("XACKDEL")
		topic := testserver.Topic(t)
		limited := s.User(fmt.Sprint("narrow-", time.Now().UnixNano()), "~"+topic, "~"+subscriber.DeadLetterTopic(topic), "+@all")
		messages, _ := subscribe(t, newSubscriber(t, limited, func(c *subscriber.Config) { c.DeleteOnAck = true }), topic)
		publish(t, s.Client(), topic, "m")
		receive(t, messages).Ack()
		wantPending(t, s.Client(), topic, "billing", 0)
	})
}

// The burial was on its way when the link stalled, and another consumer took the entry
// over: it is not counted as a dead letter.
func TestLateBurialIsNoDeadLetter(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic := s.Client(), testserver.Topic(t)
		var dead observe.Events[subscriber.DeadLetterEvent]
		var lost observe.Events[subscriber.OwnershipEvent]
		publish(t, client, topic, "m")
		short := func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = time.Second, time.Second }
		messages, _ := subscribe(t, newSubscriber(t, link.Client(short), mortal, func(c *subscriber.Config) {
			c.Hooks = []subscriber.Hooks{{OnDeadLetter: dead.Add, OnOwnershipLost: lost.Add}}
		}), topic)
		msg := receive(t, messages)
		link.Stall(faultlink.Requests)
		d, _ := subscriber.DeliveryOf(msg)
		d.Reject("no", nil)
		msg.Nack()
		other, _ := subscribe(t, newSubscriber(t, client, mortal), topic)
		taken := receive(t, other)
		link.Heal()
		testserver.Eventually(t, within, func() error {
			if len(lost.All()) == 0 && len(dead.All()) == 0 {
				return fmt.Errorf("nothing told")
			}
			return nil
		})
		<-time.After(2 * beat)
		if l := dead.All(); len(l) != 0 || len(deadLetters(t, client, topic)) != 0 {
			t.Errorf("told of %+v; in the stream: %d", l, len(deadLetters(t, client, topic)))
		}
		taken.Ack()
		wantPending(t, client, topic, "billing", 0)
	})
}

// Own entries whose renewal is late are not taken over from oneself.
func TestOwnEntriesAreNotTakenOver(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	var takeovers observe.Events[subscriber.TakeoverEvent]
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.MinIdle = 2 * time.Second // an eighth of it, and it looks again
		c.Hooks = []subscriber.Hooks{{OnTakeover: takeovers.Add}}
	}), topic)
	ids := publish(t, client, topic, "m")
	msg := receive(t, messages)
	consumer := pendingRows(t, client, topic)[0].Consumer
	for end := time.Now().Add(time.Second); time.Now().Before(end); <-time.After(10 * time.Millisecond) {
		if err := client.Do(t.Context(), "XCLAIM", topic, "billing", consumer, 0, ids[0], "IDLE", 3_600_000, "JUSTID").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if l := takeovers.All(); len(l) != 0 {
		t.Errorf("hook got %+v", l)
	}
	msg.Ack()
	wantPending(t, client, topic, "billing", 0)
}
