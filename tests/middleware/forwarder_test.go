package middleware_test

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A handler's messages go by way of Watermill's forwarder, those that it returns and one
// that it publishes by itself, in a run that fails and in one that does not: with the key
// of the message inside as that of the envelope, each arrives once.
func TestForwarderInAHandler(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, topic := s.Client(), testserver.Topic(t)
		outbox, out := topic+"-outbox", topic+"-out"
		pub := outboxPublisher(t, client, outbox)

		once := rig.NewOnce(t, newRedisStore(t, client), inNamespace(t))
		var runs atomic.Int32
		start(t, func(r *message.Router) {
			r.AddHandler("charge", topic, newSubscriber(t, client), out, pub, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
				own := rig.NewMessage("own", "own")
				own.SetContext(msg.Context())
				if err := pub.Publish(out, own); err != nil {
					return nil, err
				}
				if runs.Add(1) == 1 {
					return nil, errors.New("try again")
				}
				return []*message.Message{rig.NewMessage("", "first"), rig.NewMessage("", "second")}, nil
			}))
		})
		forward(t, client, outbox)

		publishEvents(t, client, topic, "k1")
		settled(t, client, topic)
		wantEntries(t, client, outbox, 3)
		settled(t, client, outbox)
		wantEntries(t, client, out, 3)
	})
}

// A dead letter that is copied back by way of the outbox is handled again.
func TestDeadLetterCopiedBackByTheForwarder(t *testing.T) {
	servers(t, func(t *testing.T, s *testserver.Server) {
		client, topic := s.Client(), testserver.Topic(t)
		outbox := topic + "-outbox"
		pub := outboxPublisher(t, client, outbox)
		forward(t, client, outbox)
		var runs atomic.Int64
		serve(t, client, topic, &runs, 2)
		if err := pub.Publish(topic, rig.NewMessage("pay:1", `{"amount":1}`)); err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			waitForLetters(t, client, topic, n+1)
			letter := newestLetter(t, client, topic)
			for range 2 { // nobody knows what became of the first try
				msg, err := wire.Decode(subscriber.DeadLetterTopic(topic), letter.ID, letter.Values)
				if err != nil {
					t.Fatal(err)
				}
				if err := pub.Publish(topic, msg); err != nil {
					t.Fatal(err)
				}
			}
		}
		waitForRuns(t, client, topic, &runs, 3)
		wantEntries(t, client, topic, 3)
		wantEntries(t, client, outbox, 3)
	})
}

// outboxPublisher publishes by way of the outbox, as the documents show it.
func outboxPublisher(t *testing.T, client redis.UniversalClient, outbox string) message.Publisher {
	t.Helper()
	inner, err := publisher.New(publisher.Config{
		Client: client, ProducerID: "payment-service",
		Topics: map[string]publisher.TopicConfig{outbox: {
			Key: eventkey.First(
				eventkey.Template("{$.metadata.idempotency_key}/{$.metadata._dead_group}/{$.metadata._dead_origin}/{$.metadata._dead_at}"),
				eventkey.Template("{$.metadata.idempotency_key}"),
				eventkey.Template("{$.metadata.idempotency_child_key}")),
			Fingerprint: eventkey.JSONWithout("uuid"),
		}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = inner.Close() })
	return forwarder.NewPublisher(inner.Shared(), forwarder.PublisherConfig{ForwarderTopic: outbox})
}

// forward runs the forwarder's daemon.
func forward(t *testing.T, client redis.UniversalClient, outbox string) {
	t.Helper()
	daemon, err := forwarder.NewForwarder(
		newSubscriber(t, client, inGroup("forwarder")),
		newPublisher(t, client), watermill.NopLogger{}, forwarder.Config{ForwarderTopic: outbox})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- daemon.Run(t.Context()) }()
	<-daemon.Running()
	t.Cleanup(func() {
		_ = daemon.Close()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
