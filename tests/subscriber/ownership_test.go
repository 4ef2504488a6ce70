package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func pendingRows(t testing.TB, client redis.UniversalClient, topic string) []redis.XPendingExt {
	t.Helper()
	rows, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{
		Stream: topic, Group: "billing", Start: "-", End: "+", Count: 10_000,
	}).Result()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

// A handler takes four times MinIdle, with one consumer and with three: one delivery.
func TestHandlerSlowerThanMinIdle(t *testing.T) {
	t.Parallel()
	for _, consumers := range []int{1, 3} {
		t.Run(fmt.Sprintf("consumers-%d", consumers), func(t *testing.T) {
			t.Parallel()
			testserver.Each(t, func(t *testing.T, s *testserver.Server) {
				t.Parallel()
				client, topic := s.Client(), testserver.Topic(t)
				publish(t, client, topic, "slow")
				const minIdle = 6 * time.Second
				fast := func(c *subscriber.Config) { c.MinIdle, c.Heartbeat = minIdle, beat }
				first, _ := subscribe(t, newSubscriber(t, client, fast), topic)
				msg := receive(t, first)
				merged := make(chan string, 10)
				for range consumers - 1 {
					other, _ := subscribe(t, newSubscriber(t, client, fast), topic)
					go func() {
						for m := range other {
							merged <- string(m.Payload)
							m.Ack()
						}
					}()
				}
				select {
				case <-first:
					t.Fatal("handed out twice to the same consumer")
				case p := <-merged:
					t.Fatalf("another consumer got %q", p)
				case <-time.After(2 * minIdle):
				}
				if err := msg.Context().Err(); err != nil {
					t.Errorf("context ended: %v", context.Cause(msg.Context()))
				}
				rows := pendingRows(t, client, topic)
				if len(rows) != 1 || rows[0].RetryCount != 1 {
					t.Errorf("pending %+v", rows)
				}
				msg.Ack()
				wantPending(t, client, topic, "billing", 0)
			})
		})
	}
}

// wantRefused waits until an acknowledgement was refused.
func wantRefused(t testing.TB, lost *observe.Events[subscriber.OwnershipEvent]) {
	t.Helper()
	testserver.Eventually(t, within, func() error {
		for _, ev := range lost.All() {
			if ev.Refused {
				return nil
			}
		}
		return fmt.Errorf("acknowledgement was not refused: %+v", lost.All())
	})
}

// A consumer is cut off from the server: the handler's context ends by its own clock before another
// consumer may start. Then its acknowledgement is refused.
func TestCutOffConsumerEndsByItsOwnClock(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "m", "read ahead")
		// A tenth of it is the head start that the one has over the other.
		fast := func(c *subscriber.Config) { c.MinIdle = 10 * time.Second }
		var lost observe.Events[subscriber.OwnershipEvent]
		behind := link.Client(func(o *redis.Options) { o.ReadTimeout, o.DialTimeout = time.Second, time.Second })
		cut, _ := subscribe(t, newSubscriber(t, behind, fast, func(c *subscriber.Config) {
			c.Hooks = []subscriber.Hooks{{OnOwnershipLost: lost.Add}}
		}), topic)
		msg := receive(t, cut)
		wantPending(t, client, topic, "billing", 2)
		link.Stall(faultlink.Both)
		other, _ := subscribe(t, newSubscriber(t, client, fast), topic)
		taken := receive(t, other)
		began := time.Now()
		select {
		case <-msg.Context().Done():
		default:
			t.Error("another consumer started while the context was alive")
		}
		if cause := context.Cause(msg.Context()); !errors.Is(cause, subscriber.ErrOwnershipLost) {
			t.Errorf("context ended by %v", cause)
		}
		if d, _ := subscriber.DeliveryOf(taken); string(taken.Payload) != "m" || d.Count() != 1 {
			t.Errorf("the other got %q with count %d", taken.Payload, d.Count())
		}
		// What the cut off one has read ahead does not go out either.
		msg.Ack()
		wantNone(t, cut, 300*time.Millisecond)
		link.Heal()
		wantRefused(t, &lost)
		rows := pendingRows(t, client, topic)
		if len(rows) != 2 {
			t.Errorf("pending %+v after %v", rows, time.Since(began))
		}
		taken.Ack()
		receive(t, other).Ack()
		wantPending(t, client, topic, "billing", 0)
		wantNone(t, cut, 100*time.Millisecond)
	})
}

