package middleware_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"

	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// tooSlow is a handler that a Timeout always ends.
func tooSlow(runs *atomic.Int64) message.NoPublishHandlerFunc {
	return func(msg *message.Message) error {
		runs.Add(1)
		<-msg.Context().Done()
		return fmt.Errorf("bank: %w", msg.Context().Err())
	}
}

func retryAroundTimeout(after time.Duration) []message.HandlerMiddleware {
	return []message.HandlerMiddleware{
		wmiddleware.Retry{MaxRetries: 2, InitialInterval: time.Millisecond}.Middleware,
		wmiddleware.Timeout(after),
	}
}

// Retry outside of Timeout, and a handler that is always too slow: it is a dead letter
// after MaxDeliveries, with the reason. It was tried without end, and nothing was logged.
func TestRetryAroundTimeoutEnds(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, in := s.Client(), testserver.Topic(t)
		publishEvents(t, client, in, "pay:1")
		var runs atomic.Int64
		once := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t))
		start(t, func(r *message.Router) {
			r.AddMiddleware(retryAroundTimeout(50 * time.Millisecond)...)
			sub := newSubscriber(t, client, redeliverSoon, func(c *subscriber.Config) { c.MaxDeliveries = 3 })
			r.AddConsumerHandler(rig.HandlerName, in, sub, once.Consumer(tooSlow(&runs)))
		})
		settled(t, client, in)
		dead, err := client.XRange(t.Context(), subscriber.DeadLetterTopic(in), "-", "+").Result()
		if err != nil || len(dead) != 1 {
			t.Fatalf("dead letters %v, %v", dead, err)
		}
		if v := dead[0].Values; v["_dead_reason"] != subscriber.ReasonMaxDeliveries || !strings.Contains(fmt.Sprint(v["_dead_error"]), "bank") || v["_dead_count"] != "3" {
			t.Errorf("dead letter %v, want the handler's error after 3 deliveries", v)
		}
		if n := runs.Load(); n != 3 { // one in each delivery: the context that Timeout has ended stays
			t.Errorf("%d runs", n)
		}
	})
}

// The same with another subscriber: Retry gives up, and the PoisonQueue has the message.
func TestRetryAroundTimeoutIsPoisoned(t *testing.T) {
	bus := gochannel.NewGoChannel(gochannel.Config{Persistent: true}, watermill.NopLogger{})
	t.Cleanup(func() { _ = bus.Close() })
	poison, err := bus.Subscribe(t.Context(), "poison")
	if err != nil {
		t.Fatal(err)
	}
	queue, err := wmiddleware.PoisonQueueWithFilter(bus, "poison", middleware.ShouldPoison)
	if err != nil {
		t.Fatal(err)
	}
	var runs atomic.Int64
	once := rig.NewOnce(t, rig.NewStore(t))
	start(t, func(r *message.Router) {
		r.AddMiddleware(append([]message.HandlerMiddleware{queue}, retryAroundTimeout(50*time.Millisecond)...)...)
		r.AddConsumerHandler(rig.HandlerName, rig.TopicName, noClose{bus}, once.Consumer(tooSlow(&runs)))
	})
	if err := bus.Publish(rig.TopicName, rig.NewMessage("pay:1", "{}")); err != nil {
		t.Fatal(err)
	}
	select {
	case msg := <-poison:
		msg.Ack()
		if reason := msg.Metadata.Get("reason_poisoned"); !strings.Contains(reason, "bank") {
			t.Errorf("poisoned for %q", reason)
		}
	case <-time.After(settleTime):
		t.Fatalf("never poisoned, after %d runs", runs.Load())
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("%d runs", n)
	}
}

// A service that has moved only its subscriber has the reason in its dead letters.
func TestNoteFailureFillsTheDeadLetter(t *testing.T) {
	client, in := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	publishEvents(t, client, in, "pay:1")
	start(t, func(r *message.Router) {
		r.AddMiddleware(subscriber.NoteFailure, wmiddleware.Retry{MaxRetries: 1, InitialInterval: time.Millisecond}.Middleware)
		sub := newSubscriber(t, client, redeliverSoon, func(c *subscriber.Config) { c.MaxDeliveries = 2 })
		r.AddConsumerHandler(rig.HandlerName, in, sub, func(*message.Message) error { return errors.New("no funds") })
	})
	settled(t, client, in)
	dead, err := client.XRange(t.Context(), subscriber.DeadLetterTopic(in), "-", "+").Result()
	if err != nil || len(dead) != 1 || dead[0].Values["_dead_error"] != "no funds" {
		t.Errorf("dead letters %v, %v, want one for no funds", dead, err)
	}
}
