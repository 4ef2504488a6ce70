package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// remake destroys the group and makes it again in one step, so that no consumer finds it
// missing.
func remake(t testing.TB, client redis.UniversalClient, topic, start string) {
	t.Helper()
	_, err := client.TxPipelined(context.Background(), func(pipe redis.Pipeliner) error {
		pipe.XGroupDestroy(context.Background(), topic, "billing")
		pipe.XGroupCreate(context.Background(), topic, "billing", start)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// beat is the heartbeat of these tests' consumers.
const beat = 250 * time.Millisecond

func beating(c *subscriber.Config) { c.MinIdle, c.Heartbeat = 10*time.Second, beat }

// mortal makes one consumer take over from another while the test waits.
func mortal(c *subscriber.Config) { c.MinIdle, c.Heartbeat = 6*time.Second, beat }

// isLook tells that a command asks how far the group is: the only script that gets nothing
// but the stream, the group and the consumer.
func isLook(c faultlink.Command) bool {
	return c.Is("EVALSHA", "EVAL") && len(c.Args) == 5 && c.Args[3] == "billing"
}

// awaitLook waits until a consumer behind the link has asked, after now, how far the group
// is.
func awaitLook(t testing.TB, link *faultlink.Link) {
	t.Helper()
	var looks atomic.Int32
	link.Lose(func(c faultlink.Command) bool {
		if isLook(c) {
			looks.Add(1)
		}
		return false
	})
	testserver.Eventually(t, within, func() error {
		// It asks right after a look, and knows the answer when it looks again.
		if n := looks.Load(); n < 2 {
			return fmt.Errorf("%d looks", n)
		}
		return nil
	})
	link.Lose(nil)
}

// holding subscribes and takes the first of two entries; the second is read ahead, and
// there is room for no more, so that the consumer reads no further.
func holding(t *testing.T, client redis.UniversalClient, topic string, change ...func(*subscriber.Config)) (<-chan *message.Message, *message.Message) {
	t.Helper()
	publish(t, client, topic, "in hand", "read ahead")
	messages, _ := subscribe(t, newSubscriber(t, client, append([]func(*subscriber.Config){beating, func(c *subscriber.Config) {
		c.ReadAhead, c.MaxHeld = 2, 2
	}}, change...)...), topic)
	msg := receive(t, messages)
	wantPending(t, client, topic, "billing", 2)
	return messages, msg
}

// The group is destroyed; a consumer that has nothing in hand makes it again, behind what
// the other one holds.
func TestGroupMadeAgainBehindWhatAnotherHolds(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, end := range []string{"ack", "nack"} {
			t.Run(end, func(t *testing.T) {
				client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
				busy, inHand := holding(t, client, topic)
				idle, _ := subscribe(t, newSubscriber(t, client, beating), topic)
				publish(t, client, topic, "other")
				receive(t, idle).Ack()
				wantPending(t, client, topic, "billing", 2)
				if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
					t.Fatal(err)
				}
				<-time.After(2 * beat)
				want := []string{"read ahead"}
				if end == "nack" {
					inHand.Nack()
					want = append(want, "in hand")
				} else {
					inHand.Ack()
				}
				var got []string
				testserver.Eventually(t, within, func() error {
					select {
					case msg := <-busy:
						got = append(got, string(msg.Payload))
						msg.Ack()
					case msg := <-idle:
						got = append(got, string(msg.Payload))
						msg.Ack()
					default:
					}
					for _, w := range want {
						if !slices.Contains(got, w) {
							return fmt.Errorf("%q did not come, only %q", w, got)
						}
					}
					return nil
				})
			})
		}
	})
}

// The group is destroyed and made again without any consumer seeing that it was missing.
func TestGroupMadeAgainUnseen(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, start := range []string{"$", "0"} {
			t.Run(start, func(t *testing.T) {
				client, topic := s.Client(), testserver.Topic(t)
				messages, inHand := holding(t, client, topic)
				remake(t, client, topic, start)
				// What is in hand does not go out a second time meanwhile.
				wantNone(t, messages, 3*beat)
				if err := inHand.Context().Err(); err != nil {
					t.Errorf("context of what is in hand: %v", context.Cause(inHand.Context()))
				}
				wantPending(t, client, topic, "billing", 2)
				inHand.Nack()
				got := map[string]int{}
				for range 2 {
					msg := receive(t, messages)
					got[string(msg.Payload)]++
					if d, _ := subscriber.DeliveryOf(msg); string(msg.Payload) == "in hand" && d.Count() != 2 {
						t.Errorf("count %d", d.Count())
					}
					msg.Ack()
				}
				if got["in hand"] != 1 || got["read ahead"] != 1 {
					t.Errorf("got %v", got)
				}
				wantPending(t, client, topic, "billing", 0)
				wantNone(t, messages, 2*beat)
			})
		}
	})
}

