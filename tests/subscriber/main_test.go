// Package subscriber_test checks the subscriber on real servers.
package subscriber_test

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Watermill's universal suite leaves goroutines of its own behind: of the wrapper that
// subscribes many times, which nobody drains at the end, and of TestReconnect.
func TestMain(m *testing.M) {
	if spec := os.Getenv(consumerVariable); spec != "" { // a consumer process of a test
		if err := consume(spec); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testserver.Main(m,
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func2"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/internal/subscriber.(*multiplier).Subscribe.func3"),
		goleak.IgnoreAnyFunction("github.com/ThreeDotsLabs/watermill/pubsub/tests.TestReconnect.func2"),
	)
}

// within is how long a test waits for what should happen soon.
const within = 20 * time.Second

// quick is a configuration whose times are short enough for a test, but for MinIdle: a busy
// machine stands still for seconds, and what is held stays held meanwhile.
func quick(client redis.UniversalClient) subscriber.Config {
	return subscriber.Config{
		Client: client, Group: "billing", Consumer: "test",
		MinIdle: 8 * time.Second, Block: 50 * time.Millisecond,
		RedeliverAfter: 5 * time.Millisecond, RedeliverMax: 50 * time.Millisecond,
		CloseTimeout: 500 * time.Millisecond,
	}
}

// newSubscriber makes a subscriber that is closed with the test.
func newSubscriber(t testing.TB, client redis.UniversalClient, change ...func(*subscriber.Config)) *subscriber.Subscriber {
	t.Helper()
	cfg := quick(client)
	for _, c := range change {
		c(&cfg)
	}
	s, err := subscriber.New(cfg, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// subscribe subscribes until the test ends or the function returned is called.
func subscribe(t testing.TB, s *subscriber.Subscriber, topic string) (<-chan *message.Message, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	messages, err := s.Subscribe(ctx, topic)
	if err != nil {
		t.Fatal(err)
	}
	return messages, cancel
}

// publish adds messages with these payloads and returns their entry IDs.
func publish(t testing.TB, client redis.UniversalClient, topic string, payloads ...string) []string {
	t.Helper()
	ids := make([]string, len(payloads))
	cmds, err := client.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		for _, p := range payloads {
			pipe.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{
				"_watermill_message_uuid", uuid.NewString(), "metadata", "", "payload", p,
			}})
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, cmd := range cmds {
		ids[i] = cmd.(*redis.StringCmd).Val()
	}
	return ids
}

func numbered(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprint(i)
	}
	return list
}

// receive waits for the next message.
func receive(t testing.TB, messages <-chan *message.Message) *message.Message {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if !ok {
			t.Fatal("channel is closed")
		}
		return msg
	case <-time.After(within):
		t.Fatal("no message")
	}
	return nil
}

// wantNone checks that no message comes for a while.
func wantNone(t testing.TB, messages <-chan *message.Message, during time.Duration) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if ok {
			t.Fatalf("unexpected message %q", msg.Payload)
		}
		t.Fatal("channel is closed")
	case <-time.After(during):
	}
}

// wantClosed waits until the channel is closed.
func wantClosed(t testing.TB, messages <-chan *message.Message) {
	t.Helper()
	select {
	case msg, ok := <-messages:
		if ok {
			t.Fatalf("unexpected message %q", msg.Payload)
		}
	case <-time.After(within):
		t.Fatal("channel is not closed")
	}
}

// wantDone waits for the end of a context.
func wantDone(t testing.TB, ctx context.Context, during time.Duration) error {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(during):
		t.Fatal("context did not end")
	}
	return context.Cause(ctx)
}

// pendingOf is the number of pending entries of the group.
func pendingOf(t testing.TB, client redis.UniversalClient, topic, group string) int64 {
	t.Helper()
	p, err := client.XPending(context.Background(), topic, group).Result()
	if err != nil {
		t.Fatal(err)
	}
	return p.Count
}

func wantPending(t testing.TB, client redis.UniversalClient, topic, group string, want int64) {
	t.Helper()
	testserver.Eventually(t, within, func() error {
		if n := pendingOf(t, client, topic, group); n != want {
			return fmt.Errorf("%d pending, want %d", n, want)
		}
		return nil
	})
}

// unexpected is the error of a condition that does not hold yet.
func unexpected(err error, got any) error {
	if err != nil {
		return err
	}
	return fmt.Errorf("got %+v", got)
}
