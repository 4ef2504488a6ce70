package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// replay copies the newest dead letter of a topic back to it.
type replay func(t *testing.T, client redis.UniversalClient, pub *publisher.Publisher, topic string)

// newestLetter is the newest dead letter as it is stored.
func newestLetter(t *testing.T, client redis.UniversalClient, topic string) redis.XMessage {
	t.Helper()
	letters, err := client.XRevRangeN(t.Context(), subscriber.DeadLetterTopic(topic), "+", "-", 1).Result()
	if err != nil || len(letters) != 1 {
		t.Fatalf("dead letters %v, %v", letters, err)
	}
	return letters[0]
}

// byPublisher does it as a program that reads the dead letters and publishes them; twice,
// since nobody knows what became of the first publish.
func byPublisher(t *testing.T, client redis.UniversalClient, pub *publisher.Publisher, topic string) {
	letter := newestLetter(t, client, topic)
	for _, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate} {
		msg, err := wire.Decode(subscriber.DeadLetterTopic(topic), letter.ID, letter.Values)
		if err != nil {
			t.Fatal(err)
		}
		if err := pub.Publish(topic, msg); err != nil {
			t.Fatal(err)
		}
		if r, _ := publisher.ReceiptOf(msg); r.Verdict != want || r.Key != "pay:1" {
			t.Errorf("a dead letter copied back: %+v, want %v", r, want)
		}
	}
}

// byHand does it as an operator with redis-cli.
func byHand(t *testing.T, client redis.UniversalClient, _ *publisher.Publisher, topic string) {
	values := newestLetter(t, client, topic).Values
	var fields []any
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fields = append(fields, name, values[name])
	}
	if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, Values: fields}).Err(); err != nil {
		t.Fatal(err)
	}
}

// A dead letter that is copied back to its topic is handled again, and so is the one
// that it becomes when it fails again.
func TestDeadLetterCopiedBackIsSwallowed(t *testing.T) {
	for _, mode := range []struct {
		name string
		kind testserver.Kind
		mode publisher.Mode
	}{
		{"idmp", testserver.Redis86, publisher.ModeIDMP},
		{"idmpauto", testserver.Redis86, publisher.ModeIDMPAuto},
		{"latch", testserver.Redis70, publisher.ModeLatch},
	} {
		for name, again := range map[string]replay{"publisher": byPublisher, "by hand": byHand} {
			t.Run(mode.name+"/"+name, func(t *testing.T) {
				client, in := testserver.Shared(t, mode.kind).Client(), testserver.Topic(t)
				pub := modePublisher(t, client, mode.mode)
				var runs atomic.Int64
				serve(t, client, in, &runs, 2)
				if err := pub.Publish(in, rig.NewMessage("pay:1", `{"amount":1}`)); err != nil {
					t.Fatal(err)
				}
				for n := range 2 {
					waitForLetters(t, client, in, n+1)
					again(t, client, pub, in)
				}
				waitForRuns(t, client, in, &runs, 3)
				wantEntries(t, client, in, 3)
				wantMarked(t, client, in)
				if dead := entries(t, client, subscriber.DeadLetterTopic(in)); dead != 2 {
					t.Errorf("%d dead letters, want 2", dead)
				}
				// What has succeeded is skipped, whoever copies it back.
				byHand(t, client, pub, in)
				settled(t, client, in)
				if runs.Load() != 3 {
					t.Errorf("%d runs after the success", runs.Load())
				}
			})
		}
	}
}

// The dead letters' consumer sends them back: Watermill's Requeuer, and a handler of
// one's own, wrapped or not, that returns what it was given.
func TestDeadLettersSentBackByTheirConsumer(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		for name, run := range map[string]func(t *testing.T, client redis.UniversalClient, in string){
			"requeuer": func(t *testing.T, client redis.UniversalClient, in string) {
				rq, err := requeuer.NewRequeuer(requeuer.Config{
					Subscriber: newSubscriber(t, client), SubscribeTopic: subscriber.DeadLetterTopic(in), Publisher: newPublisher(t, client),
					GeneratePublishTopic: func(requeuer.GeneratePublishTopicParams) (string, error) { return in, nil },
				}, watermill.NopLogger{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(context.Background())
				stopped := make(chan error, 1)
				go func() { stopped <- rq.Run(ctx) }()
				t.Cleanup(func() {
					cancel()
					if err := <-stopped; err != nil {
						t.Error(err)
					}
				})
			},
			"plain handler": func(t *testing.T, client redis.UniversalClient, in string) {
				start(t, func(r *message.Router) {
					r.AddHandler("send-back", subscriber.DeadLetterTopic(in), newSubscriber(t, client), in, newPublisher(t, client), message.PassthroughHandler)
				})
			},
			"wrapped handler": func(t *testing.T, client redis.UniversalClient, in string) {
				once := rig.NewOnce(t, newRedisStore(t, client))
				start(t, func(r *message.Router) {
					r.AddHandler("send-back", subscriber.DeadLetterTopic(in), newSubscriber(t, client), in, newPublisher(t, client), once.Handler(message.PassthroughHandler))
				})
			},
			"wrapped handler that publishes": func(t *testing.T, client redis.UniversalClient, in string) {
				once, pub := rig.NewOnce(t, newRedisStore(t, client)), newPublisher(t, client)
				start(t, func(r *message.Router) {
					r.AddConsumerHandler("send-back", subscriber.DeadLetterTopic(in), newSubscriber(t, client), once.Consumer(func(msg *message.Message) error {
						c := msg.Copy()
						c.SetContext(msg.Context())
						return pub.Publish(in, c)
					}))
				})
			},
		} {
			t.Run(name, func(t *testing.T) {
				client, in := s.Client(), testserver.Topic(t)
				var runs atomic.Int64
				serve(t, client, in, &runs, 3)
				run(t, client, in)
				publishEvents(t, client, in, "pay:1")
				waitForRuns(t, client, in, &runs, 4)
				settled(t, client, subscriber.DeadLetterTopic(in))
				wantEntries(t, client, in, 4)
				stored, err := client.XRange(t.Context(), in, "-", "+").Result()
				if err != nil {
					t.Fatal(err)
				}
				for _, entry := range stored {
					msg, err := wire.Decode(in, entry.ID, entry.Values)
					if err != nil || msg.Metadata.Get("idempotency_key") != "pay:1" {
						t.Errorf("entry %s: %v, %v", entry.ID, msg, err)
					}
				}
			})
		}
	})
}