// The consumer dies after the group was made again: another one takes over with the
// right delivery count.
func TestGroupMadeAgainUnseenKeepsCounts(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis70).Client(), testserver.Topic(t)
	publish(t, client, topic, "m")
	messages, _ := subscribe(t, newSubscriber(t, client, beating), topic)
	receive(t, messages).Nack()
	receive(t, messages).Nack()
	receive(t, messages)
	remake(t, client, topic, "$")
	testserver.Eventually(t, within, func() error {
		rows := pendingRows(t, client, topic)
		if len(rows) != 1 || rows[0].RetryCount != 4 {
			return fmt.Errorf("pending %+v", rows)
		}
		return nil
	})
}

// A message is to become a dead letter when its group is made again.
func TestGroupMadeAgainUnseenWithADeadLetter(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		_, inHand := holding(t, client, topic)
		remake(t, client, topic, "$")
		d, _ := subscriber.DeliveryOf(inHand)
		d.Reject("no", nil)
		inHand.Nack()
		wantDeadLetters(t, client, topic, 1)
	})
}

// An acknowledgement was run and its reply lost, again and again: the entry is pending for
// nobody, and is not taken for one whose group was destroyed.
func TestLostReplyOfAckRestoresNothing(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic := s.Client(), testserver.Topic(t)
		logger := watermill.NewCaptureLogger()
		messages, _ := subscribe(t, newLogged(t, link.Client(), logger, beating), topic)
		publish(t, client, topic, "in hand", "read ahead")
		inHand := receive(t, messages)
		link.Lose(func(c faultlink.Command) bool { return slices.Contains(c.Args, "ack") })
		inHand.Ack()
		receive(t, messages).Ack()
		wantPending(t, client, topic, "billing", 0)
		for range 6 {
			<-time.After(beat / 2)
			if n := pendingOf(t, client, topic, "billing"); n != 0 {
				t.Fatalf("%d entries are pending again", n)
			}
		}
		link.Lose(nil)
		wantNone(t, messages, 2*beat)
		wantPending(t, client, topic, "billing", 0)
		// The acknowledgement that is sent again would take away at once what was restored.
		for _, m := range logger.Captured()[watermill.InfoLogLevel] {
			if strings.HasPrefix(m.Msg, "Entries are pending for nobody") {
				t.Errorf("logged: %s", m.Msg)
			}
		}
	})
}

// A consumer is cut off, another takes over what it had and acknowledges it: pending for
// nobody does not mean that the group was destroyed.
func TestAckedByAnotherIsNotRestored(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic := s.Client(), testserver.Topic(t)
		short := func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = time.Second, time.Second }
		cut, inHand := holding(t, link.Client(short), topic, mortal)
		link.Stall(faultlink.Both)
		other, _ := subscribe(t, newSubscriber(t, client, mortal), topic)
		receive(t, other).Ack()
		receive(t, other).Ack()
		wantPending(t, client, topic, "billing", 0)
		link.Heal()
		wantNone(t, cut, 4*beat)
		inHand.Ack()
		wantPending(t, client, topic, "billing", 0)
		if cause := context.Cause(inHand.Context()); !errors.Is(cause, subscriber.ErrOwnershipLost) {
			t.Errorf("context ended by %v", cause)
		}
	})
}

// What a dead consumer held is not left out when a consumer that is further on makes the
// group again.
func TestGroupDestroyedKeepsWhatTheDeadHeld(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, _ := subscribe(t, newSubscriber(t, link.Client(), func(c *subscriber.Config) {
			c.MinIdle, c.Heartbeat, c.MaxHeld, c.ReadAhead = time.Minute, beat, 1, 1
		}), topic)
		publish(t, client, topic, "0")
		full := receive(t, messages) // so it reads nothing now
		publish(t, client, topic, "dead")
		if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "dead", Streams: []string{topic, ">"}}).Err(); err != nil {
			t.Fatal(err)
		}
		full.Ack()
		publish(t, client, topic, "1")
		if msg := receive(t, messages); string(msg.Payload) != "1" {
			t.Fatalf("got %q", msg.Payload)
		} else {
			msg.Ack()
		}
		wantPending(t, client, topic, "billing", 1)
		awaitLook(t, link)
		if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
			t.Fatal(err)
		}
		for payload := ""; payload != "dead"; {
			msg := receive(t, messages)
			payload = string(msg.Payload)
			msg.Ack()
		}
	})
}

