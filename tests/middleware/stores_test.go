package middleware_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// realStores gives each kind of store on real servers.
func realStores(t *testing.T, run func(t *testing.T, server *testserver.Server, store dedupe.Store)) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) {
			s := testserver.Shared(t, kind)
			run(t, s, newRedisStore(t, s.Client()))
		})
	}
	for dialect, database := range map[sqlstore.Dialect]func(testing.TB) *testdb.Database{sqlstore.Postgres: testdb.Postgres, sqlstore.MySQL: testdb.MariaDB} {
		t.Run(string(dialect), func(t *testing.T) {
			store, err := sqlstore.New(sqlstore.Config{DB: database(t).Open(t), Dialect: dialect})
			if err == nil {
				err = store.Migrate(t.Context())
			}
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = store.Close() })
			run(t, testserver.Shared(t, testserver.Redis86), store)
		})
	}
}

// Duplicates, failures and panics at random, in front of the handler and behind: each
// event succeeds once, and its message is in the stream once.
func TestRandomFailuresOnRealServers(t *testing.T) {
	realStores(t, func(t *testing.T, server *testserver.Server, store dedupe.Store) {
		const events = 100
		client, in, out := server.Client(), testserver.Topic(t), testserver.Topic(t)
		keys := make([]string, events)
		for n := range keys {
			keys[n] = fmt.Sprint("pay:", n)
		}
		publishEvents(t, client, in, keys...)
		var successes atomic.Int64
		inner := wmiddleware.RandomFail(0.2)(func(msg *message.Message) ([]*message.Message, error) {
			successes.Add(1)
			return []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}, nil
		})
		once := rig.NewOnce(t, store)
		start(t, func(r *message.Router) {
			r.AddMiddleware(wmiddleware.Recoverer, wmiddleware.Duplicator, wmiddleware.RandomFail(0.2), wmiddleware.RandomPanic(0.1))
			r.AddHandler("charge", in, newSubscriber(t, client, redeliverSoon), out, newPublisher(t, client), once.Handler(inner))
		})
		settled(t, client, in)
		if n := successes.Load(); n != events {
			t.Errorf("%d successes of %d events", n, events)
		}
		wantEntries(t, client, out, events)
	})
}

// Two services with one handler name share a store, each with a group of its own.
func TestTwoServicesOnOneStore(t *testing.T) {
	realStores(t, func(t *testing.T, server *testserver.Server, store dedupe.Store) {
		client, in := server.Client(), testserver.Topic(t)
		publishEvents(t, client, in, "pay:1", "pay:2")
		var runs [2]atomic.Int64
		for n, service := range []string{"billing", "shipping"} {
			once := rig.NewOnce(t, store, func(c *middleware.Config) { c.Namespace = service })
			start(t, func(r *message.Router) {
				r.AddConsumerHandler("on-order", in, newSubscriber(t, client, inGroup(service)), once.Consumer(func(*message.Message) error {
					runs[n].Add(1)
					return nil
				}))
			})
		}
		testserver.Eventually(t, settleTime, func() error {
			if a, b := runs[0].Load(), runs[1].Load(); a != 2 || b != 2 {
				return fmt.Errorf("%d and %d runs, want 2 and 2", a, b)
			}
			return isSettled(client, in)
		})
	})
}

// A message enters one scope twice, nested: an error, no run, no acknowledgement.
func TestNestedOnRealServers(t *testing.T) {
	realStores(t, func(t *testing.T, server *testserver.Server, store dedupe.Store) {
		client, in := server.Client(), testserver.Topic(t)
		publishEvents(t, client, in, "pay:1")
		once := rig.NewOnce(t, store)
		var nested, runs atomic.Int64
		start(t, func(r *message.Router) {
			r.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
				return func(msg *message.Message) ([]*message.Message, error) {
					out, err := h(msg)
					if errors.Is(err, middleware.ErrNested) {
						nested.Add(1)
					}
					return out, err
				}
			}, once.Middleware)
			r.AddConsumerHandler("charge", in, newSubscriber(t, client), once.Consumer(func(*message.Message) error { runs.Add(1); return nil }))
		})
		testserver.Eventually(t, settleTime, func() error {
			if nested.Load() < 2 {
				return fmt.Errorf("%d refusals", nested.Load())
			}
			return nil
		})
		if runs.Load() != 0 || isSettled(client, in) == nil {
			t.Errorf("%d runs, settled: %v", runs.Load(), isSettled(client, in) == nil)
		}
	})
}

// Acknowledged before they come: their contexts have ended, and they are handled all the
// same.
func TestInstantAckOnRealServers(t *testing.T) {
	realStores(t, func(t *testing.T, server *testserver.Server, store dedupe.Store) {
		const events = 20
		client, in := server.Client(), testserver.Topic(t)
		keys := make([]string, events)
		for n := range keys {
			keys[n] = fmt.Sprint("pay:", n)
		}
		publishEvents(t, client, in, keys...)
		var runs atomic.Int64
		once := rig.NewOnce(t, store)
		start(t, func(r *message.Router) {
			r.AddMiddleware(wmiddleware.InstantAck)
			r.AddConsumerHandler("charge", in, newSubscriber(t, client), once.Consumer(func(*message.Message) error { runs.Add(1); return nil }))
		})
		testserver.Eventually(t, settleTime, func() error {
			if n := runs.Load(); n != events {
				return fmt.Errorf("%d runs of %d events", n, events)
			}
			return isSettled(client, in)
		})
	})
}