// A replay of one group's dead letter reaches the other groups, which handled the event;
// and what a handler produces in a replay is what it produced before.
func TestReplayOfADeadLetterDoublesNothing(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in, out, mail := s.Client(), testserver.Topic(t), testserver.Topic(t), testserver.Topic(t)
		store, pub := newRedisStore(t, client), newPublisher(t, client)
		var charged, shipped atomic.Int64
		once := rig.NewOnce(t, store)
		start(t, func(r *message.Router) {
			r.AddHandler("charge", in, newSubscriber(t, client), out, pub.Shared(), once.Handler(func(msg *message.Message) ([]*message.Message, error) {
				c := msg.Copy()
				c.SetContext(msg.Context())
				if err := pub.Publish(mail, c); err != nil { // before it fails
					return nil, err
				}
				if charged.Add(1) == 1 {
					reject(msg)
					return nil, errors.New("no funds")
				}
				own := msg.Copy()
				own.Metadata.Set("idempotency_key", "receipt:1")
				return []*message.Message{msg.Copy(), own}, nil
			}))
			r.AddConsumerHandler("ship", in, newSubscriber(t, client, inGroup("shipping")), once.Consumer(func(*message.Message) error { shipped.Add(1); return nil }))
		})
		publishEvents(t, client, in, "pay:1")
		waitForLetters(t, client, in, 1)
		byPublisher(t, client, pub, in)
		waitForRuns(t, client, in, &charged, 2)
		wantEntries(t, client, mail, 1)
		wantEntries(t, client, out, 2)
		if shipped.Load() != 1 {
			t.Errorf("the other group handled the event %d times", shipped.Load())
		}
		produced, err := client.XRange(t.Context(), out, "-", "+").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range produced {
			msg, err := wire.Decode(out, entry.ID, entry.Values)
			if err != nil || msg.Metadata.Get("_dead_origin") != "" || msg.Metadata.Get("_dead_reason") != "" {
				t.Errorf("produced message: %v, %v", msg, err)
			}
		}
	})
}

// wantMarked expects the marks of a dead letter on each entry after the first, so that
// what becomes of it next, such as being poisoned, is told from the attempt before.
func wantMarked(t *testing.T, client redis.UniversalClient, topic string) {
	t.Helper()
	stored, err := client.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	attempts := make(map[identity.Attempt]bool)
	for _, entry := range stored {
		msg, err := wire.Decode(topic, entry.ID, entry.Values)
		if err != nil {
			t.Fatal(err)
		}
		attempts[identity.AttemptOf(msg.Metadata)] = true
	}
	if len(attempts) != len(stored) {
		t.Errorf("%d entries are %d attempts", len(stored), len(attempts))
	}
}

func modePublisher(t *testing.T, client redis.UniversalClient, mode publisher.Mode) *publisher.Publisher {
	t.Helper()
	p, err := publisher.New(publisher.Config{Client: client, ProducerID: "payment-service", Mode: mode}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

// serve handles a topic's events, each once, and rejects the first deliveries.
func serve(t *testing.T, client redis.UniversalClient, topic string, runs *atomic.Int64, rejected int64) {
	t.Helper()
	once := rig.NewOnce(t, newRedisStore(t, client))
	start(t, func(r *message.Router) {
		r.AddConsumerHandler(rig.HandlerName, topic, newSubscriber(t, client), once.Consumer(func(msg *message.Message) error {
			if runs.Add(1) <= rejected {
				reject(msg)
				return errors.New("no funds")
			}
			return nil
		}))
	})
}

func reject(msg *message.Message) {
	if d, ok := subscriber.DeliveryOf(msg); ok {
		d.Reject("no funds", nil)
	}
}

func waitForLetters(t *testing.T, client redis.UniversalClient, topic string, want int) {
	t.Helper()
	testserver.Eventually(t, settleTime, func() error {
		if n := entries(t, client, subscriber.DeadLetterTopic(topic)); n != want {
			return fmt.Errorf("%d dead letters, want %d", n, want)
		}
		return nil
	})
}

func waitForRuns(t *testing.T, client redis.UniversalClient, topic string, runs *atomic.Int64, want int64) {
	t.Helper()
	testserver.Eventually(t, settleTime, func() error {
		if n := runs.Load(); n != want {
			return fmt.Errorf("%d runs, want %d", n, want)
		}
		return isSettled(client, topic)
	})
}
