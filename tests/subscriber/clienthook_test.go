package subscriber_test

import (
	"context"
	"sync"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// panicHook panics at the first command of each of these names after it was told to.
type panicHook struct {
	mu    sync.Mutex
	names map[string]bool
}

func (*panicHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (*panicHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *panicHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.mu.Lock()
		hit := h.names[cmd.Name()]
		delete(h.names, cmd.Name())
		h.mu.Unlock()
		if hit {
			panic("a tracing hook")
		}
		return next(ctx, cmd)
	}
}

func (h *panicHook) arm(names ...string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.names = map[string]bool{}
	for _, n := range names {
		h.names[n] = true
	}
}

// A hook of the client that panics is an outage: it ends neither the process nor the
// subscription, and nothing is lost.
func TestClientHookPanics(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	hook := &panicHook{}
	client.AddHook(hook)
	messages, cancel := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) { c.CloseTimeout = within }), topic)
	for i, p := range numbered(5) {
		hook.arm("xreadgroup", "evalsha")
		publish(t, client, topic, p)
		msg := receive(t, messages)
		if i%2 == 0 {
			msg.Nack()
			hook.arm("evalsha")
			msg = receive(t, messages)
		}
		if string(msg.Payload) != p {
			t.Fatalf("got %q, want %s", msg.Payload, p)
		}
		msg.Ack()
	}
	if err := client.XGroupDestroy(context.Background(), topic, "billing").Err(); err != nil {
		t.Fatal(err)
	}
	hook.arm("xgroup", "xrange", "evalsha") // while it is created again
	publish(t, client, topic, "after")
	for payload := ""; payload != "after"; {
		msg := receive(t, messages)
		payload = string(msg.Payload)
		msg.Ack()
	}
	hook.arm("evalsha")
	cancel()
	wantClosed(t, messages)
	if p := pendingOf(t, client, topic, "billing"); p != 0 {
		t.Errorf("%d pending", p)
	}
}
