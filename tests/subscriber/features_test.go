package subscriber_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func fanOut(c *subscriber.Config) { c.Group, c.FanOut = "", true }

func TestFanOut(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "old")
		sub := newSubscriber(t, client, fanOut, func(c *subscriber.Config) { c.StartFrom = subscriber.Latest })
		all := newSubscriber(t, client, fanOut)
		first, _ := subscribe(t, sub, topic)
		second, _ := subscribe(t, sub, topic)
		third, _ := subscribe(t, all, topic)
		// The place is fixed when Subscribe returns: nothing that is added now is missed.
		publish(t, client, topic, numbered(20)...)
		if msg := receive(t, third); string(msg.Payload) != "old" {
			t.Errorf("from the beginning: %q", msg.Payload)
		} else {
			msg.Ack()
		}
		for _, messages := range []<-chan *message.Message{first, second, third} {
			failed := false
			for i := 0; i < 20; {
				msg := receive(t, messages)
				d, _ := subscriber.DeliveryOf(msg)
				if string(msg.Payload) == "7" && !failed {
					failed = true
					msg.Nack()
					continue
				}
				if string(msg.Payload) == "7" && (d.Count() != 2 || !d.Redelivered()) {
					t.Errorf("count %d on redelivery", d.Count())
				}
				msg.Ack()
				i++
			}
			wantNone(t, messages, 30*time.Millisecond)
		}
		if groups := client.XInfoGroups(context.Background(), topic).Val(); len(groups) != 0 {
			t.Errorf("groups %+v", groups)
		}
	})
}

// An entry that is gone when its redelivery is due is lost; one that can't be decoded is
// dropped with a word.
func TestFanOutLosesAndDrops(t *testing.T) {
	client, topic, ctx := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), context.Background()
	var lost observe.Events[subscriber.LostEvent]
	var dead observe.Events[subscriber.DeadLetterEvent]
	messages, _ := subscribe(t, newSubscriber(t, client, fanOut, func(c *subscriber.Config) {
		c.Hooks = []subscriber.Hooks{{OnLost: lost.Add, OnDeadLetter: dead.Add}}
	}), topic)
	ids := publish(t, client, topic, "m")
	msg := receive(t, messages)
	client.XDel(ctx, topic, ids...)
	msg.Nack()
	client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{redisstream.UUIDHeaderKey, "u", "metadata", "\xc1"}})
	publish(t, client, topic, "next")
	receive(t, messages).Ack()
	testserver.Eventually(t, within, func() error {
		if l, d := lost.All(), dead.All(); len(l) != 1 || len(d) != 1 || d[0].DeadLetterID != "" {
			return fmt.Errorf("lost %+v, dead %+v", l, d)
		}
		return nil
	})
}

func TestStartFrom(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		for i, id := range []string{"1000-0", "2000-0", "2000-1", "3000-0"} {
			client.XAdd(ctx, &redis.XAddArgs{Stream: topic, ID: id, Values: []any{redisstream.UUIDHeaderKey, "u", "payload", fmt.Sprint(i)}})
		}
		for name, c := range map[string]struct {
			start subscriber.Start
			want  string
		}{
			"beginning": {subscriber.Beginning, "0123x"},
			"latest":    {subscriber.Latest, "x"},
			"after":     {subscriber.AfterID("2000-0"), "23x"},
			"time":      {subscriber.FromTime(time.UnixMilli(2000)), "123x"},
			"time 2":    {subscriber.FromTime(time.UnixMilli(2001)), "3x"},
		} {
			for _, kind := range []string{"group", "fan-out"} {
				messages, cancel := subscribe(t, newSubscriber(t, client, func(cfg *subscriber.Config) {
					cfg.Group, cfg.StartFrom = name, c.start
					if kind == "fan-out" {
						fanOut(cfg)
					}
				}), topic)
				x := client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{redisstream.UUIDHeaderKey, "u", "payload", "x"}}).Val()
				var got strings.Builder
				for !strings.HasSuffix(got.String(), "x") {
					msg := receive(t, messages)
					got.Write(msg.Payload)
					msg.Ack()
				}
				if got.String() != c.want {
					t.Errorf("%s from %s: %q, want %q", kind, name, got.String(), c.want)
				}
				cancel()
				wantClosed(t, messages)
				client.XDel(ctx, topic, x)
			}
		}
	})
}

