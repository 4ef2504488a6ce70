package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// deadLetters are the entries of the topic's dead-letter stream.
func deadLetters(t testing.TB, client redis.UniversalClient, topic string) []redis.XMessage {
	t.Helper()
	list, err := client.XRange(context.Background(), subscriber.DeadLetterTopic(topic), "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func wantDeadLetters(t testing.TB, client redis.UniversalClient, topic string, n int) []redis.XMessage {
	t.Helper()
	var list []redis.XMessage
	testserver.Eventually(t, within, func() error {
		if list = deadLetters(t, client, topic); len(list) != n {
			return fmt.Errorf("%d dead letters, want %d", len(list), n)
		}
		return nil
	})
	return list
}

// An entry that can't be decoded becomes a dead letter; those around it arrive.
func TestUndecodableBetweenTwoGoodOnes(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		publish(t, client, topic, "first")
		bad, err := client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []any{
			redisstream.UUIDHeaderKey, "u-1", "metadata", "\xc1not msgpack", "payload", "bad", "extra", "x",
		}}).Result()
		if err != nil {
			t.Fatal(err)
		}
		publish(t, client, topic, "second")
		messages, _ := subscribe(t, newSubscriber(t, client), topic)
		goroutines := 0
		for i, want := range []string{"first", "second"} {
			msg := receive(t, messages)
			if string(msg.Payload) != want {
				t.Fatalf("got %q, want %q", msg.Payload, want)
			}
			msg.Ack()
			if i == 0 {
				goroutines = runtime.NumGoroutine()
			}
		}
		letter := wantDeadLetters(t, client, topic, 1)[0]
		wantPending(t, client, topic, "billing", 0)
		testserver.Eventually(t, within, func() error { // the client may be dialing
			if n := runtime.NumGoroutine(); n > goroutines+2 {
				return fmt.Errorf("%d goroutines, %d before", n, goroutines)
			}
			return nil
		})
		for name, want := range map[string]string{
			redisstream.UUIDHeaderKey: "u-1", "metadata": "\xc1not msgpack", "payload": "bad", "extra": "x",
			"_dead_reason": subscriber.ReasonUndecodable, "_dead_count": "0", "_dead_group": "billing", "_dead_origin": topic + " " + bad,
		} {
			if letter.Values[name] != want {
				t.Errorf("dead letter's %s is %q, want %q", name, letter.Values[name], want)
			}
		}
		if !strings.Contains(fmt.Sprint(letter.Values["_dead_error"]), "metadata") {
			t.Errorf("dead letter's error is %q", letter.Values["_dead_error"])
		}
		// It can be read as a message, with the reason in its metadata.
		dead, _ := subscribe(t, newSubscriber(t, client), subscriber.DeadLetterTopic(topic))
		msg := receive(t, dead)
		if string(msg.Payload) != "bad" || msg.UUID != "u-1" || msg.Metadata["_dead_reason"] != subscriber.ReasonUndecodable {
			t.Errorf("dead letter as a message: %s %q %v", msg.UUID, msg.Payload, msg.Metadata)
		}
		msg.Ack()
	})
}

// A handler that always fails: other messages flow, and after exactly MaxDeliveries it is
// a dead letter, across restarts as well.
func TestAlwaysFailingHandler(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "poison")
		var letters observe.Events[subscriber.DeadLetterEvent]
		limited := func(c *subscriber.Config) {
			c.MaxDeliveries, c.MinIdle = 5, time.Minute
			c.Hooks = []subscriber.Hooks{{OnDeadLetter: letters.Add}}
		}
		// Across restarts, too: two deliveries here, three in the next process.
		messages, cancel := subscribe(t, newSubscriber(t, client, limited), topic)
		publish(t, client, topic, numbered(20)...)
		failed, others := 0, 0
		fail := func(msg *message.Message) {
			failed++
			d, _ := subscriber.DeliveryOf(msg)
			if d.Count() != failed {
				t.Errorf("failure %d has count %d", failed, d.Count())
			}
			d.Failed(errors.New("no such account"))
			msg.Nack()
		}
		for failed < 2 || others < 20 {
			msg := receive(t, messages)
			switch {
			case string(msg.Payload) != "poison":
				others++
				msg.Ack()
			case failed == 2: // more than needed while the others are coming
				cancel()
				msg.Nack()
				failed++
			default:
				fail(msg)
			}
		}
		cancel()
		for msg := range messages {
			msg.Nack() // offered before the cancel was seen
			failed++
		}
		messages, _ = subscribe(t, newSubscriber(t, client, limited), topic)
		for failed < 5 {
			fail(receive(t, messages))
		}
		letter := wantDeadLetters(t, client, topic, 1)[0]
		if letter.Values["_dead_count"] != "5" || letter.Values["_dead_reason"] != subscriber.ReasonMaxDeliveries || letter.Values["_dead_error"] != "no such account" {
			t.Errorf("dead letter %v", letter.Values)
		}
		wantNone(t, messages, 100*time.Millisecond)
		wantPending(t, client, topic, "billing", 0)
		if l := letters.All(); len(l) != 1 || l[0].Count != 5 || l[0].DeadLetterID == "" {
			t.Errorf("hook got %+v", l)
		}
	})
}

