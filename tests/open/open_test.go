package open_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// An event is published twice and read twice, and its handler runs once; what it returns
// is there once. Two services each have it.
func TestPublishedTwiceHandledOnce(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, in, out := s.Client(), testserver.Topic(t), testserver.Topic(t)
		cfg := config(t, client)
		cfg.PublishTopics, cfg.SubscribeTopics = []string{in, out}, []string{in}
		billing := open(t, cfg)
		cfg.Service = "shipping"
		shipping := open(t, cfg)

		var charged, shipped atomic.Int64
		closeRouter := route(t, func(r *message.Router) {
			r.AddHandler("charge", in, billing.Subscriber(), out, billing.Publisher(), billing.Once().Handler(func(*message.Message) ([]*message.Message, error) {
				charged.Add(1)
				return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(`{"receipt":1}`))}, nil
			}))
			r.AddConsumerHandler("charge-too", in, shipping.Subscriber(), shipping.Once().Consumer(func(*message.Message) error {
				shipped.Add(1)
				return nil
			}))
		})
		publish(t, billing, in, "1001")
		publish(t, billing, in, "1001")
		wantLength(t, client, in, 1)
		wantSettled(t, client, in, "billing")
		if err := client.XGroupSetID(t.Context(), in, "billing", "0").Err(); err != nil { // it reads everything again
			t.Fatal(err)
		}
		wantSettled(t, client, in, "billing")
		wantSettled(t, client, in, "shipping")
		if err := billing.Health(); err != nil {
			t.Error(err)
		}
		closeRouter()
		if charged.Load() != 1 || shipped.Load() != 1 {
			t.Errorf("charged %d times, shipped %d times", charged.Load(), shipped.Load())
		}
		wantLength(t, client, out, 1)
		record := redisstore.Config{}.Name(dedupe.Key{Namespace: "billing", Topic: in, Handler: "charge", Event: "pay:1001"})
		if n, err := client.Exists(t.Context(), record).Result(); n != 1 {
			t.Errorf("no record %s: %v", record, err)
		}
		if !s.Kind().HasIDMP() {
			latches, err := client.Keys(t.Context(), "*"+in+"*:latch:billing:*").Result()
			if len(latches) != 1 {
				t.Errorf("latches of billing: %v, %v", latches, err)
			}
		}
	})
}

// A handler that always fails ends as a dead letter, after MaxDeliveries.
func TestPoisonousEventIsADeadLetter(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	for name, c := range map[string]struct{ set, want int }{"3": {3, 3}, "default": {0, idempotent.DefaultMaxDeliveries}} {
		t.Run(name, func(t *testing.T) {
			client, in := s.As(t).Client(), testserver.Topic(t)
			cfg := config(t, client)
			cfg.MaxDeliveries = c.set
			billing := open(t, cfg)
			var runs atomic.Int64
			route(t, func(r *message.Router) {
				r.AddConsumerHandler("charge", in, billing.Subscriber(), billing.Once().Consumer(func(*message.Message) error {
					runs.Add(1)
					return errors.New("no such card")
				}))
			})
			publish(t, billing, in, "1001")
			wantSettled(t, client, in, "billing")
			dead, err := client.XRange(t.Context(), subscriber.DeadLetterTopic(in), "-", "+").Result()
			if err != nil || len(dead) != 1 || !strings.Contains(fmt.Sprint(dead[0].Values), "no such card") {
				t.Errorf("dead letters: %v, %v", dead, err)
			}
			if runs.Load() != int64(c.want) {
				t.Errorf("%d runs, want %d", runs.Load(), c.want)
			}
		})
	}
}

// What each part has to itself reaches it: seen by their hooks, and by a key of a topic.
func TestPartsAreConfigurable(t *testing.T) {
	s := testserver.Shared(t, testserver.Valkey81)
	client, in := s.Client(), testserver.Topic(t)
	var published observe.Events[publisher.Receipt]
	var handled observe.Events[middleware.Event]
	var dead observe.Events[subscriber.DeadLetterEvent]
	cfg := config(t, client)
	cfg.MaxDeliveries = 1
	cfg.Publisher.Topics = map[string]publisher.TopicConfig{in: {Key: eventkey.Template("of-the-topic:{$.id}")}}
	cfg.Publisher.Hooks = []publisher.Hooks{{OnPublish: published.Add}}
	cfg.Subscriber.Hooks = []subscriber.Hooks{{OnDeadLetter: dead.Add}}
	cfg.Once.Hooks = []middleware.Hooks{{OnHandled: handled.Add}}
	billing := open(t, cfg)
	route(t, func(r *message.Router) {
		r.AddConsumerHandler("charge", in, billing.Subscriber(), billing.Once().Consumer(func(msg *message.Message) error {
			if strings.Contains(string(msg.Payload), "bad") {
				return errors.New("no such card")
			}
			return nil
		}))
	})
	publish(t, billing, in, "good")
	publish(t, billing, in, "bad")
	wantSettled(t, client, in, "billing")
	testserver.Eventually(t, within, func() error {
		if p, h, d := published.All(), handled.All(), dead.All(); len(p) != 2 || p[0].Key != "of-the-topic:good" || len(h) != 1 || len(d) != 1 {
			return fmt.Errorf("hooks received %+v, %+v, %+v", p, h, d)
		}
		return nil
	})
}