// SubscribeInitialize makes the group: what is published before Subscribe is received,
// also from Latest.
func TestSubscribeInitialize(t *testing.T) {
	client, topic := testserver.Shared(t, testserver.Redis70).Client(), testserver.Topic(t)
	sub := newSubscriber(t, client, func(c *subscriber.Config) { c.StartFrom = subscriber.Latest })
	if err := sub.SubscribeInitialize(topic); err != nil {
		t.Fatal(err)
	}
	publish(t, client, topic, "m")
	messages, _ := subscribe(t, sub, topic)
	receive(t, messages).Ack()
}

func TestDeleteOnAck(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		deleting := func(c *subscriber.Config) { c.DeleteOnAck, c.MaxDeliveries = true, 1 }
		if client.Do(ctx, "COMMAND", "INFO", "XACKDEL").Val().([]any)[0] == nil {
			_, err := newSubscriber(t, client, deleting).Subscribe(ctx, topic)
			if !errors.Is(err, subscriber.ErrUnsupported) || !strings.Contains(err.Error(), "8.2.2") {
				t.Errorf("Subscribe: %v", err)
			}
			return
		}
		publish(t, client, topic, numbered(10)...)
		if err := client.XGroupCreate(ctx, topic, "other", "0").Err(); err != nil {
			t.Fatal(err)
		}
		messages, _ := subscribe(t, newSubscriber(t, client, deleting), topic)
		for i := range 10 {
			msg := receive(t, messages)
			if i == 3 {
				msg.Nack()
			} else {
				msg.Ack()
			}
		}
		wantPending(t, client, topic, "billing", 0)
		wantDeadLetters(t, client, topic, 1)
		if n := client.XLen(ctx, topic).Val(); n != 10 {
			t.Errorf("%d entries, the other group has read none of 10", n)
		}
		other, _ := subscribe(t, newSubscriber(t, client, deleting, func(c *subscriber.Config) { c.Group = "other" }), topic)
		for range 10 {
			receive(t, other).Ack()
		}
		testserver.Eventually(t, within, func() error {
			if n := client.XLen(ctx, topic).Val(); n != 0 {
				return fmt.Errorf("%d entries left", n)
			}
			return nil
		})
	})
}

// A large entry passes, and its size is learned from.
func TestLargeEntries(t *testing.T) {
	client, topic := testserver.Shared(t, testserver.Redis86).Client(testserver.Patient), testserver.Topic(t)
	large := string(bytes.Repeat([]byte("x"), 16<<20))
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.MaxDeliveries, c.MinIdle = 2, 5*time.Minute }), topic)
	publish(t, client, topic, large)
	for range 2 {
		msg := receive(t, messages)
		if len(msg.Payload) != len(large) {
			t.Fatalf("%d bytes", len(msg.Payload))
		}
		msg.Nack()
	}
	if l := wantDeadLetters(t, client, topic, 1); len(l[0].Values["payload"].(string)) != len(large) {
		t.Error("dead letter is cut")
	}
	for range 6 {
		publish(t, client, topic, large)
	}
	msg := receive(t, messages)
	<-time.After(300 * time.Millisecond)
	if n := pendingOf(t, client, topic, "billing"); n > 4 {
		t.Errorf("%d entries of 16 MiB held, 32 MiB are allowed", n)
	}
	msg.Ack()
	for range 5 {
		receive(t, messages).Ack()
	}
	client.Del(context.Background(), topic, subscriber.DeadLetterTopic(topic))
}