// A handler that always fails costs no more than its backoff.
func TestNackIsNoHotLoop(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	publish(t, client, topic, "poison")
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.RedeliverAfter, c.RedeliverMax = 100*time.Millisecond, 10*time.Second
	}), topic)
	began := time.Now()
	for range 5 {
		receive(t, messages).Nack()
	}
	// After 0, 75–100, 225–300, 525–700 and 1,125–1,500 ms.
	if took := time.Since(began); took < time.Second {
		t.Errorf("five deliveries in %v", took)
	}
}

// What a redelivery has of the Subscribe context and of the attempt before.
func TestContextAndMetadataOnRedelivery(t *testing.T) {
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	type key struct{}
	ctx, cancel := context.WithCancel(context.WithValue(context.Background(), key{}, "value"))
	defer cancel()
	publish(t, client, topic, "m")
	messages, err := newSubscriber(t, client).Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	backOff := middleware.DelayOnError{InitialInterval: 20 * time.Millisecond, MaxInterval: time.Second, Multiplier: 2}
	fail := backOff.Middleware(func(msg *message.Message) ([]*message.Message, error) {
		msg.Metadata.Set("attempt", "changed")
		msg.Metadata.Set("more", "changed")
		return nil, errors.New("fails")
	})
	var waits []time.Duration
	began := time.Now()
	for attempt := 1; attempt <= 4; attempt++ {
		msg := receive(t, messages)
		waits = append(waits, time.Since(began))
		if msg.Context().Value(key{}) != "value" {
			t.Errorf("attempt %d: the value of the Subscribe context is gone", attempt)
		}
		if msg.Context().Err() != nil {
			t.Errorf("attempt %d: context is over", attempt)
		}
		md := maps.Clone(msg.Metadata)
		delete(md, delay.DelayedForKey)
		delete(md, delay.DelayedUntilKey)
		if len(md) != 0 {
			t.Errorf("attempt %d sees metadata %v of an earlier one", attempt, md)
		}
		_, _ = fail(msg)
		began = time.Now()
		msg.Nack()
		if cause := wantDone(t, msg.Context(), within); !errors.Is(cause, subscriber.ErrSettled) {
			t.Errorf("context ended by %v", cause)
		}
	}
	for i, least := range []time.Duration{0, 20 * time.Millisecond, 40 * time.Millisecond, 80 * time.Millisecond} {
		if waits[i] < least {
			t.Errorf("attempt %d came after %v, want %v", i+1, waits[i], least)
		}
	}
	receive(t, messages).Ack()
}

// DelayOnError says until when in whole seconds, so two wishes within one look alike; each
// counts, and a nack without one has none.
func TestDelayOnErrorWithinASecond(t *testing.T) {
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	publish(t, client, topic, "m")
	var redelivered observe.Events[subscriber.RedeliverEvent]
	messages, cancel := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.Hooks = []subscriber.Hooks{{OnRedeliver: redelivered.Add}}
	}), topic)
	defer cancel()
	const interval, wishes = 30 * time.Millisecond, 8
	backOff := middleware.DelayOnError{InitialInterval: interval, MaxInterval: interval, Multiplier: 1}
	fail := backOff.Middleware(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("fails") })
	for range wishes {
		msg := receive(t, messages)
		_, _ = fail(msg)
		msg.Nack()
	}
	receive(t, messages).Nack()
	receive(t, messages).Ack()
	for i, ev := range redelivered.All() {
		if wish := i < wishes; ev.Delayed != wish || wish && ev.After != interval {
			t.Errorf("redelivery %d: %+v", i, ev)
		}
	}
}

// Redelivery by Delay does not count, however the message is settled.
func TestDelayDoesNotCount(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "m")
		var redelivered observe.Events[subscriber.RedeliverEvent]
		messages, cancel := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.MaxDeliveries = 2
			c.Hooks = []subscriber.Hooks{{OnRedeliver: redelivered.Add}}
		}), topic)
		for i := range 6 {
			msg := receive(t, messages)
			d, _ := subscriber.DeliveryOf(msg)
			if d.Count() != 1 || d.Redelivered() != (i > 0) {
				t.Fatalf("delivery %d: count %d, redelivered %v", i, d.Count(), d.Redelivered())
			}
			d.Delay(20 * time.Millisecond)
			if i%2 == 0 {
				msg.Ack()
			} else {
				msg.Nack()
			}
		}
		for _, ev := range redelivered.All() {
			if !ev.Delayed || ev.After != 20*time.Millisecond || ev.Count != 0 {
				t.Errorf("hook got %+v", ev)
			}
		}
		receive(t, messages).Nack()
		msg := receive(t, messages)
		if d, _ := subscriber.DeliveryOf(msg); d.Count() != 2 {
			t.Errorf("count %d after one failure", d.Count())
		}
		cancel()
		d, _ := subscriber.DeliveryOf(msg)
		d.Delay(time.Millisecond)
		msg.Nack()
		wantClosed(t, messages)
		// The server knows: one failure.
		messages, _ = subscribe(t, newSubscriber(t, client), topic)
		msg = receive(t, messages)
		if d, _ := subscriber.DeliveryOf(msg); d.Count() != 2 || !d.Redelivered() {
			t.Errorf("count %d in the next process", d.Count())
		}
		msg.Ack()
	})
}

