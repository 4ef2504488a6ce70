package subscriber_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// byKey is the part of the payload before the slash.
var byKey = eventkey.Func(func(_ string, msg *message.Message) (string, error) {
	key, _, ok := strings.Cut(string(msg.Payload), "/")
	if !ok {
		return "", eventkey.ErrNoKey
	}
	return key, nil
})

func orderKey(c *subscriber.Config) { c.Order, c.OrderBy = subscriber.OrderKey, byKey }

func orderStream(c *subscriber.Config) { c.Order = subscriber.OrderStream }

// An entry that was not acknowledged, or is delayed, holds back its key and no other.
func TestOrderKeyHoldsBackItsKey(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "a/1", "a/2", "b/1", "no key", "b/2", "a/3")
		messages, _ := subscribe(t, newSubscriber(t, client, orderKey, func(c *subscriber.Config) {
			c.MaxInFlight = 8
			c.RedeliverAfter, c.RedeliverMax = 3*time.Second, 3*time.Second
		}), topic)
		next := func(want string) *message.Message {
			t.Helper()
			msg := receive(t, messages)
			if string(msg.Payload) != want {
				t.Fatalf("got %q, want %q", msg.Payload, want)
			}
			return msg
		}
		a1, b1 := next("a/1"), next("b/1")
		next("no key").Ack()
		wantNone(t, messages, 100*time.Millisecond)
		a1.Nack()
		b1.Ack()
		b2 := next("b/2")
		a1 = next("a/1")
		d, _ := subscriber.DeliveryOf(a1)
		d.Delay(2500 * time.Millisecond)
		a1.Ack()
		b2.Ack()
		wantNone(t, messages, 100*time.Millisecond)
		next("a/1").Ack()
		next("a/2").Ack()
		next("a/3").Ack()
		wantPending(t, client, topic, "billing", 0)
	})
}

func TestOrderStreamHoldsBackEverything(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, numbered(50)...)
		messages, _ := subscribe(t, newSubscriber(t, client, orderStream, func(c *subscriber.Config) {
			c.MaxInFlight, c.MaxDeliveries = 8, 3
		}), topic)
		failures := map[string]int{}
		for i := 0; i < 50; {
			msg := receive(t, messages)
			if string(msg.Payload) != fmt.Sprint(i) {
				t.Fatalf("got %q, want %d", msg.Payload, i)
			}
			switch {
			case i%10 == 3: // becomes a dead letter
				if failures[fmt.Sprint(i)]++; failures[fmt.Sprint(i)] == 3 {
					i++
				}
				msg.Nack()
			case i%7 == 0 && failures[fmt.Sprint(i)] == 0:
				failures[fmt.Sprint(i)]++
				msg.Nack()
			default:
				msg.Ack()
				i++
			}
		}
		wantPending(t, client, topic, "billing", 0)
		wantDeadLetters(t, client, topic, 5)
	})
}

// A second consumer stands by while the first has pending entries, and takes over from
// it, in order, when that one ends.
func TestOrderedConsumersTakeTurns(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]func(*subscriber.Config){"key": orderKey, "stream": orderStream} {
		t.Run(name, func(t *testing.T) {
			client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
			publish(t, client, topic, "a/0", "a/1", "a/2", "a/3", "a/4", "a/5")
			first, cancel := subscribe(t, newSubscriber(t, client, order), topic)
			receive(t, first).Ack()
			msg := receive(t, first)
			second, _ := subscribe(t, newSubscriber(t, client, order), topic)
			wantNone(t, second, 300*time.Millisecond)
			cancel()
			msg.Ack()
			i := 2
			next := func(msg *message.Message) {
				t.Helper()
				if string(msg.Payload) != fmt.Sprint("a/", i) {
					t.Fatalf("got %q, want a/%d", msg.Payload, i)
				}
				i++
				msg.Ack()
			}
			for msg := range first { // handed out before the cancel was seen
				next(msg)
			}
			for i < 6 {
				next(receive(t, second))
			}
			wantPending(t, client, topic, "billing", 0)
		})
	}
}

// The dead consumer's entries have gone idle at different times; none may overtake.
func TestOrderedTakeoverWaitsForTheSlowest(t *testing.T) {
	t.Parallel()
	client, topic, ctx := testserver.Shared(t, testserver.Redis70).Client(), testserver.Topic(t), context.Background()
	ids := publish(t, client, topic, "a/0", "a/1", "a/2", "a/3")
	if err := client.XGroupCreate(ctx, topic, "billing", "0").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "dead", Streams: []string{topic, ">"}, Count: 3}).Err(); err != nil {
		t.Fatal(err)
	}
	// The last ones have been idle for long, the first one not.
	for _, id := range ids[1:3] {
		if err := client.Do(ctx, "XCLAIM", topic, "billing", "dead", 0, id, "IDLE", 3_600_000, "JUSTID").Err(); err != nil {
			t.Fatal(err)
		}
	}
	messages, _ := subscribe(t, newSubscriber(t, client, orderKey, func(c *subscriber.Config) { c.MinIdle, c.MaxInFlight = 800*time.Millisecond, 8 }), topic)
	for i := range 4 {
		msg := receive(t, messages)
		if string(msg.Payload) != fmt.Sprint("a/", i) {
			t.Fatalf("got %q, want a/%d", msg.Payload, i)
		}
		msg.Ack()
	}
}

