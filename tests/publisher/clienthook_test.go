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
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
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
