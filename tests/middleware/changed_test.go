package middleware_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A handler returns the message that it was given, changed in place, and the broker is
// down for the first publish. watermill-redisstream delivers a copy of that message again,
// ours the entry of the stream.
func TestChangedMessageComesAgain(t *testing.T) {
	subscribers := map[string]func(*testing.T, redis.UniversalClient) message.Subscriber{
		"ours": func(t *testing.T, c redis.UniversalClient) message.Subscriber { return newSubscriber(t, c) },
		"redisstream": func(t *testing.T, c redis.UniversalClient) message.Subscriber {
			s, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{Client: c, ConsumerGroup: group, NackResendSleep: 10 * time.Millisecond}, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
	}
	changes := map[string]func(*message.Message){
		"payload":     func(m *message.Message) { m.Payload = []byte("receipt") },
		"key":         func(m *message.Message) { m.Metadata.Set(eventkey.MetadataKey, "receipt:1") },
		"key deleted": func(m *message.Message) { delete(m.Metadata, eventkey.MetadataKey) },
	}
	server := testserver.Shared(t, testserver.Redis86)
	for which, subscribe := range subscribers {
		for name, change := range changes {
			t.Run(which+", "+name, func(t *testing.T) {
				in, out := testserver.Topic(t), testserver.Topic(t)
				client := server.Client() // redisstream closes it
				publishEvents(t, server.Client(), in, "pay:1")
				var runs, succeeded atomic.Int64
				once := rig.NewOnce(t, newRedisStore(t, server.Client()), inNamespace(t))
				start(t, func(r *message.Router) {
					r.AddMiddleware(wmiddleware.Retry{MaxRetries: 3, InitialInterval: time.Millisecond}.Middleware)
					pub := &failing{Publisher: newPublisher(t, server.Client()), before: 1}
					r.AddHandler(rig.HandlerName, in, subscribe(t, client), out, pub, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
						change(msg)
						if runs.Add(1) == 1 {
							return nil, errors.New("no funds")
						}
						succeeded.Add(1)
						return []*message.Message{msg}, nil
					}))
				})
				settled(t, server.Client(), in)
				wantEntries(t, server.Client(), out, 1)
				if succeeded.Load() != 1 {
					t.Errorf("%d runs succeeded", succeeded.Load())
				}
			})
		}
	}
}

// Two events fail after the handler has given each the key of the message that it would
// have returned, one for both. Each is poisoned as the event that it is.
func TestPoisonedUnderItsOwnKey(t *testing.T) {
	client, in, poison := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), testserver.Topic(t)
	publishEvents(t, client, in, "pay:1", "pay:2")
	once, pub := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t)), newPublisher(t, client)
	start(t, func(r *message.Router) {
		r.AddMiddleware(poisonQueue(t, pub, poison))
		r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), once.Consumer(func(msg *message.Message) error {
			msg.Payload = []byte("receipt")
			msg.Metadata.Set(eventkey.MetadataKey, "receipt")
			return errors.New("no funds")
		}))
	})
	settled(t, client, in)
	wantEntries(t, client, poison, 2)
}

// Everything on the Router is wrapped, the Requeuer among it.
func TestRequeuerIsWrappedToo(t *testing.T) {
	client, in, poison := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t), testserver.Topic(t)
	publishEvents(t, client, in, "pay:1")
	var runs, other atomic.Int64
	once, pub := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t), poisonedTo(poison)), newPublisher(t, client)
	start(t, func(r *message.Router) {
		r.AddMiddleware(poisonQueue(t, pub, poison), once.Middleware)
		r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), func(*message.Message) error {
			if runs.Add(1) < 4 {
				return errors.New("no funds")
			}
			return nil
		})
		r.AddConsumerHandler("other", in, newSubscriber(t, client, inGroup("other")), func(*message.Message) error { other.Add(1); return nil })
		requeue(t, r, newSubscriber(t, client), poison, pub.Shared(), in)
	})
	testserver.Eventually(t, settleTime, func() error {
		if n := runs.Load(); n < 4 {
			return fmt.Errorf("%d runs", n)
		}
		return errors.Join(isSettled(client, in), isSettled(client, poison))
	})
	wantEntries(t, client, in, 4)
	wantEntries(t, client, poison, 3)
	if runs.Load() != 4 || other.Load() != 1 {
		t.Errorf("%d runs, want 4; %d of the handler that succeeded at once, want 1", runs.Load(), other.Load())
	}
}