// The group is set back unseen and another consumer reads first. By what it reads itself
// next, which it had read before, a consumer notices, and asks whose its entries are long
// before the next heartbeat.
func TestGroupSetBackUnseen(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.MinIdle = 5 * time.Minute }), topic)
		publish(t, client, topic, "in hand", "read ahead")
		inHand := receive(t, messages)
		wantPending(t, client, topic, "billing", 2)
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.XGroupDestroy(ctx, topic, "billing")
			pipe.XGroupCreate(ctx, topic, "billing", "0")
			pipe.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "other", Streams: []string{topic, ">"}, Count: 1, Block: -1})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if cause := wantDone(t, inHand.Context(), within); !errors.Is(cause, subscriber.ErrOwnershipLost) {
			t.Errorf("context ended by %v", cause)
		}
		inHand.Ack()
		receive(t, messages).Ack()
		testserver.Eventually(t, within, func() error {
			rows := pendingRows(t, client, topic)
			if len(rows) != 1 || rows[0].Consumer != "other" {
				return fmt.Errorf("pending %+v", rows)
			}
			return nil
		})
		wantNone(t, messages, 200*time.Millisecond)
	})
}

// The consumer ends after its group was made again, and before it has seen that.
func TestGroupMadeAgainUnseenBeforeTheEnd(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		slow := func(c *subscriber.Config) { c.MinIdle = 5 * time.Minute }
		messages, end := subscribe(t, newSubscriber(t, client, slow), topic)
		publish(t, client, topic, "in hand", "read ahead", "read ahead, too")
		inHand := receive(t, messages)
		wantPending(t, client, topic, "billing", 3)
		remake(t, client, topic, "$")
		end()
		inHand.Nack()
		for msg := range messages { // handed out before the end was seen
			msg.Nack()
		}
		next, _ := subscribe(t, newSubscriber(t, client, slow, func(c *subscriber.Config) { c.MaxInFlight = 3 }), topic)
		for range 3 {
			receive(t, next).Ack()
		}
		wantPending(t, client, topic, "billing", 0)
		consumers, err := client.XInfoConsumers(t.Context(), topic, "billing").Result()
		if err != nil || len(consumers) != 2 { // handback and the new one
			t.Errorf("consumers %+v, %v", consumers, err)
		}
	})
}

// A consumer has started at the end of an empty stream, and read nothing, when its group
// goes: "nothing" is a place, too, and what is added before the group is there again comes.
func TestGroupDestroyedBeforeAnythingWasRead(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.StartFrom = subscriber.Latest }), topic)
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.XGroupDestroy(ctx, topic, "billing")
			pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{"payload", "m"}})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		receive(t, messages).Ack()
	})
}

// A consumer that stands by knows from its heartbeats how far the group is: it does not
// repeat what another has handled.
func TestGroupDestroyedUnderAStandby(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		ordered := func(c *subscriber.Config) { c.Order = subscriber.OrderStream }
		active, end := subscribe(t, newSubscriber(t, client, beating, ordered), topic)
		publish(t, client, topic, "0")
		receive(t, active).Ack()
		standby, _ := subscribe(t, newSubscriber(t, link.Client(), beating, ordered), topic)
		publish(t, client, topic, numbered(20)...)
		for range 20 {
			receive(t, active).Ack()
		}
		wantPending(t, client, topic, "billing", 0)
		awaitLook(t, link)
		end()
		wantClosed(t, active)
		if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
			t.Fatal(err)
		}
		publish(t, client, topic, "new")
		if msg := receive(t, standby); string(msg.Payload) != "new" {
			t.Errorf("%q came again", msg.Payload)
		}
	})
}

// onError calls a function for each error that is logged.
type onError struct {
	watermill.NopLogger
	call func(msg string)
}

func (l onError) Error(msg string, _ error, _ watermill.LogFields) { l.call(msg) }