// Topics with braces, and every script, on a cluster.
func TestClusterAndBraces(t *testing.T) {
	t.Parallel()
	cluster := testserver.StartCluster(t, testserver.Redis86)
	client := cluster.ClusterClient()
	for _, topic := range []string{"plain", "x:{eu}:y", "a{}b", "foo}bar"} {
		sub := newSubscriber(t, client, func(c *subscriber.Config) { c.MaxDeliveries, c.Heartbeat = 2, 100*time.Millisecond })
		messages, cancel := subscribe(t, sub, topic)
		publish(t, client, topic, "good", "bad")
		receive(t, messages).Ack()
		bad := receive(t, messages)
		wantNone(t, messages, 500*time.Millisecond) // heartbeats
		testserver.Eventually(t, within, sub.Health)
		if bad.Context().Err() != nil {
			t.Errorf("%q: context ended by %v", topic, context.Cause(bad.Context()))
		}
		bad.Nack()
		receive(t, messages).Nack()
		wantDeadLetters(t, client, topic, 1)
		publish(t, client, topic, numbered(50)...)
		receive(t, messages).Ack()
		cancel()
		for msg := range messages {
			msg.Ack()
		}
		r, err := newSubscriber(t, client).Check(context.Background(), topic)
		if err != nil {
			t.Errorf("%q: Check: %v", topic, err)
		}
		if tr := r.Topics[0]; tr.HandedBack != tr.Pending || tr.DeadLetters != 1 || tr.Consumers > 1 {
			t.Errorf("%q: %+v", topic, tr)
		}
	}
}

// A cluster's slot moves while it is read.
func TestSlotMoves(t *testing.T) {
	t.Parallel()
	cluster := testserver.StartCluster(t, testserver.Redis86)
	client, topic, ctx := cluster.ClusterClient(), testserver.Topic(t), context.Background()
	messages, _ := subscribe(t, newSubscriber(t, client), topic)
	slot, from, err := cluster.Slot(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for i, payload := range numbered(60) {
		if i == 30 {
			if err := cluster.MigrateSlot(ctx, slot, from, (from+1)%3); err != nil {
				t.Fatal(err)
			}
		}
		testserver.Eventually(t, within, func() error {
			return client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{redisstream.UUIDHeaderKey, payload, "payload", payload}}).Err()
		})
	}
	for len(seen) < 60 {
		msg := receive(t, messages)
		seen[string(msg.Payload)] = true
		msg.Ack()
	}
	testserver.Eventually(t, within, func() error {
		p, err := client.XPending(ctx, topic, "billing").Result()
		if err != nil || p.Count != 0 {
			return unexpected(err, p)
		}
		return nil
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		bounded := func(c *subscriber.Config) { c.MaxDeliveries = 3 }
		r, err := newSubscriber(t, client, bounded).Check(ctx, topic)
		if err != nil || r.Topics[0].Exists || len(r.Warnings) != 0 {
			t.Errorf("nothing there: %+v, %v", r, err)
		}
		if n := client.Exists(ctx, topic).Val(); n != 0 {
			t.Error("Check made the stream")
		}
		product, _, _ := strings.Cut(string(s.Kind()), "-")
		if !strings.HasPrefix(r.Server, product+" ") {
			t.Errorf("server %q", r.Server)
		}
		publish(t, client, topic, numbered(4)...)
		messages, cancel := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.ReadAhead = 1 }), topic)
		receive(t, messages).Ack()
		receive(t, messages)
		cancel()
		wantClosed(t, messages)
		r, err = newSubscriber(t, client).Check(ctx, topic)
		tr := r.Topics[0]
		if err != nil || !tr.Exists || !tr.HasGroup || tr.Pending < 1 || tr.Pending+tr.Lag != 3 || tr.OldestPending <= 0 || tr.OldestPending > time.Minute {
			t.Errorf("%+v, %v", tr, err)
		}
		limited := s.User("limited-"+fmt.Sprint(time.Now().UnixNano()), "~*", "+@all", "-xclaim", "-eval")
		r, err = newSubscriber(t, limited).Check(ctx, topic)
		if err == nil || !slices.Equal(r.Topics[0].Missing, []string{"XCLAIM", "EVAL"}) {
			t.Errorf("missing %v, %v", r.Topics, err)
		}
	})
}

