// Package operators_test checks, on real servers, what operators' tools are built on: package
// deadletter, package inspect and package window.
package operators_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

const within = 30 * time.Second

func TestMain(m *testing.M) { testserver.Main(m) }

// each runs a test on a server with IDMP, on two without, and on a cluster.
func each(t *testing.T, run func(t *testing.T, client redis.UniversalClient, idmp bool)) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			run(t, testserver.Shared(t, kind).Client(), kind.HasIDMP())
		})
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		run(t, testserver.StartCluster(t, testserver.Redis86).ClusterClient(), true)
	})
}

func newPublisher(t testing.TB, client redis.UniversalClient, change ...func(*publisher.Config)) *publisher.Publisher {
	t.Helper()
	cfg := publisher.Config{Client: client, ProducerID: "payment-service", Window: publisher.Window{Duration: time.Minute, Entries: 10_000}}
	for _, c := range change {
		c(&cfg)
	}
	p, err := publisher.New(cfg, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("close the publisher: %v", err)
		}
	})
	return p
}

// payment is the event of a key.
func payment(key string) *message.Message {
	msg := message.NewMessage("uuid-of-"+key, []byte(fmt.Sprintf(`{"payment":%q}`, key)))
	msg.Metadata.Set(eventkey.MetadataKey, key)
	return msg
}

func publish(t testing.TB, p *publisher.Publisher, topic string, msgs ...*message.Message) []publisher.Receipt {
	t.Helper()
	receipts, err := p.Send(t.Context(), topic, msgs...)
	if err != nil {
		t.Fatal(err)
	}
	return receipts
}

func newLetters(t testing.TB, client redis.UniversalClient) *deadletter.Letters {
	t.Helper()
	l, err := deadletter.New(deadletter.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newInspector(t testing.TB, client redis.UniversalClient) *inspect.Inspector {
	t.Helper()
	i, err := inspect.New(inspect.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// subscribe reads a group, quickly, until the test ends.
func subscribe(t testing.TB, client redis.UniversalClient, topic, group string) <-chan *message.Message {
	t.Helper()
	s, err := subscriber.New(subscriber.Config{
		Client: client, Group: group, Block: 20 * time.Millisecond, MinIdle: 8 * time.Second,
		RedeliverAfter: time.Millisecond, RedeliverMax: 10 * time.Millisecond,
	}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close the subscriber: %v", err)
		}
	})
	messages, err := s.Subscribe(context.WithoutCancel(t.Context()), topic)
	if err != nil {
		t.Fatal(err)
	}
	return messages
}

func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("the channel is closed")
		}
		return msg
	case <-time.After(within):
		t.Fatal("no message came")
	}
	return nil
}

// reject makes the next message a dead letter.
func reject(t testing.TB, messages <-chan *message.Message, reason string, why error) {
	t.Helper()
	msg := receive(t, messages)
	d, ok := subscriber.DeliveryOf(msg)
	if !ok {
		t.Fatal("no delivery")
	}
	d.Reject(reason, why)
	msg.Nack()
}

// waitLetters waits until a topic has so many dead letters.
func waitLetters(t testing.TB, l *deadletter.Letters, topic string, want int64) {
	t.Helper()
	testserver.Eventually(t, within, func() error {
		n, err := l.Len(context.WithoutCancel(t.Context()), topic)
		if err == nil && n != want {
			err = fmt.Errorf("%d dead letters, want %d", n, want)
		}
		return err
	})
}

// all takes the letters of a filter.
func all(t testing.TB, l *deadletter.Letters, topic string, f deadletter.Filter) (list []deadletter.Letter) {
	t.Helper()
	for letter, err := range l.List(t.Context(), topic, f) {
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, letter)
	}
	return list
}
