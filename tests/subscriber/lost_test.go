package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// removals are the ways in which entries go from a stream.
var removals = map[string]func(client *redis.Client, topic string, ids []string) error{
	"XDEL": func(c *redis.Client, topic string, ids []string) error {
		return c.XDel(context.Background(), topic, ids...).Err()
	},
	"XTRIM": func(c *redis.Client, topic string, _ []string) error {
		return c.XTrimMaxLen(context.Background(), topic, 0).Err()
	},
	"DEL": func(c *redis.Client, topic string, _ []string) error {
		return c.Del(context.Background(), topic).Err()
	},
	"DEL, and published to": func(c *redis.Client, topic string, _ []string) error {
		_, err := c.TxPipelined(context.Background(), func(pipe redis.Pipeliner) error {
			pipe.Del(context.Background(), topic)
			pipe.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{"_watermill_message_uuid", "u", "metadata", "", "payload", "new"}})
			return nil
		})
		return err
	},
}

// eachRemoval runs a test with every way in which entries go, which goes on at once, or
// some heartbeats later.
func eachRemoval(t *testing.T, run func(t *testing.T, client *redis.Client, remove func(topic string, ids []string))) {
	t.Helper()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		for how, remove := range removals {
			for when, pause := range map[string]time.Duration{"at once": 0, "after a heartbeat": 150 * time.Millisecond} {
				t.Run(how+", "+when, func(t *testing.T) {
					t.Parallel()
					client := s.Client()
					run(t, client, func(topic string, ids []string) {
						if err := remove(client, topic, ids); err != nil {
							t.Fatal(err)
						}
						<-time.After(pause)
					})
				})
			}
		}
	})
}

// wantLost waits until the hook was told of each of these entries, and checks that it was
// told once.
func wantLost(t *testing.T, lost *observe.Events[subscriber.LostEvent], want []string) {
	t.Helper()
	told := func() (ids []string) {
		for _, ev := range lost.All() {
			if int(ev.Entries) != len(ev.EntryIDs) || ev.Reason == subscriber.LostUnread {
				t.Fatalf("hook got %+v", ev)
			}
			ids = append(ids, ev.EntryIDs...)
		}
		slices.Sort(ids)
		return ids
	}
	slices.Sort(want)
	testserver.Eventually(t, within, func() error {
		if got := told(); len(got) < len(want) {
			return fmt.Errorf("lost %v, want %v", got, want)
		}
		return nil
	})
	<-time.After(150 * time.Millisecond) // a few heartbeats
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("lost %v, want %v", got, want)
	}
}

// Entries go from the stream while handlers have them, which then settle them in every
// way but the acknowledgement of what is handled. Others are read ahead. What was not
// handled is counted, once.
func TestGoneWhileHandlersFail(t *testing.T) {
	t.Parallel()
	settle := []func(*message.Message, subscriber.Delivery){
		func(m *message.Message, _ subscriber.Delivery) { m.Ack() },
		func(m *message.Message, _ subscriber.Delivery) { m.Nack() },
		func(m *message.Message, d subscriber.Delivery) { d.Delay(time.Millisecond); m.Ack() },
		func(m *message.Message, d subscriber.Delivery) { d.Delay(time.Millisecond); m.Nack() },
		func(m *message.Message, d subscriber.Delivery) { d.Reject("no", nil); m.Ack() },
		func(m *message.Message, d subscriber.Delivery) { d.Reject("no", nil); m.Nack() },
	}
	eachRemoval(t, func(t *testing.T, client *redis.Client, remove func(topic string, ids []string)) {
		topic := testserver.Topic(t)
		var lost observe.Events[subscriber.LostEvent]
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.Heartbeat, c.Block, c.MaxInFlight = 40*time.Millisecond, 20*time.Millisecond, len(settle)
			c.Hooks = []subscriber.Hooks{{OnLost: lost.Add}}
		}), topic)
		ids := publish(t, client, topic, numbered(len(settle)+4)...)
		wantPending(t, client, topic, "billing", int64(len(ids)))
		var list []*message.Message
		for range settle {
			list = append(list, receive(t, messages))
		}
		remove(topic, ids)
		handled := map[string]bool{}
		for i, msg := range list {
			d, _ := subscriber.DeliveryOf(msg)
			if i == 0 {
				handled[d.EntryID()] = true
			}
			settle[i](msg, d)
		}
		// What was read ahead is handed out or lost.
		go func() {
			for msg := range messages {
				msg.Nack()
			}
		}()
		wantLost(t, &lost, slices.DeleteFunc(ids, func(id string) bool { return handled[id] }))
	})
}

