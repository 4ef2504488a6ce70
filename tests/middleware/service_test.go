package middleware_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

const group = "billing"

// servers are the oldest and the newest.
func servers(t *testing.T, run func(t *testing.T, s *testserver.Server)) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) { run(t, testserver.Shared(t, kind)) })
	}
}

func newPublisher(t testing.TB, client redis.UniversalClient) *publisher.Publisher {
	t.Helper()
	p, err := publisher.New(publisher.Config{Client: client, ProducerID: "payment-service"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p
}

func newSubscriber(t testing.TB, client redis.UniversalClient, changes ...func(*subscriber.Config)) *subscriber.Subscriber {
	t.Helper()
	cfg := subscriber.Config{Client: client, Group: group, RedeliverAfter: 10 * time.Millisecond, Block: 50 * time.Millisecond, CloseTimeout: 3 * time.Second}
	for _, c := range changes {
		c(&cfg)
	}
	s, err := subscriber.New(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func newRedisStore(t testing.TB, client redis.UniversalClient) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// publishEvents appends events with these keys.
func publishEvents(t testing.TB, client redis.UniversalClient, topic string, keys ...string) {
	t.Helper()
	p := newPublisher(t, client)
	for _, key := range keys {
		if err := p.Publish(topic, rig.NewMessage(key, fmt.Sprintf(`{"key":%q}`, key))); err != nil {
			t.Fatal(err)
		}
	}
}

// publishForeign appends an event as somebody without our publisher would, so that its
// key can be there twice.
func publishForeign(t testing.TB, client redis.UniversalClient, topic, key string) {
	t.Helper()
	if err := client.XAdd(context.Background(), &redis.XAddArgs{Stream: topic, Values: []any{"order_id", key, eventkey.MetadataKey, key}}).Err(); err != nil {
		t.Fatal(err)
	}
}

// service is a Router, as a service runs it.
type service struct {
	t      testing.TB
	router *message.Router
	done   chan error
	stop   sync.Once
}

func start(t testing.TB, build func(r *message.Router)) *service {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 15 * time.Second}, nil)
	if err != nil {
		t.Fatal(err)
	}
	build(router)
	s := &service{t: t, router: router, done: make(chan error, 1)}
	go func() { s.done <- router.Run(context.Background()) }()
	select {
	case <-router.Running():
	case err := <-s.done:
		t.Fatalf("router: %v", err)
	}
	t.Cleanup(s.close)
	return s
}

func (s *service) close() {
	s.stop.Do(func() {
		if err := s.router.Close(); err != nil {
			s.t.Errorf("router: %v", err)
		}
		if err := <-s.done; err != nil {
			s.t.Errorf("router: %v", err)
		}
	})
}

func inGroup(name string) func(*subscriber.Config) {
	return func(c *subscriber.Config) { c.Group = name }
}

func redeliverSoon(c *subscriber.Config) { c.RedeliverMax = 50 * time.Millisecond }

const settleTime = time.Minute

// settled waits until the group has handled everything.
func settled(t testing.TB, client redis.UniversalClient, topic string) {
	t.Helper()
	testserver.Eventually(t, settleTime, func() error { return isSettled(client, topic) })
}

func isSettled(client redis.UniversalClient, topic string) error {
	groups, err := client.XInfoGroups(context.Background(), topic).Result()
	if err != nil {
		return err
	}
	for _, g := range groups {
		if g.Pending != 0 || g.Lag != 0 {
			return fmt.Errorf("group %s: %d pending, lag %d", g.Name, g.Pending, g.Lag)
		}
	}
	if len(groups) == 0 {
		return fmt.Errorf("no group")
	}
	return nil
}

func entries(t testing.TB, client redis.UniversalClient, topic string) int {
	t.Helper()
	n, err := client.XLen(context.Background(), topic).Result()
	if err != nil {
		t.Fatal(err)
	}
	return int(n)
}

func wantEntries(t testing.TB, client redis.UniversalClient, topic string, want int) {
	t.Helper()
	if n := entries(t, client, topic); n != want {
		t.Errorf("%d entries in %s, want %d", n, topic, want)
	}
}

// failing is a publisher whose first publishes fail, some of them after they have
// gone through.
type failing struct {
	message.Publisher
	mu            sync.Mutex
	before, after int
}

func (f *failing) Publish(topic string, msgs ...*message.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.before > 0 {
		f.before--
		return fmt.Errorf("broker is down")
	}
	if err := f.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	if f.after > 0 {
		f.after--
		return fmt.Errorf("connection lost")
	}
	return nil
}

// inNamespace keeps the records of a test apart.
func inNamespace(t *testing.T) rig.Change {
	return func(c *middleware.Config) { c.Namespace = t.Name() }
}

func poisonQueue(t *testing.T, pub *publisher.Publisher, topic string) message.HandlerMiddleware {
	t.Helper()
	queue, err := wmiddleware.PoisonQueue(pub.Shared(), topic)
	if err != nil {
		t.Fatal(err)
	}
	return queue
}
