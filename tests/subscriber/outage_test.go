package subscriber_test

import (
	"context"
	"syscall"
	"testing"
	"time"

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
		c.MinIdle, c.MaxInFlight = time.Second, 2
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

func processTime(t testing.TB) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
