package publisher_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// guarded is an application's redisstream.Publisher with a Guard around it.
func guarded(t testing.TB, client redis.UniversalClient, cfg redisstream.PublisherConfig, changes ...change) (message.Publisher, *publisher.Guard) {
	t.Helper()
	config := publisher.Config{Client: client, ProducerID: "payment-service", Key: payKey}
	for _, c := range changes {
		c(&config)
	}
	guard, err := publisher.NewGuard(config, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	cfg.Client = guard.Client()
	inner, err := redisstream.NewPublisher(cfg, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	p, err := guard.Decorator()(inner)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, guard
}

// An application that keeps its redisstream.Publisher, in every mode, over a link
// that loses the reply of the append.
func TestGuard(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		p, _ := guarded(t, link.Client(), redisstream.PublisherConfig{DefaultMaxlen: 50}, mode(m))
		event := func() *message.Message {
			msg := payment(1)
			msg.Metadata.Set("a", "1")
			msg.Metadata.Set("b", "2")
			msg.Metadata.Set("c", "3")
			return msg
		}
		mustPublish(t, p, topic, payment(0))
		link.LoseNext(1, "XADD", "EVAL")
		r := mustPublish(t, p, topic, event())[0]
		if !r.Resent || link.Stats().Lost != 1 {
			t.Errorf("receipt %+v", r)
		}
		for range 5 {
			wantVerdict(t, mustPublish(t, p, topic, event())[0], publisher.VerdictDuplicate)
		}
		wantEntries(t, s.Client(), topic, 2)
		// The entry is what the decorated publisher wrote, with the key.
		ours := mustPublish(t, newPublisher(t, s.Client(), mode(m)), topic, event())[0]
		if m != publisher.ModeIDMPAuto {
			wantVerdict(t, ours, publisher.VerdictDuplicate)
		}
		mustPublish(t, p, topic, payments(10, 500)...)
		if n := entries(t, s.Client(), topic); n > 160 {
			t.Errorf("%d entries: not trimmed as the decorated publisher asks", n)
		}
	})
}

// Each half refuses to work without the other, and nothing is written.
func TestGuardHalves(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	p, guard := guarded(t, client, redisstream.PublisherConfig{})

	other, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: s.Client()}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	withoutClient, err := guard.Decorator()(other)
	if err != nil {
		t.Fatal(err)
	}
	if err := withoutClient.Publish(topic, payment(1)); !errors.Is(err, publisher.ErrUnguarded) || publisher.IsPermanent(err) {
		t.Errorf("decorator alone: %v", err)
	}
	withoutDecorator, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: guard.Client()}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	if err := withoutDecorator.Publish(topic, payment(1)); !errors.Is(err, publisher.ErrUnguarded) {
		t.Errorf("client alone: %v", err)
	}
	g, ctx := guard.Client(), t.Context()
	add := &redis.XAddArgs{Stream: topic, Values: []string{"a", "b"}}
	for way, run := range map[string]func() error{
		"XAdd": func() error { return g.XAdd(ctx, add).Err() },
		"Do":   func() error { return g.Do(ctx, "xadd", topic, "*", "a", "b").Err() },
		"Pipelined": func() error {
			_, err := g.Pipelined(ctx, func(pipe redis.Pipeliner) error { pipe.XAdd(ctx, add); return nil })
			return err
		},
		"TxPipelined": func() error {
			_, err := g.TxPipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Do(ctx, "XADD", topic, "*", "a", "b"); return nil })
			return err
		},
		"Pipeline and Exec": func() error {
			pipe := g.Pipeline()
			pipe.XAdd(ctx, add)
			_, err := pipe.Exec(ctx)
			return err
		},
		"BatchProcess": func() error {
			pipe := g.TxPipeline()
			_ = pipe.BatchProcess(ctx, redis.NewStringCmd(ctx, "xadd", topic, "*", "a", "b"))
			_, err := pipe.Exec(ctx)
			return err
		},
		"pipeline of a pipeline": func() error {
			_, err := g.Pipeline().TxPipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Pipeline().XAdd(ctx, add); return nil })
			return err
		},
	} {
		if err := run(); !errors.Is(err, publisher.ErrUnguarded) {
			t.Errorf("%s: %v", way, err)
		}
	}
	if _, err := g.Pipelined(ctx, func(pipe redis.Pipeliner) error { pipe.Get(ctx, topic+"-x"); return nil }); !errors.Is(err, redis.Nil) {
		t.Errorf("another command in a pipeline: %v", err)
	}
	if _, err := g.AutoPipeline(); !errors.Is(err, publisher.ErrUnguarded) {
		t.Error(err)
	}
	if err := g.Set(ctx, topic+"-x", "1", 0).Err(); err != nil { // all else goes through
		t.Error(err)
	}
	wantEntries(t, client, topic, 0)

	mustPublish(t, p, topic, payment(1))
	wantConflict(t, p.Publish(topic, with(1, `{"order_id":"1000","payment_id":"p1","amount":1}`)), "$.amount")
	if err := p.Publish(topic, with(2, `{}`)); !errors.Is(err, publisher.ErrNoKey) {
		t.Error(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(topic, payment(3)); !errors.Is(err, publisher.ErrClosed) && (err == nil || !strings.Contains(err.Error(), "closed")) {
		t.Errorf("after Close: %v", err)
	}
	if err := client.Ping(ctx).Err(); err != nil {
		t.Errorf("the caller's client was closed: %v", err)
	}
}

// A Router closes every publisher that it was given.
func TestSharedHandles(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	p := newPublisher(t, s.Client())
	a, b := p.Shared(), p.Shared()
	mustPublish(t, a, topic, payment(1))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if err := a.Publish(topic, payment(2)); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("a closed handle: %v", err)
	}
	mustPublish(t, b, topic, payment(2))
	mustPublish(t, p, topic, payment(3))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := b.Publish(topic, payment(4)); !errors.Is(err, publisher.ErrClosed) {
		t.Errorf("a handle of a closed publisher: %v", err)
	}
}
