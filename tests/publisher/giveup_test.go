package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// loses picks transactions that have a word in them.
func loses(word string) func(faultlink.Command) bool {
	return func(c faultlink.Command) bool {
		return slices.ContainsFunc(c.Queued, func(q faultlink.Command) bool {
			return slices.ContainsFunc(q.Args, func(arg string) bool { return strings.Contains(arg, word) })
		})
	}
}

// A caller that sends by itself is not kept by the retries of another one that was in
// the queue before.
func TestCallerIsNotKeptByAnotherOnesRetries(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	link := faultlink.New(t, s.Addr())
	p := newPublisher(t, link.Client(), func(c *publisher.Config) { c.RetryFor = 15 * time.Second })
	mustPublish(t, p, topic, payment(0))
	link.Lose(loses(`"unlucky"`))
	link.Stall(faultlink.Replies)
	timed, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for n := range 3 { // the senders
		wg.Go(func() { _, _ = p.Send(timed, topic, payment(10+n)) })
	}
	<-time.After(50 * time.Millisecond)
	wg.Go(func() { _, _ = p.Send(timed, topic, with(1, `{"order_id":"1","payment_id":"unlucky"}`)) })
	<-time.After(150 * time.Millisecond) // the senders are late: the next call gets one
	time.AfterFunc(50*time.Millisecond, link.Resume)
	start := time.Now()
	if err := p.Publish(topic, payment(20)); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > 8*time.Second {
		t.Errorf("took %v", took)
	}
	cancel()
	wg.Wait()
}

// A resend that comes when the window has passed could add the event again: it is not
// sent, and the outcome is unknown.
func TestRetriesEndWithTheWindow(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		var once sync.Once
		p := newPublisher(t, link.Client(), mode(m), window(time.Second, 100), func(c *publisher.Config) {
			c.Hooks = []publisher.Hooks{{OnRetry: func(publisher.RetryEvent) {
				once.Do(func() {
					link.Stall(faultlink.Both)
					time.AfterFunc(1500*time.Millisecond, link.Resume)
				})
			}}}
		})
		mustPublish(t, p, topic, payment(0))
		link.LoseNext(1, "XADD", "EVAL")
		if err := p.Publish(topic, payment(1)); !errors.Is(err, publisher.ErrOutcomeUnknown) {
			t.Errorf("error %v", err)
		}
		wantEntries(t, s.Client(), topic, 2)
	})
}

// A resend that goes out in time and gets to the server when the window has passed may
// add the event again: the receipt says so.
func TestAddedAgainAfterTheWindow(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		client := link.Client()
		var windows observe.Events[publisher.WindowEvent]
		p := newPublisher(t, client, mode(m), window(4*time.Second, 100), func(c *publisher.Config) {
			c.Hooks = []publisher.Hooks{{OnWindow: windows.Add}}
		})
		mustPublish(t, p, topic, payment(0))
		held := slowResend{word: "xadd", by: 6 * time.Second}
		if m == publisher.ModeLatch {
			held.word = "eval"
		}
		client.AddHook(&held)
		link.LoseNext(1, "XADD", "EVAL")
		msg := payment(1)
		again := msg.Copy() // one event, twice in the call
		if err := p.Publish(topic, msg, again); !errors.Is(err, publisher.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "twice") {
			t.Errorf("error %v", err)
		}
		if r, _ := publisher.ReceiptOf(msg); r.Verdict != publisher.VerdictAdded || !r.Resent || r.EntryID == "" {
			t.Errorf("receipt %+v", r)
		}
		if r, _ := publisher.ReceiptOf(again); r.Verdict != publisher.VerdictDuplicate {
			t.Errorf("receipt of the second one %+v", r)
		}
		wantEntries(t, s.Client(), topic, 3)
		if list := windows.All(); len(list) != 1 { // that ids have expired is no overflow
			t.Errorf("events %+v", list)
		}
	})
}

// slowResend is a hook that holds back the second transaction that has a command.
type slowResend struct {
	word string
	by   time.Duration
	seen atomic.Int64
}

func (*slowResend) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*slowResend) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (h *slowResend) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if slices.ContainsFunc(cmds, func(c redis.Cmder) bool { return c.Name() == h.word }) && h.seen.Add(1) == 2 {
			<-time.After(h.by)
		}
		return next(ctx, cmds)
	}
}

// While no server answers, calls come and give up: nothing of them stays.
func TestCallsThatGaveUpLeaveNothingBehind(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	p := newPublisher(t, client, func(c *publisher.Config) { c.Key = eventkey.MessageUUID() })
	before := heap()
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for calls.Add(1) <= 5000 {
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				if _, err := p.Send(ctx, "orders", message.NewMessage(uuid.NewString(), make([]byte, 8<<10))); err == nil {
					t.Error("published without a server")
				}
				cancel()
			}
		})
	}
	wg.Wait()
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("5,000 calls of 8 KiB, the heap has grown by %d KiB", grown>>10)
	}
	start := time.Now()
	if err := p.Close(); err != nil || time.Since(start) > 5*time.Second {
		t.Errorf("Close took %v: %v", time.Since(start), err)
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A client without time-outs waits for a reply for ever; Close does not, and takes the
// calls along.
func TestCloseGivesUp(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	link := faultlink.New(t, s.Addr())
	client := link.Client(func(o *redis.Options) { o.ReadTimeout = -1 })
	p, err := publisher.New(publisher.Config{Client: client, ProducerID: "payment-service", Key: payKey, RetryFor: 500 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mustPublish(t, p, topic, payment(0))
	link.Stall(faultlink.Replies)
	result := make(chan error, 1)
	go func() { result <- p.Publish(topic, payment(1)) }()
	testserver.Eventually(t, 5*time.Second, func() error {
		if n := entries(t, s.Client(), topic); n < 2 {
			return fmt.Errorf("%d entries", n)
		}
		return nil
	})
	if err := p.Close(); err == nil {
		t.Error("Close says that all is well")
	}
	select {
	case err := <-result:
		if !errors.Is(err, publisher.ErrOutcomeUnknown) || !errors.Is(err, publisher.ErrClosed) {
			t.Errorf("error %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the call still hangs")
	}
	link.Resume() // lets the sender's goroutine end
}
