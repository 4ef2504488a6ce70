package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Entries are deleted while they become dead letters. Under -race this shows who reads
// what the heartbeat finds out.
func TestEntriesDeletedWhileTheyAreBuried(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
	var told atomic.Int64
	const rounds, entries = 30, 40
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.Heartbeat, c.Block, c.MaxInFlight = 10*time.Millisecond, 10*time.Millisecond, entries
		c.Hooks = []subscriber.Hooks{{
			OnLost: func(e subscriber.LostEvent) { told.Add(e.Entries) },
			// The record may be gone before the heartbeat that removed it is back.
			OnOwnershipLost: func(subscriber.OwnershipEvent) { told.Add(1) },
		}}
	}), topic)
	for round := range rounds {
		ids := publish(t, client, topic, numbered(entries)...)
		var list []*message.Message
		for range entries {
			list = append(list, receive(t, messages))
		}
		if err := client.XDel(ctx, topic, ids...).Err(); err != nil {
			t.Fatal(err)
		}
		for _, msg := range list {
			d, _ := subscriber.DeliveryOf(msg)
			d.Reject("x", nil)
			msg.Nack()
		}
		testserver.Eventually(t, within, func() error {
			if n, want := told.Load(), int64((round+1)*entries); n != want {
				return fmt.Errorf("%d lost, want %d", n, want)
			}
			return nil
		})
	}
}

// The group is destroyed while the server refuses a dead letter.
func TestGroupDestroyedWithARefusedDeadLetter(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		dead := subscriber.DeadLetterTopic(topic)
		if err := client.Set(ctx, dead, "in the way", 0).Err(); err != nil {
			t.Fatal(err)
		}
		messages, _ := subscribe(t, newSubscriber(t, client), topic)
		publish(t, client, topic, "bad", "good")
		reject := func(msg *message.Message) {
			d, _ := subscriber.DeliveryOf(msg)
			d.Reject("no", nil)
			msg.Nack()
		}
		reject(receive(t, messages))
		receive(t, messages).Ack()
		wantPending(t, client, topic, "billing", 1)
		if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
			t.Fatal(err)
		}
		testserver.Eventually(t, within, func() error {
			groups, err := client.XInfoGroups(ctx, topic).Result()
			if err != nil || len(groups) != 1 || groups[0].EntriesRead == 0 && groups[0].Pending == 0 {
				return unexpected(err, groups)
			}
			return nil
		})
		client.Del(ctx, dead)
		// Whether it is buried from what is held or comes again is a matter of timing.
		testserver.Eventually(t, within, func() error {
			select {
			case msg := <-messages:
				if string(msg.Payload) == "bad" {
					reject(msg)
				} else {
					msg.Ack()
				}
			default:
			}
			if n := client.XLen(ctx, dead).Val(); n == 0 {
				return errors.New("no dead letter")
			}
			return nil
		})
	})
}

// A refused dead letter waits for another try, and it is the count of another failure that
// finds the group missing: the dead letter goes on waiting, and is written once.
func TestCountFindsNoGroupWhileADeadLetterWaits(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		dead := subscriber.DeadLetterTopic(topic)
		if err := client.Set(ctx, dead, "in the way", 0).Err(); err != nil {
			t.Fatal(err)
		}
		var outages observe.Events[subscriber.OutageEvent]
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.MinIdle, c.ReadAhead, c.MaxHeld = 10*time.Minute, 2, 2 // no room: nobody reads
			c.Hooks = []subscriber.Hooks{{OnOutage: outages.Add}}
		}), topic)
		publish(t, client, topic, "bad", "good")
		reject := func(msg *message.Message) {
			d, _ := subscriber.DeliveryOf(msg)
			d.Reject("no", nil)
			msg.Nack()
		}
		reject(receive(t, messages))
		good := receive(t, messages)
		testserver.Eventually(t, within, func() error {
			if len(outages.All()) == 0 {
				return errors.New("no dead letter was refused")
			}
			return nil
		})
		if err := client.XGroupDestroy(ctx, topic, "billing").Err(); err != nil {
			t.Fatal(err)
		}
		good.Nack()
		testserver.Eventually(t, within, func() error {
			groups, err := client.XInfoGroups(ctx, topic).Result()
			if err != nil || len(groups) != 1 {
				return unexpected(err, groups)
			}
			return nil
		})
		client.Del(ctx, dead)
		testserver.Eventually(t, within, func() error {
			select {
			case msg := <-messages: // it may be read again
				if string(msg.Payload) == "bad" {
					reject(msg)
				} else {
					msg.Ack()
				}
			default:
			}
			groups, err := client.XInfoGroups(ctx, topic).Result()
			letters := deadLetters(t, client, topic)
			if err != nil || len(letters) != 1 || groups[0].Pending != 0 || groups[0].LastDeliveredID == "0-0" {
				return unexpected(err, fmt.Sprint(groups, len(letters)))
			}
			return nil
		})
	})
}

// Close does not ask a server that does not answer once for each dead letter.
func TestCloseWithUnansweredDeadLetters(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	link, topic := faultlink.New(t, s.Addr()), testserver.Topic(t)
	client := link.Client(func(o *redis.Options) { o.ReadTimeout = time.Second })
	sub := newSubscriber(t, client, func(c *subscriber.Config) { c.MaxInFlight, c.MinIdle = 64, time.Minute })
	messages, _ := subscribe(t, sub, topic)
	publish(t, s.Client(), topic, numbered(40)...)
	var list []*message.Message
	for range 40 {
		list = append(list, receive(t, messages))
	}
	link.Stall(faultlink.Both)
	before := link.Stats().Accepted
	for _, msg := range list {
		d, _ := subscriber.DeliveryOf(msg)
		d.Reject("", nil)
		msg.Ack()
	}
	if err := sub.Close(); err != nil {
		t.Error(err)
	}
	// What is not answered costs its connection, so every command has one of its own.
	if n := link.Stats().Accepted - before; n >= len(list) {
		t.Errorf("%d commands for %d dead letters", n, len(list))
	}
}

// The reply to a dead letter is lost, again and again: heartbeats find the entry pending
// for nobody meanwhile, and the group may be made again. There is one dead letter.
func TestReplyOfDeadLetterLost(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for _, remade := range []bool{false, true} {
			t.Run(fmt.Sprintf("remade=%t", remade), func(t *testing.T) {
				link := faultlink.New(t, s.Addr())
				client, topic := s.Client(), testserver.Topic(t)
				_, inHand := holding(t, link.Client(), topic)
				link.Lose(func(c faultlink.Command) bool { return slices.Contains(c.Args, "_dead_reason") })
				d, _ := subscriber.DeliveryOf(inHand)
				d.Reject("no", nil)
				inHand.Nack()
				wantDeadLetters(t, client, topic, 1)
				if remade {
					remake(t, client, topic, "$")
				}
				<-time.After(3 * beat)
				link.Lose(nil)
				<-time.After(1500 * time.Millisecond) // more than the longest pause before another try
				wantDeadLetters(t, client, topic, 1)
				wantPending(t, client, topic, "billing", 1) // what was read ahead
			})
		}
	})
}
