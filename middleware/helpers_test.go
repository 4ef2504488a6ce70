package middleware_test

import (
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/internal/rig"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

// The next three do what Watermill's middlewares of their names do; the real ones are
// tested in tests/middleware. They would bring a module along.

func retry(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		for range 4 {
			if out, err = h(msg); err == nil {
				break
			}
		}
		return out, err
	}
}

func poisonQueue(queue *rig.Published) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := h(msg)
			if err != nil {
				return nil, queue.Publish("poison", msg)
			}
			return out, nil
		}
	}
}

func instantAck(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		msg.Ack()
		return h(msg)
	}
}