// Entries that the active consumer has lost come back to it in parts: none that it has read
// before, and still holds, goes out in front of those that are still to come.
func TestOrderWhileLostEntriesComeBackInParts(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]func(*subscriber.Config){"key": orderKey, "stream": orderStream} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, topic, ctx := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), context.Background()
			ids := publish(t, client, topic, "a/0", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6", "a/7")
			lost := make(chan string, len(ids))
			messages, _ := subscribe(t, newSubscriber(t, client, order, func(c *subscriber.Config) {
				c.MinIdle, c.Heartbeat = 8*time.Second, 500*time.Millisecond
				c.Hooks = []subscriber.Hooks{{OnOwnershipLost: func(e subscriber.OwnershipEvent) { lost <- e.EntryID }}}
			}), topic)
			first := receive(t, messages)
			wantPending(t, client, topic, "billing", int64(len(ids))) // all are read
			// What another consumer does that takes over 1 to 4 and gives them back as it
			// finds this one alive: 1 may be taken at once, 2 to 4 have to wait.
			for i, idle := range []int{1: 3_600_000, 2: 5_000, 3: 5_000, 4: 5_000} {
				if i == 0 {
					continue
				}
				if err := client.Do(ctx, "XCLAIM", topic, "billing", "handback", 0, ids[i], "IDLE", idle, "JUSTID").Err(); err != nil {
					t.Fatal(err)
				}
			}
			for range 4 {
				select {
				case <-lost:
				case <-time.After(within):
					t.Fatal("the loss was not noticed")
				}
			}
			first.Ack()
			for i := 1; i < len(ids); i++ {
				msg := receive(t, messages)
				if string(msg.Payload) != fmt.Sprint("a/", i) {
					t.Fatalf("got %q, want a/%d", msg.Payload, i)
				}
				msg.Ack()
			}
			wantPending(t, client, topic, "billing", 0)
		})
	}
}

// All that is held lies above an entry that was handed back, and there is room for no more:
// that one is taken over all the same, or nothing would ever go out again.
func TestOrderWithAFullHouseAboveWhatWasHandedBack(t *testing.T) {
	t.Parallel()
	client, topic, ctx := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), context.Background()
	var taken atomic.Bool
	messages, _ := subscribe(t, newSubscriber(t, client, orderStream, func(c *subscriber.Config) {
		c.MinIdle, c.Heartbeat, c.ReadAhead, c.MaxHeld = 8*time.Second, time.Second, 4, 4
		c.Hooks = []subscriber.Hooks{{OnTakeover: func(subscriber.TakeoverEvent) { taken.Store(true) }}}
	}), topic)
	testserver.Eventually(t, within, func() error { // it is active
		consumers, err := client.XInfoConsumers(ctx, topic, "billing").Result()
		if err != nil || len(consumers) != 1 {
			return unexpected(err, consumers)
		}
		return nil
	})
	// A consumer without an order comes, reads the first entry, and ends between two polls.
	_, err := client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: "1-1", Values: []string{"payload", "0"}})
		p.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "short", Streams: []string{topic, ">"}, Block: -1, Count: 1})
		p.Do(ctx, "XCLAIM", topic, "billing", "handback", 0, "1-1", "IDLE", 3_600_000, "JUSTID")
		p.XGroupDelConsumer(ctx, topic, "billing", "short")
		for i := range 6 {
			p.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: fmt.Sprintf("1-%d", i+2), Values: []string{"payload", fmt.Sprint(i + 1)}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for acked := 0; acked < 7; {
		if msg := receive(t, messages); taken.Load() {
			msg.Ack()
			acked++
		} else { // all fail until the poll has seen the one that was handed back
			msg.Nack()
		}
	}
	wantPending(t, client, topic, "billing", 0)
}