// An acknowledgement that was on its way when the link stalled, and arrives after
// another consumer has taken the entry over, does not remove it from that one.
func TestLateAckIsRefused(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		link := faultlink.New(t, s.Addr())
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "m")
		behind := link.Client(func(o *redis.Options) { o.ReadTimeout = time.Minute })
		var lost observe.Events[subscriber.OwnershipEvent]
		cut, _ := subscribe(t, newSubscriber(t, behind, mortal, func(c *subscriber.Config) {
			c.Hooks = []subscriber.Hooks{{OnOwnershipLost: lost.Add}}
		}), topic)
		msg := receive(t, cut)
		link.Stall(faultlink.Requests)
		msg.Ack() // sent while ownership is fresh; the server gets it much later
		other, _ := subscribe(t, newSubscriber(t, client, mortal), topic)
		taken := receive(t, other)
		link.Resume()
		wantRefused(t, &lost)
		if n := pendingOf(t, client, topic, "billing"); n != 1 {
			t.Errorf("%d pending after the late acknowledgement", n)
		}
		select {
		case <-taken.Context().Done():
			t.Error("the new owner lost the entry")
		case <-time.After(400 * time.Millisecond):
		}
		wantPending(t, client, topic, "billing", 1)
		taken.Ack()
		wantPending(t, client, topic, "billing", 0)
	})
}

// The entry is taken over while the consumer lives (its clock and the
// other's disagree, or an operator moved it). Nothing is stolen back.
func TestTakenOverWhileAlive(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		ids := publish(t, client, topic, "in flight", "read ahead", "stays")
		var lost observe.Events[subscriber.OwnershipEvent]
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.MinIdle, c.Heartbeat = time.Minute, beat // nothing is taken back because it is idle
			c.Hooks = []subscriber.Hooks{{OnOwnershipLost: lost.Add}}
		}), topic)
		msg := receive(t, messages)
		wantPending(t, client, topic, "billing", int64(len(ids))) // the first read is of one entry: what is not read can't be taken
		if err := client.XClaimJustID(ctx, &redis.XClaimArgs{Stream: topic, Group: "billing", Consumer: "thief", Messages: ids[:2]}).Err(); err != nil {
			t.Fatal(err)
		}
		if cause := wantDone(t, msg.Context(), within); !errors.Is(cause, subscriber.ErrOwnershipLost) {
			t.Errorf("context ended by %v", cause)
		}
		msg.Ack()
		next := receive(t, messages)
		if string(next.Payload) != "stays" {
			t.Errorf("%q goes out, which belongs to another", next.Payload)
		}
		next.Ack()
		wantPending(t, client, topic, "billing", 2)
		for _, row := range pendingRows(t, client, topic) {
			if row.Consumer != "thief" {
				t.Errorf("stolen back: %+v", row)
			}
		}
		testserver.Eventually(t, within, func() error {
			if l := lost.All(); len(l) != 3 { // in flight, read ahead, refused
				return fmt.Errorf("hook got %+v", l)
			}
			return nil
		})
	})
}

// What a dead consumer has read goes to another.
func TestDeadConsumersEntriesGoToAnother(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		ids := publish(t, client, topic, numbered(5)...)
		if err := client.XGroupCreate(ctx, topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "dead", Streams: []string{topic, ">"}}).Err(); err != nil {
			t.Fatal(err)
		}
		var takeovers observe.Events[subscriber.TakeoverEvent]
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.MinIdle, c.MaxInFlight = 500*time.Millisecond, 8
			c.Hooks = []subscriber.Hooks{{OnTakeover: takeovers.Add}}
		}), topic)
		for i := range 5 {
			msg := receive(t, messages)
			if d, _ := subscriber.DeliveryOf(msg); d.EntryID() != ids[i] || d.Count() != 1 || d.Redelivered() {
				t.Errorf("%s comes with count %d, redelivered %v", d.EntryID(), d.Count(), d.Redelivered())
			}
			if i == 0 { // one at a time until one is settled
				wantNone(t, messages, 100*time.Millisecond)
			}
			msg.Ack()
		}
		wantPending(t, client, topic, "billing", 0)
		// Its consumer goes, too.
		testserver.Eventually(t, within, func() error {
			consumers, err := client.XInfoConsumers(ctx, topic, "billing").Result()
			if err != nil || len(consumers) != 1 {
				return unexpected(err, consumers)
			}
			return nil
		})
		if l := takeovers.All(); len(l) != 1 || l[0].Dead != 5 || l[0].HandedBack != 0 {
			t.Errorf("hook got %+v", l)
		}
	})
}