// Without a Key a message must bring its own: one that has none is refused, not published
// unprotected.
func TestWithoutAKey(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	cfg := config(t, client)
	cfg.Key = nil
	billing := open(t, cfg)
	msg := message.NewMessage(watermill.NewUUID(), []byte(`{"id":1}`))
	if err := billing.Publisher().Publish(topic, msg); !errors.Is(err, eventkey.ErrNoKey) {
		t.Errorf("got %v", err)
	}
	msg.Metadata.Set(eventkey.MetadataKey, "pay:1")
	if err := billing.Publisher().Publish(topic, msg); err != nil {
		t.Error(err)
	}
	wantLength(t, client, topic, 1)
}

// An event of a publisher that sets no key is handled under Key.
func TestKeyOfForeignEvents(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, in := s.Client(), testserver.Topic(t)
	billing := open(t, config(t, client))
	var runs atomic.Int64
	route(t, func(r *message.Router) {
		r.AddConsumerHandler("charge", in, billing.Subscriber(), billing.Once().Consumer(func(*message.Message) error {
			runs.Add(1)
			return nil
		}))
	})
	for range 2 {
		addForeign(t, client, in, `{"id":"1001"}`)
	}
	wantSettled(t, client, in, "billing")
	if runs.Load() != 1 {
		t.Errorf("%d runs", runs.Load())
	}
}

// The Router closes the publishers that it is given: no other handle is closed by that.
func TestRouterClosesOnlyItsHandle(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, in, out := s.Client(), testserver.Topic(t), testserver.Topic(t)
	billing := open(t, config(t, client))
	mine := billing.Publisher()
	closeRouter := route(t, func(r *message.Router) {
		r.AddHandler("charge", in, billing.Subscriber(), out, billing.Publisher(), billing.Once().Handler(func(msg *message.Message) ([]*message.Message, error) {
			return nil, nil
		}))
	})
	closeRouter()
	if err := mine.Publish(out, message.NewMessage("", []byte(`{"id":1}`))); err != nil {
		t.Errorf("a handle that was there before: %v", err)
	}
	publish(t, billing, out, "2")
	if err := billing.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if err := billing.Publisher().Publish(out, message.NewMessage("", []byte(`{"id":3}`))); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// Close lets a handler finish, with its record and what it returns, though the Router runs
// on: whatever it needs is still open.
func TestCloseLetsHandlersFinish(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, in, out := s.Client(), testserver.Topic(t), testserver.Topic(t)
		billing := open(t, config(t, client))
		started, finish := make(chan struct{}), make(chan struct{})
		route(t, func(r *message.Router) {
			r.AddHandler("charge", in, billing.Subscriber(), out, billing.Publisher(), billing.Once().Handler(func(msg *message.Message) ([]*message.Message, error) {
				close(started)
				<-finish
				return []*message.Message{message.NewMessage(watermill.NewUUID(), []byte(`{"receipt":1}`))}, nil
			}))
		})
		publish(t, billing, in, "1001")
		<-started
		closed := make(chan error, 1)
		go func() { closed <- billing.Close(context.Background()) }()
		select {
		case err := <-closed:
			t.Errorf("Close did not wait for the handler: %v", err)
		case <-time.After(300 * time.Millisecond): // any part that does not wait is closed by now
		}
		close(finish)
		if err := <-closed; err != nil {
			t.Error(err)
		}
		wantLength(t, client, out, 1)
		wantSettled(t, client, in, "billing")
		k := dedupe.Key{Namespace: "billing", Topic: in, Handler: "charge", Event: "pay:1001"}
		_, err := billing.Store().Claim(context.Background(), k, dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Second, Retention: time.Minute})
		if !errors.Is(err, dedupe.ErrClosed) {
			t.Errorf("the store that Open made is not closed: %v", err)
		}
		another, err := redisstore.New(redisstore.Config{Client: client}) // which is not closed
		if err != nil {
			t.Fatal(err)
		}
		defer another.Close()
		claim, err := another.Claim(context.Background(), k, dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Second, Retention: time.Minute})
		if err != nil || claim.State() != dedupe.StateDone {
			t.Fatalf("no record of the handler: %v", err)
		}
		if n := len(claim.Outputs()); n > 0 {
			t.Errorf("the record still has %d messages: the middleware was closed before it could take them off", n)
		}
	})
}

// A store that was given is used and stays open.
func TestGivenStoreStaysOpen(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	client, in := s.Client(), testserver.Topic(t)
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	cfg := config(t, client)
	cfg.Store = store
	billing := open(t, cfg)
	closeRouter := route(t, func(r *message.Router) {
		r.AddConsumerHandler("charge", in, billing.Subscriber(), billing.Once().Consumer(func(*message.Message) error { return nil }))
	})
	publish(t, billing, in, "1001")
	wantSettled(t, client, in, "billing")
	closeRouter()
	for range 2 {
		if err := billing.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}
	claim, err := store.Claim(t.Context(), dedupe.Key{Namespace: "billing", Topic: in, Handler: "charge", Event: "pay:1001"},
		dedupe.ClaimOptions{Token: dedupe.NewToken(), Lease: time.Second, Retention: time.Minute})
	if err != nil || claim.State() != dedupe.StateDone {
		t.Errorf("the given store is closed, or was not used: %v", err)
	}
}
