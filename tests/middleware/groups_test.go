package middleware_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// counted counts the events that a service handles, by Once without a Namespace.
func counted(t *testing.T, store dedupe.Store, runs *atomic.Int64, in string, sub message.Subscriber, changes ...rig.Change) *middleware.Once {
	once := rig.NewOnce(t, store, append([]rig.Change{func(c *middleware.Config) { c.Namespace = "" }}, changes...)...)
	start(t, func(r *message.Router) {
		r.AddConsumerHandler("on-order", in, sub, once.Consumer(func(*message.Message) error { runs.Add(1); return nil }))
	})
	return once
}

// Two services with one handler name, one store and no Namespace handle 10 of 10 each.
func TestTwoGroupsWithoutANamespaceHandleAll(t *testing.T) {
	realStores(t, func(t *testing.T, server *testserver.Server, store dedupe.Store) {
		client, in := server.Client(), testserver.Topic(t)
		var keys []string
		for n := range 10 {
			keys = append(keys, fmt.Sprint(in, n))
		}
		publishEvents(t, client, in, keys...)
		var runs [2]atomic.Int64
		for n, service := range []string{"billing", "shipping"} {
			counted(t, store, &runs[n], in, newSubscriber(t, client, inGroup(service)))
		}
		settled(t, client, in)
		if a, b := runs[0].Load(), runs[1].Load(); a != 10 || b != 10 {
			t.Errorf("%d and %d of 10 handled", a, b)
		}
	})
}

// Two instances that fan out on one store: nothing is skipped in silence; asked for by
// name, one of them handles an event.
func TestFanOutInstancesOnOneStore(t *testing.T) {
	client := testserver.Shared(t, testserver.Redis86).Client()
	fanOut := func(c *subscriber.Config) { c.Group, c.FanOut = "", true }
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprint("asked for: ", asked), func(t *testing.T) {
			in, store, seen := testserver.Topic(t), newRedisStore(t, client), &rig.Log{}
			publishEvents(t, client, in, "pay:1")
			var runs atomic.Int64
			var health []func() error
			for range 2 {
				once := counted(t, store, &runs, in, newSubscriber(t, client, fanOut), seen.Into, inNamespace(t), func(c *middleware.Config) { c.ShareAcrossFanOut = asked })
				health = append(health, once.Health)
			}
			testserver.Eventually(t, settleTime, func() error {
				if asked {
					if seen.Count("handled") != 1 || seen.Count("skipped") != 1 {
						return fmt.Errorf("told %v", seen.Outcomes())
					}
					return nil
				}
				for _, h := range health {
					if !errors.Is(h(), middleware.ErrSharedFanOut) {
						return fmt.Errorf("health %v", h()) //nolint:errorlint // nil is what is wrong
					}
				}
				return nil
			})
			if want := map[bool]int64{true: 1}[asked]; runs.Load() != want {
				t.Errorf("%d runs, want %d", runs.Load(), want)
			}
		})
	}
}