// However often a service restarts, its group has few consumers.
func TestThousandRestarts(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
	publish(t, client, topic, numbered(10)...)
	restarts := 1000
	if testing.Short() {
		restarts = 50
	}
	seen := make(map[string]bool)
	for i := range restarts {
		sub, err := subscriber.New(subscriber.Config{
			Client: client, Group: "billing", Block: 2 * time.Millisecond, MinIdle: time.Second, CloseTimeout: time.Second,
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		messages, err := sub.Subscribe(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 && len(seen) < 10 {
			msg := receive(t, messages)
			seen[string(msg.Payload)] = true
			msg.Ack()
		}
		if err := sub.Close(); err != nil {
			t.Fatal(err)
		}
		if i%4 == 0 { // and one that dies
			if err := client.XGroupCreateConsumer(ctx, topic, "billing", fmt.Sprintf("dead-%d", i)).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.MinIdle = 400 * time.Millisecond }), topic)
	for len(seen) < 10 {
		msg := receive(t, messages)
		if seen[string(msg.Payload)] {
			t.Errorf("%q was handled before", msg.Payload)
		}
		seen[string(msg.Payload)] = true
		msg.Ack()
	}
	testserver.Eventually(t, within, func() error {
		consumers, err := client.XInfoConsumers(ctx, topic, "billing").Result()
		if err != nil || len(consumers) > 2 {
			return unexpected(err, len(consumers))
		}
		return nil
	})
	wantPending(t, client, topic, "billing", 0)
}

// Entries are trimmed while they are pending: counted as lost, and no loop.
func TestEntriesTrimmedWhilePending(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		ids := publish(t, client, topic, numbered(6)...)
		if err := client.XGroupCreate(ctx, topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		// Three are pending for a dead consumer and gone from the stream.
		if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{Group: "billing", Consumer: "dead", Streams: []string{topic, ">"}, Count: 3}).Err(); err != nil {
			t.Fatal(err)
		}
		for _, id := range ids[:3] {
			if err := client.Do(ctx, "XCLAIM", topic, "billing", "dead", 0, id, "IDLE", 3_600_000, "JUSTID").Err(); err != nil {
				t.Fatal(err)
			}
		}
		client.XDel(ctx, topic, ids[:3]...)
		var lost observe.Events[subscriber.LostEvent]
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.Heartbeat = beat / 2
			c.Hooks = []subscriber.Hooks{{OnLost: lost.Add}}
		}), topic)
		// One waits for redelivery when it goes.
		msg := receive(t, messages)
		d, _ := subscriber.DeliveryOf(msg)
		d.Delay(3 * time.Second)
		msg.Nack()
		client.XDel(ctx, topic, ids[3])
		// One is with its handler when it goes: it is handled, not lost.
		msg = receive(t, messages)
		client.XDel(ctx, topic, ids[4])
		wantNone(t, messages, 400*time.Millisecond)
		if msg.Context().Err() != nil {
			t.Error("context of a deleted entry ended")
		}
		msg.Ack()
		receive(t, messages).Ack()
		wantPending(t, client, topic, "billing", 0)
		testserver.Eventually(t, within, func() error {
			n := int64(0)
			for _, ev := range lost.All() {
				if ev.Reason != subscriber.LostPending {
					return fmt.Errorf("hook got %+v", ev)
				}
				n += ev.Entries
			}
			if n != 4 {
				return fmt.Errorf("%d lost, want 4: %+v", n, lost.All())
			}
			return nil
		})
		wantNone(t, messages, 100*time.Millisecond)
	})
}

// What is trimmed before the group has read it is counted.
func TestTrimmedUnreadIsCounted(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		var lost observe.Events[subscriber.LostEvent]
		hook := func(c *subscriber.Config) { c.Hooks = []subscriber.Hooks{{OnLost: lost.Add}} }
		messages, cancel := subscribe(t, newSubscriber(t, client, hook), topic)
		publish(t, client, topic, numbered(10)...)
		for range 10 {
			receive(t, messages).Ack()
		}
		wantPending(t, client, topic, "billing", 0)
		cancel()
		wantClosed(t, messages)
		publish(t, client, topic, numbered(50)...)
		if err := client.XTrimMaxLen(ctx, topic, 20).Err(); err != nil {
			t.Fatal(err)
		}
		messages, _ = subscribe(t, newSubscriber(t, client, hook), topic)
		for range 20 {
			receive(t, messages).Ack()
		}
		l := lost.All()
		if len(l) != 1 || l[0].Reason != subscriber.LostUnread || l[0].Entries != 30 {
			t.Errorf("hook got %+v, want 30 unread", l)
		}
		wantPending(t, client, topic, "billing", 0)
	})
}

// With KeepUnacked nothing unread is trimmed.
func TestKeepUnackedTrimsNothingUnread(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	s.As(t).Needs("XACKDEL")
	client, topic := s.Client(), testserver.Topic(t)
	var lost observe.Events[subscriber.LostEvent]
	sub := newSubscriber(t, client, func(c *subscriber.Config) { c.Hooks = []subscriber.Hooks{{OnLost: lost.Add}} })
	if err := sub.SubscribeInitialize(topic); err != nil {
		t.Fatal(err)
	}
	pub, err := publisher.New(publisher.Config{
		Client: client, ProducerID: "shop", Key: eventkey.MessageUUID(), DefaultMaxlen: 5, KeepUnacked: true,
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	for i := range 300 {
		if err := pub.Publish(topic, message.NewMessage(fmt.Sprint("u-", i), []byte(fmt.Sprint(i)))); err != nil {
			t.Fatal(err)
		}
	}
	messages, _ := subscribe(t, sub, topic)
	for i := range 300 {
		msg := receive(t, messages)
		if string(msg.Payload) != fmt.Sprint(i) {
			t.Fatalf("got %q, want %d", msg.Payload, i)
		}
		msg.Ack()
	}
	wantPending(t, client, topic, "billing", 0)
	if l := lost.All(); len(l) != 0 {
		t.Errorf("lost %+v", l)
	}
}
