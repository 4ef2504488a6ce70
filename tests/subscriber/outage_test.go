package subscriber_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// An outage in which one message is with a handler and another one, to be redelivered,
// is offered to nobody.
func TestOutageWithAnOfferedRedelivery(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	link := faultlink.New(t, s.Addr())
	var lost observe.Events[subscriber.OwnershipEvent]
	logger := newCountingLogger(t)
	messages, _ := subscribe(t, newLogged(t, link.Client(), logger, func(c *subscriber.Config) {
		c.MinIdle, c.MaxInFlight = 4*time.Second, 2
		c.Hooks = []subscriber.Hooks{{OnOwnershipLost: lost.Add}}
	}), topic)
	publish(t, client, topic, "a", "b")
	held, failed := receive(t, messages), receive(t, messages)
	failed.Nack()
	testserver.Eventually(t, within, func() error { // its second hand-out is written: it is offered
		rows, err := client.XPendingExt(context.Background(), &redis.XPendingExtArgs{
			Stream: topic, Group: "billing", Start: "-", End: "+", Count: 2}).Result()
		if err != nil || len(rows) != 2 || rows[1].RetryCount != 3 {
			return unexpected(err, rows)
		}
		return nil
	})
	link.Refuse()
	link.Cut()
	_ = wantDone(t, held.Context(), within)
	before := processTime(t)
	<-time.After(2 * time.Second) // the outage
	if used := processTime(t) - before; used > time.Second {
		t.Errorf("%v of CPU in two seconds of outage", used)
	}
	if n := len(lost.All()); n > 2 {
		t.Errorf("%d reports of lost ownership for two entries", n)
	}
	if n := logger.errors.Load(); n > 5 {
		t.Errorf("%d error lines", n)
	}
	link.Accept()
	held.Ack()
	receive(t, messages).Ack()
}

// Messages are acknowledged while the server can't be reached: the acknowledgements are
// kept, and sent when it is back.
func TestAcknowledgedDuringAnOutage(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		const n = 20
		client, topic, link := s.Client(), testserver.Topic(t), faultlink.New(t, s.Addr())
		sub := newSubscriber(t, link.Client(), func(c *subscriber.Config) { c.MinIdle, c.MaxInFlight = 10*time.Minute, n })
		messages, _ := subscribe(t, sub, topic)
		publish(t, client, topic, numbered(n)...)
		var list []*message.Message
		for range n {
			list = append(list, receive(t, messages))
		}
		link.Refuse()
		link.Cut()
		for i, msg := range list {
			if i == n/2 { // more come while the first ones wait for another try
				testserver.Eventually(t, within, func() error {
					if err := sub.Health(); err == nil || !strings.Contains(err.Error(), "acknowledge") {
						return fmt.Errorf("no acknowledgement has failed: %w", err)
					}
					return nil
				})
			}
			msg.Ack()
		}
		link.Accept()
		wantPending(t, client, topic, "billing", 0)
		wantNone(t, messages, 100*time.Millisecond)
	})
}

// One reply to a look at the group is lost, which is not asked for often: Health does not
// speak of it for the whole time until the next one.
func TestHealthAfterOneLostLook(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	topic, link := testserver.Topic(t), faultlink.New(t, s.Addr())
	sub := newSubscriber(t, link.Client(), func(c *subscriber.Config) {
		c.MinIdle, c.Heartbeat = time.Minute, 15*time.Second
	})
	messages, _ := subscribe(t, sub, topic)
	publish(t, s.Client(), topic, "m")
	receive(t, messages).Ack()
	var lost atomic.Bool
	link.Lose(func(c faultlink.Command) bool { return isLook(c) && !lost.Swap(true) })
	testserver.Eventually(t, within, func() error {
		if link.Stats().Lost == 0 { // Health may be bad too shortly to be seen
			return errors.New("no reply was lost")
		}
		return nil
	})
	testserver.Eventually(t, 10*time.Second, sub.Health)
}

func processTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