// Entries go from the stream, and the subscription ends with them in all states: with a
// handler that does not come back, waiting for redelivery, read ahead.
func TestGoneBeforeTheEnd(t *testing.T) {
	t.Parallel()
	eachRemoval(t, func(t *testing.T, client *redis.Client, remove func(topic string, ids []string)) {
		topic := testserver.Topic(t)
		var lost observe.Events[subscriber.LostEvent]
		messages, cancel := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.Heartbeat, c.Block, c.MaxInFlight, c.CloseTimeout = 40*time.Millisecond, 20*time.Millisecond, 4, 50*time.Millisecond
			c.RedeliverAfter, c.RedeliverMax = time.Minute, time.Minute
			c.Hooks = []subscriber.Hooks{{OnLost: lost.Add}}
		}), topic)
		ids := publish(t, client, topic, numbered(10)...)
		wantPending(t, client, topic, "billing", int64(len(ids)))
		for range 2 {
			receive(t, messages).Nack()
		}
		for range 3 {
			receive(t, messages) // and never settled
		}
		remove(topic, ids)
		cancel()
		go func() {
			for msg := range messages {
				msg.Nack()
			}
		}()
		wantLost(t, &lost, ids)
	})
}

// Hooks that panic take neither the process nor the subscription down.
func TestHooksPanic(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	cfg, logger := quick(client), watermill.NewCaptureLogger()
	cfg.MaxDeliveries = 2
	cfg.Hooks = []subscriber.Hooks{{
		OnSettle:        func(subscriber.SettleEvent) { panic("hook of a user") },
		OnRedeliver:     func(subscriber.RedeliverEvent) { panic(errors.New("hook of a user")) },
		OnDeadLetter:    func(subscriber.DeadLetterEvent) { panic("hook of a user") },
		OnLost:          func(subscriber.LostEvent) { panic("hook of a user") },
		OnOwnershipLost: func(subscriber.OwnershipEvent) { panic("hook of a user") },
		OnTakeover:      func(subscriber.TakeoverEvent) { panic("hook of a user") },
		OnOutage:        func(subscriber.OutageEvent) { panic("hook of a user") },
	}}
	sub, err := subscriber.New(cfg, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	messages, _ := subscribe(t, sub, topic)
	ids := publish(t, client, topic, "gone", "dead", "good")
	gone := receive(t, messages)
	client.XDel(context.Background(), topic, ids[0])
	gone.Nack()
	for range 3 { // dead, good, dead
		if msg := receive(t, messages); string(msg.Payload) == "good" {
			msg.Ack()
		} else {
			msg.Nack()
		}
	}
	wantPending(t, client, topic, "billing", 0)
	if n := client.XLen(context.Background(), subscriber.DeadLetterTopic(topic)).Val(); n != 1 {
		t.Errorf("%d dead letters", n)
	}
	testserver.Eventually(t, within, func() error {
		told := map[any]bool{}
		for _, m := range logger.Captured()[watermill.ErrorLogLevel] {
			if m.Err != nil && m.Err.Error() == "hook of a user" {
				told[m.Fields["event"]] = true
			}
		}
		for _, event := range []any{subscriber.SettleEvent{}, subscriber.RedeliverEvent{}, subscriber.DeadLetterEvent{}, subscriber.LostEvent{}} {
			if !told[fmt.Sprintf("%T", event)] {
				return fmt.Errorf("panics in the log: %v, none of the hook that gets a %T", told, event)
			}
		}
		return nil
	})
}

// A message has DelayOnError's metadata of the service that made it, out of a copy of its
// own. That is no wish of a handler here.
func TestDelayOfAnotherService(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{
		"_watermill_message_uuid", "u", "payload", "m", "metadata", delayMetadata}})
	var redelivered observe.Events[subscriber.RedeliverEvent]
	for _, taken := range []bool{false, true} {
		messages, cancel := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.Hooks = []subscriber.Hooks{{OnRedeliver: redelivered.Add}}
		}), topic)
		for range 3 {
			msg := receive(t, messages)
			if msg.Metadata.Get("_watermill_delayed_for") != "1h0m0s" {
				t.Errorf("metadata %v is not as stored", msg.Metadata)
			}
			msg.Nack()
		}
		if !taken {
			cancel() // the next subscription takes it over
			wantClosed(t, messages)
			continue
		}
		// One who asks here gets its own.
		msg := receive(t, messages)
		msg.Metadata.Set("_watermill_delayed_for", "7ms")
		msg.Nack()
		receive(t, messages).Ack()
	}
	list := redelivered.All()
	for i, ev := range list {
		if last := i == len(list)-1; ev.Delayed != last || ev.After > time.Second {
			t.Errorf("%d: %+v", i, ev)
		}
	}
	if len(list) != 7 || list[6].After != 7*time.Millisecond {
		t.Errorf("told %+v", list)
	}
}

// delayMetadata is {"_watermill_delayed_until": …, "_watermill_delayed_for": "1h0m0s"} in
// MessagePack.
const delayMetadata = "\x82\xb8_watermill_delayed_until\xb42030-01-01T00:00:00Z\xb6_watermill_delayed_for\xa61h0m0s"