// The server's count follows at once, so that a crash while an entry waits forgets
// nothing and convicts nobody.
func TestCountSurvivesCrashWhileWaiting(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "m")
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.RedeliverAfter, c.RedeliverMax = time.Minute, time.Minute
		}), topic)
		receive(t, messages).Nack()
		wantCount := func(want int64) {
			t.Helper()
			testserver.Eventually(t, within, func() error {
				p, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{Stream: topic, Group: "billing", Start: "-", End: "+", Count: 1}).Result()
				if err != nil || len(p) != 1 || p[0].RetryCount != want {
					return unexpected(err, p)
				}
				return nil
			})
		}
		wantCount(2) // one failure; 1 alone would be ambiguous
	})
}

func TestRejectGoesToTheDeadLettersAtOnce(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		publish(t, client, topic, "a", "b")
		messages, _ := subscribe(t, newSubscriber(t, client), topic)
		for _, settle := range []func(*message.Message) bool{(*message.Message).Ack, (*message.Message).Nack} {
			msg := receive(t, messages)
			d, _ := subscriber.DeliveryOf(msg)
			d.Delay(time.Hour)
			d.Reject("conflict", errors.New("other content"))
			settle(msg)
		}
		for _, letter := range wantDeadLetters(t, client, topic, 2) {
			if letter.Values["_dead_reason"] != "conflict" || letter.Values["_dead_error"] != "other content" || letter.Values["_dead_count"] != "1" {
				t.Errorf("dead letter %v", letter.Values)
			}
		}
		wantPending(t, client, topic, "billing", 0)
	})
}

// A dead letter that the server refuses stays pending and is tried again.
func TestDeadLetterRefused(t *testing.T) {
	t.Parallel()
	client, topic, ctx := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), context.Background()
	if err := client.Set(ctx, subscriber.DeadLetterTopic(topic), "in the way", 0).Err(); err != nil {
		t.Fatal(err)
	}
	publish(t, client, topic, "bad", "good")
	var outages observe.Events[subscriber.OutageEvent]
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.Hooks = []subscriber.Hooks{{OnOutage: outages.Add}}
	}), topic)
	bad := receive(t, messages)
	d, _ := subscriber.DeliveryOf(bad)
	d.Reject("", nil)
	bad.Ack()
	receive(t, messages).Ack()
	testserver.Eventually(t, within, func() error {
		if len(outages.All()) == 0 {
			return errors.New("nobody was told")
		}
		return nil
	})
	wantPending(t, client, topic, "billing", 1)
	// Other acknowledgements don't wait for its next try, which by then is a second away.
	<-time.After(2 * time.Second)
	var took []time.Duration
	for range 8 {
		publish(t, client, topic, "good")
		receive(t, messages).Ack()
		acked := time.Now()
		wantPending(t, client, topic, "billing", 1)
		took = append(took, time.Since(acked))
	}
	// They would wait for the rest of a second each; that one is slow is the machine's fault.
	if slices.Sort(took); took[len(took)/2] > 300*time.Millisecond {
		t.Errorf("acknowledgements took %v", took)
	}
	client.Del(ctx, subscriber.DeadLetterTopic(topic))
	wantDeadLetters(t, client, topic, 1)
	wantPending(t, client, topic, "billing", 0)
}

// Messages that fail all the time, with hardly a pause, leave every second turn to others.
func TestFailuresDontStarveOthers(t *testing.T) {
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	publish(t, client, topic, "poison", "poison", "poison", "poison", "poison")
	messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
		c.RedeliverAfter, c.RedeliverMax = time.Microsecond, time.Microsecond
	}), topic)
	for range 10 {
		receive(t, messages).Nack()
	}
	publish(t, client, topic, numbered(50)...)
	var failures []int // before each of the others
	for n := 0; len(failures) < 50; {
		msg := receive(t, messages)
		if string(msg.Payload) == "poison" {
			<-time.After(2 * time.Millisecond) // the others are due again by then
			if n++; n == 5000 {
				t.Fatalf("%d failures, and others don't get a turn", n)
			}
			msg.Nack()
			continue
		}
		failures = append(failures, n)
		n = 0
		msg.Ack()
	}
	// More while a read is late.
	if slices.Sort(failures); failures[len(failures)/2] > 1 {
		t.Errorf("failures before each of the others: %v", failures)
	}
}
