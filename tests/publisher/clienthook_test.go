package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// txHook is a hook of the client that does something else with transactions that append,
// while it is on.
type txHook struct {
	on atomic.Bool
	do func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error
}

func (*txHook) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*txHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *txHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		appends := slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool {
			args := cmd.Args()
			return cmd.Name() == "xadd" || cmd.Name() == "eval" && strings.Contains(fmt.Sprint(args[1]), "XADD")
		})
		if appends && h.on.Load() {
			return h.do(ctx, cmds, next)
		}
		return next(ctx, cmds)
	}
}

// A hook of the client that panics takes neither the process along nor the topic: the panic
// is the error of the calls that were being sent, and the next ones work.
func TestClientHookPanics(t *testing.T) {
	for name, before := range map[string]bool{"before sending": true, "after sending": false} {
		t.Run(name, func(t *testing.T) {
			eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
				topic, client := testserver.Topic(t), s.Client()
				hook := &txHook{do: func(ctx context.Context, cmds []redis.Cmder, next redis.ProcessPipelineHook) error {
					if !before {
						_ = next(ctx, cmds)
					}
					panic("a tracing hook")
				}}
				client.AddHook(hook)
				p := newPublisher(t, client, mode(m), func(c *publisher.Config) { c.RetryFor = 5 * time.Second })
				mustPublish(t, p, topic, payment(0))

				hook.on.Store(true)
				// In the caller's goroutine, in a sender's, and more calls than there are senders.
				var wg sync.WaitGroup
				for n := 1; n <= 20; n++ {
					wg.Go(func() {
						ctx, cancel := context.WithCancel(context.Background())
						defer cancel()
						if n%2 == 0 {
							ctx = context.Background()
						}
						receipts, err := p.Send(ctx, topic, payment(n))
						if !errors.Is(err, publisher.ErrOutcomeUnknown) || publisher.IsPermanent(err) || !strings.Contains(err.Error(), "a tracing hook") {
							t.Errorf("error %v", err)
						}
						if receipts[0].Verdict != publisher.VerdictUnknown {
							t.Errorf("%+v", receipts[0])
						}
					})
				}
				wg.Wait()
				// Of a large call, what was behind the first batch was not sent.
				receipts, _ := p.Send(t.Context(), topic, payments(100, 700)...)
				if first, last := receipts[0].Err, receipts[599].Err; !errors.Is(first, publisher.ErrOutcomeUnknown) || !errors.Is(last, publisher.ErrNotSent) {
					t.Errorf("first %v\nlast %v", first, last)
				}
				hook.on.Store(false)
				for n := range 21 {
					mustPublish(t, p, topic, payment(n))
				}
				wantEntries(t, s.Client(), topic, 21+map[bool]int{true: 0, false: 256}[before])
				if err := p.Close(); err != nil {
					t.Errorf("Close: %v", err)
				}
			})
		})
	}
}

// A hook that swallows a transaction leaves neither a reply nor an error: nobody may take
// that for an entry, nor for none.
func TestClientHookSwallowsTheReply(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		topic, client := testserver.Topic(t), s.Client()
		hook := &txHook{do: func(context.Context, []redis.Cmder, redis.ProcessPipelineHook) error { return nil }}
		client.AddHook(hook)
		p := newPublisher(t, client, mode(m), func(c *publisher.Config) { c.RetryFor = 2 * time.Second })
		mustPublish(t, p, topic, payment(0))
		hook.on.Store(true)
		if err := p.Publish(topic, payments(0, 3)...); !errors.Is(err, publisher.ErrOutcomeUnknown) {
			t.Errorf("error %v", err)
		}
		hook.on.Store(false)
		mustPublish(t, p, topic, payments(0, 3)...)
		wantEntries(t, s.Client(), topic, 3)
	})
}

// swallowHook swallows the nth command of a name, alone or with the transaction that it is in.
type swallowHook struct {
	name string
	left atomic.Int32
}

func (h *swallowHook) swallows(cmds ...redis.Cmder) bool {
	return slices.ContainsFunc(cmds, func(cmd redis.Cmder) bool { return cmd.Name() == h.name }) && h.left.Add(-1) == 0
}

func (*swallowHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (h *swallowHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.swallows(cmd) {
			return nil
		}
		return next(ctx, cmd)
	}
}

func (h *swallowHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if h.swallows(cmds...) {
			return nil
		}
		return next(ctx, cmds)
	}
}

// A hook that swallows a command of the set-up hides no layout, which then would be written over,
// nor that none was written: under another layout retries would not be recognised.
func TestClientHookSwallowsTheSetUp(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	for name, most := range map[string]int{"hgetall": 2, "hset": 1, "xinfo": 2} {
		for n := 1; n <= most; n++ {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				laidOut, plainly := testserver.Topic(t), testserver.Topic(t)
				mustPublish(t, newPublisher(t, s.Client(), window(time.Hour, 10_000)), laidOut, payment(0))
				want := layoutOf(t, s, laidOut)
				if err := s.Client().Del(t.Context(), laidOut).Err(); err != nil { // so that it is set up again
					t.Fatal(err)
				}
				plain(t, s.Client(), plainly, payment(0)) // and this one has no layout yet
				for topic, want := range map[string]map[string]string{laidOut: want, plainly: {"mode": "idmp"}} {
					client, hook := s.Client(), &swallowHook{name: name}
					client.AddHook(hook)
					hook.left.Store(int32(n))
					mustPublish(t, newPublisher(t, client), topic, payments(1, 3)...)
					if left := hook.left.Load(); left > 0 {
						t.Fatalf("nothing was swallowed, %d left", left)
					}
					got := layoutOf(t, s, topic)
					for field, value := range want {
						if got[field] != value {
							t.Errorf("layout %v, want %v", got, want)
						}
					}
				}
			})
		}
	}
}

func layoutOf(t *testing.T, s *testserver.Server, topic string) map[string]string {
	t.Helper()
	record, err := s.Client().HGetAll(t.Context(), rediskey.LayoutKey(topic)).Result()
	if err != nil {
		t.Fatal(err)
	}
	delete(record, "generation")
	return record
}