// The group is destroyed, and once more as soon as it was made again: what was dropped
// since it would be read again is not forgotten.
func TestGroupDestroyedTwice(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		cfg := quick(client)
		cfg.RedeliverAfter, cfg.RedeliverMax = time.Second, time.Second
		var healed atomic.Int32
		sub, err := subscriber.New(cfg, onError{call: func(msg string) {
			if strings.Contains(msg, "created again") && healed.Add(1) == 1 {
				client.XGroupDestroy(ctx, topic, "billing")
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = sub.Close() })
		messages, _ := subscribe(t, sub, topic)
		publish(t, client, topic, numbered(5)...)
		receive(t, messages).Nack() // it waits
		inHand := receive(t, messages)
		wantPending(t, client, topic, "billing", 5)
		client.XGroupDestroy(ctx, topic, "billing")
		testserver.Eventually(t, within, func() error {
			if healed.Load() < 2 {
				return errors.New("the group was not made again twice")
			}
			return nil
		})
		inHand.Ack()
		for got := map[string]bool{}; len(got) < 4; {
			msg := receive(t, messages)
			got[string(msg.Payload)] = true
			msg.Ack()
		}
	})
}

// An ordered consumer's group is made again unseen, and somebody else reads it: what the
// consumer gives back, since it stands by from then on, is pending for nobody, and is not
// forgotten.
func TestGroupMadeAgainUnseenBeforeGivingBack(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.Order, c.ReadAhead, c.MaxHeld = subscriber.OrderStream, 4, 4
			c.MinIdle, c.Heartbeat = time.Minute, 15*time.Second
		}), topic)
		publish(t, client, topic, numbered(4)...)
		receive(t, messages)
		wantPending(t, client, topic, "billing", 4)
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.XGroupDestroy(ctx, topic, "billing")
			pipe.XGroupCreate(ctx, topic, "billing", "$")
			pipe.XGroupCreateConsumer(ctx, topic, "billing", "other")
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		testserver.Eventually(t, within, func() error {
			rows := pendingRows(t, client, topic)
			back := 0
			for _, r := range rows {
				if r.Consumer == "handback" {
					back++
				}
			}
			if back != 3 {
				return fmt.Errorf("pending %+v, want 3 handed back", rows)
			}
			return nil
		})
	})
}

// The reply to handing back is lost, and others take and acknowledge the entries before it
// is repeated: pending for nobody, they are not taken for entries of a destroyed group.
func TestLostReplyOfHandingBackRestoresNothing(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		messages, end := subscribe(t, newSubscriber(t, link.Client()), topic)
		ids := publish(t, client, topic, "in hand", "read ahead", "read ahead, too")
		inHand := receive(t, messages)
		wantPending(t, client, topic, "billing", 3)
		var once sync.Once
		link.Lose(func(c faultlink.Command) (lost bool) {
			if slices.Contains(c.Args, "leave") {
				once.Do(func() {
					lost = true
					client.XAck(ctx, topic, "billing", ids...)
				})
			}
			return lost
		})
		inHand.Nack() // so that there is something to hand back in any case
		end()
		for msg := range messages { // handed out before the end was seen
			msg.Nack()
		}
		if link.Stats().Lost != 1 {
			t.Errorf("%d replies lost, want 1", link.Stats().Lost)
		}
		wantPending(t, client, topic, "billing", 0)
	})
}

// The only consumer ends when its group was just destroyed: it makes it again at what is
// not settled, since the next one would begin where StartFrom says.
func TestGroupDestroyedBeforeTheEnd(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, how := range []string{"ack", "reject"} {
			t.Run(how, func(t *testing.T) {
				client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
				latest := func(c *subscriber.Config) {
					c.StartFrom, c.ReadAhead, c.MaxHeld, c.MinIdle = subscriber.Latest, 3, 3, time.Minute
				}
				messages, end := subscribe(t, newSubscriber(t, client, latest), topic)
				publish(t, client, topic, numbered(4)...)
				inHand := receive(t, messages)
				wantPending(t, client, topic, "billing", 3)
				if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
					t.Fatal(err)
				}
				want := []string{"1", "2", "3"}
				end()
				if how == "reject" {
					d, _ := subscriber.DeliveryOf(inHand)
					d.Reject("no", nil)
					want = slices.Insert(want, 0, "0")
				}
				inHand.Ack()
				for msg := range messages { // handed out before the end was seen
					msg.Nack()
				}
				next, _ := subscribe(t, newSubscriber(t, client, latest), topic)
				for _, w := range want {
					msg := receive(t, next)
					if string(msg.Payload) != w {
						t.Errorf("got %q, want %q", msg.Payload, w)
					}
					msg.Ack()
				}
				wantNone(t, next, 100*time.Millisecond)
			})
		}
	})
}
