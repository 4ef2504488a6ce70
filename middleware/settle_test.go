package middleware_test

import (
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// handledUnacked handles n messages that return one each, and acknowledges none.
func handledUnacked(t *testing.T, once *middleware.Once, n int) []*message.Message {
	t.Helper()
	all := make([]*message.Message, n)
	for i := range all {
		all[i] = rig.NewMessage(fmt.Sprint("pay:", i), "{}")
		out, err := once.Run(context.Background(), all[i], rig.HandlerName, func(context.Context) ([]*message.Message, error) {
			return []*message.Message{rig.NewMessage("", "out")}, nil
		})
		if err != nil || len(out) != 1 {
			t.Fatal(out, err)
		}
	}
	return all
}

func outputsLeft(t *testing.T, store *dedupe.Memory) (left int) {
	t.Helper()
	for r, err := range store.List(t.Context(), dedupe.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		left += r.Outputs
	}
	return left
}

// A publisher that is slow, or away, keeps many messages from being acknowledged. They cost
// no goroutine each, and their outputs go all the same once they are acknowledged.
func TestManyUnacknowledgedMessages(t *testing.T) {
	const n = 1000
	store := rig.NewStore(t)
	once := rig.NewOnce(t, store)
	before := runtime.NumGoroutine()
	all := handledUnacked(t, once, n)
	if more := runtime.NumGoroutine() - before; more > 10 {
		t.Errorf("%d goroutines for %d messages that are not acknowledged", more, n)
	}
	if left := outputsLeft(t, store); left != n {
		t.Errorf("%d outputs before an acknowledgement, want %d", left, n)
	}
	for i, msg := range all {
		if i%10 == 0 {
			msg.Nack()
		} else {
			msg.Ack()
		}
	}
	eventually(t, "the outputs of what was acknowledged are dropped", func() bool { return outputsLeft(t, store) == n/10 })
	eventually(t, "nobody watches what nobody waits for", func() bool { return runtime.NumGoroutine() <= before })
}

// Close settles what is acknowledged, and does not wait for the rest.
func TestCloseDoesNotWaitForAcknowledgements(t *testing.T) {
	const n = 100
	store := rig.NewStore(t)
	once := rig.NewOnce(t, store)
	all := handledUnacked(t, once, n)
	for _, msg := range all[:n/2] {
		msg.Ack()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := once.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if left := outputsLeft(t, store); left != n/2 {
		t.Errorf("%d outputs after Close, want those of the %d messages that are not acknowledged", left, n/2)
	}
}