// A hand-out or a dead letter finds the entry with another consumer, before a heartbeat
// does: what comes behind it waits.
func TestOrderWhenAStepFindsAnEntryLost(t *testing.T) {
	t.Parallel()
	for name, settle := range map[string]func(*message.Message){
		"hand-out": func(msg *message.Message) { msg.Nack() },
		"dead letter": func(msg *message.Message) {
			d, _ := subscriber.DeliveryOf(msg)
			d.Reject("bad", nil)
			msg.Ack()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client, topic, ctx := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), context.Background()
			ids := publish(t, client, topic, "a/0", "a/1")
			messages, _ := subscribe(t, newSubscriber(t, client, orderKey, func(c *subscriber.Config) {
				// Neither a heartbeat nor the look at the owner by the clock helps.
				c.MinIdle, c.Heartbeat, c.Block = 6*time.Second, 2*time.Second, 50*time.Millisecond
				c.RedeliverAfter, c.RedeliverMax = time.Millisecond, time.Millisecond
			}), topic)
			first := receive(t, messages)
			if err := client.Do(ctx, "XCLAIM", topic, "billing", "other", 0, ids[0], "IDLE", 0, "JUSTID").Err(); err != nil {
				t.Fatal(err)
			}
			settle(first)
			msg := receive(t, messages) // once the other gives no sign of life any more
			if string(msg.Payload) != "a/0" {
				t.Fatalf("got %q while another consumer has a/0", msg.Payload)
			}
			msg.Ack()
			if msg = receive(t, messages); string(msg.Payload) != "a/1" {
				t.Fatalf("got %q, want a/1", msg.Payload)
			}
			msg.Ack()
		})
	}
}

// The order within each key over random failures and the death of a consumer.
func TestOrderOverFailuresAndDeath(t *testing.T) {
	t.Parallel()
	messages := 100_000
	if testing.Short() {
		messages = 5_000
	}
	for _, c := range []struct {
		name string
		keys int
		set  consumerSpec
	}{
		{"key", 1000, consumerSpec{MaxInFlight: 64, Order: "key", NackPercent: 2}},
		{"stream", 1, consumerSpec{MaxInFlight: 1, Order: "stream", NackPercent: 2}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, testserver.Redis86)
			client, topic := s.Client(), testserver.Topic(t)
			n := messages
			payloads := make([]string, n)
			next := make([]int, c.keys)
			for i := range payloads {
				k := rand.IntN(c.keys)
				payloads[i] = fmt.Sprintf("%d/%d", k, next[k])
				next[k]++
			}
			for i := 0; i < n; i += 1000 {
				publish(t, client, topic, payloads[i:min(i+1000, n)]...)
			}
			spec := c.set
			spec.Addr, spec.Topic, spec.MinIdleMS, spec.StartsOnly = s.Addr(), topic, 6000, true
			first := startConsumer(t, spec)
			testserver.Eventually(t, 3*time.Minute, func() error {
				if l := client.LLen(context.Background(), logKey(topic)).Val(); l < int64(n/2) {
					return fmt.Errorf("%d lines", l)
				}
				return nil
			})
			first.kill()
			startConsumer(t, spec)
			testserver.Eventually(t, 3*time.Minute, func() error {
				p, err := client.XPending(context.Background(), topic, "billing").Result()
				if err != nil || p.Count != 0 {
					return unexpected(err, p)
				}
				if g := client.XInfoGroups(context.Background(), topic).Val(); g[0].Lag != 0 {
					return fmt.Errorf("lag %d", g[0].Lag)
				}
				return nil
			})
			// What each key saw: its next number, or again one that was not acknowledged
			// for sure (it failed, or the consumer died before the server knew).
			done := make([]int, c.keys)
			repeats := 0
			for _, l := range readLog(t, client, topic) {
				if l.event != "start" {
					continue
				}
				key, number, _ := strings.Cut(l.payload, "/")
				k, _ := strconv.Atoi(key)
				i, _ := strconv.Atoi(number)
				switch {
				case i == done[k]:
					done[k]++
				case i < done[k]:
					repeats++
					done[k] = i + 1
				default:
					t.Fatalf("key %s: %d comes before %d", key, i, done[k])
				}
			}
			for k := range next {
				if done[k] != next[k] {
					t.Errorf("key %d: %d of %d", k, done[k], next[k])
				}
			}
			if repeats > n/10 {
				t.Errorf("%d of %d came again", repeats, n)
			}
			t.Logf("%d messages, %d came again", n, repeats)
		})
	}
}

// Memory: a consumer that stops reading, and failures without end.
func TestHeldEntriesAreBounded(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	publish(t, client, topic, numbered(1000)...)
	small := func(c *subscriber.Config) { c.ReadAhead, c.MaxHeld, c.MaxInFlight = 20, 100, 4 }
	t.Run("nobody reads", func(t *testing.T) {
		_, cancel := subscribe(t, newSubscriber(t, client, small), topic)
		<-time.After(300 * time.Millisecond)
		if n := pendingOf(t, client, topic, "billing"); n > 45 {
			t.Errorf("%d entries held, 20 are read ahead", n)
		}
		cancel()
	})
	t.Run("all fail", func(t *testing.T) {
		messages, cancel := subscribe(t, newSubscriber(t, client, small, func(c *subscriber.Config) {
			c.RedeliverAfter, c.RedeliverMax = time.Minute, time.Minute
		}), topic)
		var failing sync.WaitGroup
		failing.Go(func() {
			for msg := range messages {
				msg.Nack()
			}
		})
		<-time.After(time.Second)
		if n := pendingOf(t, client, topic, "billing"); n > 100 {
			t.Errorf("%d entries held, at most 100 may be", n)
		}
		cancel()
		failing.Wait()
	})
}