// An event is poisoned, published once more on purpose, and poisoned again: an alert for
// each.
func TestAlertForEachPoisoning(t *testing.T) {
	client := testserver.Shared(t, testserver.Redis86).Client()
	in, poison, alerts, calls := testserver.Topic(t), testserver.Topic(t), testserver.Topic(t), testserver.Topic(t)
	once, pub := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t), poisonedTo(poison)), newPublisher(t, client)
	event := rig.NewMessage("pay:1", "{}")
	publish := func() {
		if err := pub.Publish(in, event.Copy()); err != nil {
			t.Fatal(err)
		}
	}
	publish()
	start(t, func(r *message.Router) {
		failing := r.AddConsumerHandler(rig.HandlerName, in, newSubscriber(t, client), once.Consumer(func(*message.Message) error { return errors.New("no funds") }))
		failing.AddMiddleware(poisonQueue(t, pub, poison))
		r.AddHandler("alert", poison, newSubscriber(t, client), alerts, pub.Shared(), once.Handler(func(msg *message.Message) ([]*message.Message, error) {
			call := rig.NewMessage("", "wake somebody") // by itself
			call.SetContext(msg.Context())
			return []*message.Message{msg}, pub.Publish(calls, call)
		}))
	})
	for n := range 3 {
		testserver.Eventually(t, settleTime, func() error {
			if got := entries(t, client, alerts); got != n+1 {
				return fmt.Errorf("%d alerts, want %d", got, n+1)
			}
			return nil
		})
		wantEntries(t, client, calls, n+1)
		eventkey.NextAttempt(event)
		publish()
	}
}

// An event that was requeued goes on, by a handler that passes it through as it is: there
// it is the event that was handled before, whatever marks it carries.
func TestRequeuedEventDownstream(t *testing.T) {
	client := testserver.Shared(t, testserver.Redis86).Client()
	in, downstream, poison := testserver.Topic(t), testserver.Topic(t), testserver.Topic(t)
	once, pub := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t), poisonedTo(poison)), newPublisher(t, client)
	publishEvents(t, client, in, "pay:1")
	var charges, ships atomic.Int64
	start(t, func(r *message.Router) {
		charge := r.AddConsumerHandler("charge", in, newSubscriber(t, client), once.Consumer(func(*message.Message) error {
			if charges.Add(1) == 1 {
				return errors.New("no funds")
			}
			return nil
		}))
		charge.AddMiddleware(poisonQueue(t, pub, poison))
		r.AddHandler("route", in, newSubscriber(t, client, inGroup("route")), downstream, pub.Shared(), message.PassthroughHandler)
		r.AddConsumerHandler("ship", downstream, newSubscriber(t, client), once.Consumer(func(*message.Message) error { ships.Add(1); return nil }))
		requeue(t, r, newSubscriber(t, client), poison, pub.Shared(), in)
	})
	testserver.Eventually(t, settleTime, func() error {
		if charges.Load() != 2 || entries(t, client, downstream) != 2 {
			return errors.New("not requeued yet")
		}
		return errors.Join(isSettled(client, in), isSettled(client, downstream))
	})
	if ships.Load() != 1 {
		t.Errorf("handled %d times downstream", ships.Load())
	}
}

// A handler on the topic of our dead letters sees each, of two groups and of each replay.
func TestAlertForEachDeadLetter(t *testing.T) {
	client, in := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	once, pub := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t)), newPublisher(t, client)
	var alerts atomic.Int64
	start(t, func(r *message.Router) {
		for _, group := range []string{"billing", "mail"} {
			r.AddConsumerHandler(group, in, newSubscriber(t, client, inGroup(group)), once.Consumer(func(msg *message.Message) error {
				d, _ := subscriber.DeliveryOf(msg)
				d.Reject("no funds", nil)
				return nil
			}))
		}
		r.AddConsumerHandler("alert", subscriber.DeadLetterTopic(in), newSubscriber(t, client), once.Consumer(func(*message.Message) error { alerts.Add(1); return nil }))
	})
	event := rig.NewMessage("pay:1", "{}")
	for n := range 2 {
		if err := pub.Publish(in, event.Copy()); err != nil {
			t.Fatal(err)
		}
		testserver.Eventually(t, settleTime, func() error {
			if got := alerts.Load(); got != int64(2*n+2) {
				return fmt.Errorf("%d alerts, want %d", got, 2*n+2)
			}
			return isSettled(client, subscriber.DeadLetterTopic(in))
		})
		eventkey.NextAttempt(event)
	}
}

func poisonedTo(topic string) rig.Change {
	return func(c *middleware.Config) { c.PoisonTopics = []string{topic} }
}

// requeue adds Watermill's Requeuer to a Router.
func requeue(t testing.TB, r *message.Router, sub message.Subscriber, from string, pub message.Publisher, to string) {
	t.Helper()
	if _, err := requeuer.NewRequeuer(requeuer.Config{
		Subscriber: sub, SubscribeTopic: from, Publisher: pub, Router: r,
		GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return to, nil },
	}, nil); err != nil {
		t.Fatal(err)
	}
}