// What works and likely is a mistake is in the log of New, and in Check's warnings.
func TestLikelyMistakesAreNamed(t *testing.T) {
	t.Parallel()
	s, topic := testserver.Shared(t, testserver.Redis86), testserver.Topic(t)
	logger := newCountingLogger(t)
	sub := newLogged(t, s.Client(), logger, func(c *subscriber.Config) { c.MinIdle = 999 * time.Millisecond })
	if n := logger.errors.Load(); n != 1 {
		t.Errorf("%d error lines of New for a MinIdle below a second, want 1", n)
	}
	r, err := sub.Check(context.Background(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"MinIdle 999ms", "MaxDeliveries is 0"} {
		if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
			t.Errorf("no warning about %s: %q", want, r.Warnings)
		}
	}
}

// Check tells what endangers the stream and the end of a subscription: a server that may evict
// it, a client that waits for ever, a pool that is too small.
func TestCheckWarnsOfServerAndClient(t *testing.T) {
	t.Parallel()
	s, topic := testserver.Start(t, testserver.Redis86, testserver.Set("maxmemory-policy", "allkeys-lru")), testserver.Topic(t)
	for _, tt := range []struct {
		change func(*redis.Options)
		want   []string
	}{
		{func(*redis.Options) {}, []string{"maxmemory-policy is allkeys-lru: it may evict streams that are not read yet"}},
		{func(o *redis.Options) { o.ReadTimeout, o.PoolSize = -1, 4 }, []string{"pool has 4 connections", "allkeys-lru", "no read time-out"}},
	} {
		sub := newSubscriber(t, s.Client(tt.change), func(c *subscriber.Config) { c.MaxDeliveries = 3 })
		r, err := sub.Check(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Warnings) != len(tt.want) {
			t.Errorf("%d warnings, want %d: %q", len(r.Warnings), len(tt.want), r.Warnings)
		}
		for _, want := range tt.want {
			if !slices.ContainsFunc(r.Warnings, func(w string) bool { return strings.Contains(w, want) }) {
				t.Errorf("no warning about %s: %q", want, r.Warnings)
			}
		}
	}
}

// A message that fails without end is in the log at its 10th delivery, and at its 100th.
func TestFailuresWithoutEndAreLogged(t *testing.T) {
	t.Parallel()
	s, topic := testserver.Shared(t, testserver.Redis86), testserver.Topic(t)
	logger := newCountingLogger(t)
	messages, _ := subscribe(t, newLogged(t, s.Client(), logger, func(c *subscriber.Config) {
		c.MinIdle, c.RedeliverAfter, c.RedeliverMax = time.Minute, time.Millisecond, time.Millisecond
	}), topic)
	publish(t, s.Client(), topic, "m")
	for i := range 101 {
		if msg := receive(t, messages); i < 100 {
			msg.Nack()
		} else {
			msg.Ack()
		}
	}
	if n := logger.errors.Load(); n != 2 {
		t.Errorf("%d error lines, want 2", n)
	}
}

// A pool that is too small is warned about.
func TestSmallPool(t *testing.T) {
	s, topic := testserver.Shared(t, testserver.Redis86), testserver.Topic(t)
	logger := newCountingLogger(t)
	client := s.Client(func(o *redis.Options) { o.PoolSize = 5 })
	sub := newLogged(t, client, logger)
	subscribe(t, sub, topic)
	if n := logger.errors.Load(); n != 0 {
		t.Errorf("%d warnings for one subscription", n)
	}
	subscribe(t, sub, topic+"-2")
	if n := logger.errors.Load(); n != 1 {
		t.Errorf("%d warnings for two subscriptions", n)
	}
}

