package publisher_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// atOnce is far below the client's own time-outs in these tests.
const atOnce = 30 * time.Second

func slowClient(o *redis.Options) {
	o.PoolTimeout, o.ReadTimeout, o.WriteTimeout, o.DialTimeout = 5*time.Minute, 5*time.Minute, 5*time.Minute, 5*time.Minute
}

func retryFor(d time.Duration) change { return func(c *publisher.Config) { c.RetryFor = d } }

// All connections of the pool are taken: a publish waits for one until RetryFor, not until
// the pool's own time-out, or several of them.
func TestPublishWithAStarvedPool(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		client := s.Client(slowClient, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
		p := newPublisher(t, client, mode(m), retryFor(300*time.Millisecond))
		taken := client.Conn()
		if err := taken.Ping(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		var wg sync.WaitGroup
		for n := range 20 {
			wg.Go(func() {
				if err := p.Publish(topic, payment(n)); !errors.Is(err, publisher.ErrNotSent) || publisher.IsPermanent(err) {
					t.Errorf("error %v", err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(start); took > atOnce {
			t.Errorf("took %v", took)
		}
		_ = taken.Close()
		mustPublish(t, p, topic, payments(0, 20)...)
		wantEntries(t, s.Client(), topic, 20)
	})
}

// Calls that don't fit into one batch wait for each other: RetryFor counts from the beginning
// of each, not from when its turn has come.
func TestPublishOfLargeCallsWithAStarvedPool(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	client := s.Client(slowClient, func(o *redis.Options) { o.PoolSize, o.PipelinePoolSize = 1, -1 })
	p := newPublisher(t, client, retryFor(2*time.Second))
	taken := client.Conn()
	if err := taken.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	var wg sync.WaitGroup
	for n := range 40 { // one after the other they would take 28 seconds
		wg.Go(func() {
			if err := p.Publish(topic, payments(200*n, 200*n+200)...); !errors.Is(err, publisher.ErrNotSent) {
				t.Errorf("error %v", err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(start); took > 14*time.Second {
		t.Errorf("took %v with a RetryFor of 2 s", took)
	}
	_ = taken.Close()
}

// With a client that heeds contexts RetryFor ends the wait for a reply, too; what was sent then
// may be in the stream.
func TestPublishToAFrozenServer(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		client := link.Client(slowClient, func(o *redis.Options) { o.ContextTimeoutEnabled = true })
		p := newPublisher(t, client, mode(m), retryFor(300*time.Millisecond))
		mustPublish(t, p, topic, payment(0))
		link.Stall(faultlink.Replies)
		start := time.Now()
		if err := p.Publish(topic, payment(1)); !errors.Is(err, publisher.ErrOutcomeUnknown) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(start); took > atOnce {
			t.Errorf("took %v", took)
		}
		link.Resume()
		mustPublish(t, p, topic, payments(0, 2)...)
		wantEntries(t, s.Client(), topic, 2)
	})
}

// Check ends with its context, also when the client does not heed contexts.
func TestCheckOfAFrozenServer(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	p := newPublisher(t, s.Client(slowClient))
	if _, err := p.Check(t.Context(), "orders"); err != nil {
		t.Fatal(err)
	}
	s.Freeze()
	defer s.Thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	start := time.Now()
	if _, err := p.Check(ctx, "orders", "payments"); err == nil {
		t.Error("no error")
	}
	if took := time.Since(start); took > atOnce {
		t.Errorf("took %v", took)
	}
}

// valueHook notes what the contexts of commands have under a key.
type valueHook struct{ seen *observe.Events[string] }

type traceKey struct{}

func (valueHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h valueHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note(ctx, cmd)
		return next(ctx, cmd)
	}
}

func (h valueHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note(ctx, cmds...)
		return next(ctx, cmds)
	}
}

func (h valueHook) note(ctx context.Context, cmds ...redis.Cmder) {
	trace, _ := ctx.Value(traceKey{}).(string)
	for _, cmd := range cmds {
		h.seen.Add(cmd.Name() + " " + trace)
	}
}

// The commands of a publish carry what the message's context has for a tracing hook of the
// client; so do those of a Guard, and of the call's context for Send.
func TestCommandsCarryTheContextsValues(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client := s.Client()
	hook := valueHook{&observe.Events[string]{}}
	client.AddHook(hook)
	traced := func(n int, trace string) *message.Message {
		msg := payment(n)
		msg.SetContext(context.WithValue(t.Context(), traceKey{}, trace))
		return msg
	}
	wantSeen := func(want ...string) {
		t.Helper()
		for _, w := range want {
			if seen := hook.seen.All(); !slices.Contains(seen, w) {
				t.Errorf("no %q in %q", w, seen)
			}
		}
	}
	topic := testserver.Topic(t)
	p := newPublisher(t, client)
	mustPublish(t, p, topic, traced(1, "a"), traced(2, "b"))
	wantSeen("info a", "hgetall a", "xadd a")
	if _, err := p.Send(context.WithValue(t.Context(), traceKey{}, "call"), topic, traced(1, "c")); err != nil {
		t.Fatal(err)
	}
	wantSeen("xadd call", "xrange call")

	guard, err := publisher.NewGuard(publisher.Config{Client: client, ProducerID: "payment-service", Key: payKey}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = guard.Close() }()
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: guard.Client()}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	decorated, err := guard.Decorator()(pub)
	if err != nil {
		t.Fatal(err)
	}
	mustPublish(t, decorated, topic, traced(3, "guarded"))
	wantSeen("xadd guarded")
}