// Entries and groups of watermill-redisstream are taken over, and both can share a group.
func TestMigrationFromRedisstream(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		theirs := func(consumer string) (*redisstream.Subscriber, <-chan *message.Message) {
			own := s.Client() // its Close closes the client
			sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
				Client: own, ConsumerGroup: "billing", Consumer: consumer, DisableIndefiniteInitialBlock: true,
				MaxIdleTime: 4 * time.Second, ClaimInterval: 100 * time.Millisecond, BlockTime: 20 * time.Millisecond,
			}, watermill.NopLogger{})
			if err != nil {
				t.Fatal(err)
			}
			messages, err := sub.Subscribe(ctx, topic)
			if err != nil {
				t.Fatal(err)
			}
			return sub, messages
		}
		pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: s.Client()}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		defer pub.Close()
		send := func(payload string) {
			msg := message.NewMessage(watermill.NewUUID(), []byte(payload))
			msg.Metadata.Set("name", payload)
			if err := pub.Publish(topic, msg); err != nil {
				t.Fatal(err)
			}
		}
		send("acked")
		send("left behind")
		old, messages := theirs("old")
		receive(t, messages).Ack()
		receive(t, messages) // never acknowledged
		wantPending(t, client, topic, "billing", 1)
		if err := old.Close(); err != nil {
			t.Fatal(err)
		}
		left := pendingRows(t, client, topic)[0]
		if err := client.Do(ctx, "XCLAIM", topic, "billing", left.Consumer, 0, left.ID, "IDLE", 3_600_000, "JUSTID").Err(); err != nil {
			t.Fatal(err)
		}

		// Side by side in one group, as in a rolling deploy.
		ours, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.MinIdle, c.Heartbeat = 4*time.Second, beat }), topic)
		other, beside := theirs("beside")
		for i := range 100 {
			send(fmt.Sprint(i))
		}
		seen := map[string]int{}
		take := func(msg *message.Message, ok bool) {
			if !ok {
				t.Fatal("channel is closed")
			}
			if msg.Metadata.Get("name") != string(msg.Payload) {
				t.Errorf("metadata %v of %q", msg.Metadata, msg.Payload)
			}
			seen[string(msg.Payload)]++
			msg.Ack()
		}
		for len(seen) < 101 {
			select {
			case msg, ok := <-ours:
				take(msg, ok)
			case msg, ok := <-beside:
				take(msg, ok)
			case <-time.After(within):
				t.Fatalf("%d of 101 arrived", len(seen))
			}
		}
		wantPending(t, client, topic, "billing", 0)
		for p, n := range seen {
			if n != 1 || p == "acked" {
				t.Errorf("%q came %d times", p, n)
			}
		}
		if err := other.Close(); err != nil {
			t.Fatal(err)
		}
		// Their consumers go when nothing is pending for them.
		testserver.Eventually(t, within, func() error {
			consumers := client.XInfoConsumers(ctx, topic, "billing").Val()
			if len(consumers) != 1 {
				return fmt.Errorf("%+v", consumers)
			}
			return nil
		})
	})
}

// What our publisher adds is read, with its key.
func TestReadsOurPublisher(t *testing.T) {
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "shop"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	msg := message.NewMessage("u-1", []byte("m"))
	msg.Metadata.Set("idempotency_key", "pay:1")
	for range 3 {
		if err := pub.Publish(topic, msg); err != nil {
			t.Fatal(err)
		}
	}
	messages, _ := subscribe(t, newSubscriber(t, client), topic)
	got := receive(t, messages)
	if got.UUID != "u-1" || got.Metadata["idempotency_key"] != "pay:1" {
		t.Errorf("got %s %v", got.UUID, got.Metadata)
	}
	got.Ack()
	wantNone(t, messages, 50*time.Millisecond)
}
