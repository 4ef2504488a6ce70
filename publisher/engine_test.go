package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/server"
)

func topicsOf(t *testing.T, change func(*Config)) (*Publisher, *engine) {
	t.Helper()
	c := good(t)
	c.Window.Duration = time.Minute
	if change != nil {
		change(&c)
	}
	p, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	return p, p.engine
}

// A service with a topic a tenant must not grow for ever.
func TestIdleTopicsAreForgotten(t *testing.T) {
	for _, tt := range []struct {
		window, kept time.Duration
	}{{time.Minute, idleTopic}, {time.Hour, time.Hour}} {
		_, e := topicsOf(t, func(c *Config) { c.Window.Duration = tt.window })
		now := time.Now()
		most := 0
		for tenant := range 20_000 {
			now = now.Add(time.Second)
			e.acquire(fmt.Sprint("tenant ", tenant), now).release()
			most = max(most, len(e.topics))
		}
		if limit := int((tt.kept + sweepPause) / time.Second); most > limit+1 || most < limit-1 {
			t.Errorf("window %v: up to %d topics, want %d", tt.window, most, limit)
		}
		if _, ok := e.topics["tenant 19900"]; !ok {
			t.Error("a topic of a short while ago is forgotten")
		}
		first := e.acquire("tenant 19999", now)
		if again := e.acquire("tenant 19999", now); again != first {
			t.Error("two topics of one name")
		}
	}
}

// A topic that is forgotten says before how many keys the server forgot too early, as Close does.
func TestIdleTopicSaysWhatWasEvicted(t *testing.T) {
	streams := new(fullStream)
	client := redis.NewClient(&redis.Options{Addr: "nowhere:1"})
	client.AddHook(streams)
	t.Cleanup(func() { _ = client.Close() })
	var evicted []int64
	p, e := topicsOf(t, func(c *Config) {
		c.Client = client
		c.Hooks = []Hooks{{OnWindow: func(ev WindowEvent) {
			if ev.Kind == WindowOverflow && ev.Topic == "orders" {
				evicted = append(evicted, ev.Evicted)
			}
		}}}
	})
	for n, added := range []int{10_000, 30_000, 30_500} { // of which the server tracks 10,000
		streams.added = added
		if err := p.Publish("orders", message.NewMessage("u", fmt.Appendf(nil, `{"id":%d}`, n))); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(evicted, []int64{10_000}) {
		t.Errorf("reported %v, want the first at once", evicted)
	}
	e.acquire("another", time.Now().Add(2*idleTopic)).release()
	if !slices.Equal(evicted, []int64{10_000, 500}) {
		t.Errorf("reported %v, want the rest when the topic is forgotten", evicted)
	}
}

// fullStream answers instead of a server that has added so many ids to a stream, and tracks as
// many as it can.
type fullStream struct{ added, entries int }

func (*fullStream) DialHook(next redis.DialHook) redis.DialHook { return next }
func (f *fullStream) ProcessHook(redis.ProcessHook) redis.ProcessHook {
	return func(_ context.Context, cmd redis.Cmder) error {
		f.answer(cmd)
		return cmd.Err()
	}
}

func (f *fullStream) ProcessPipelineHook(redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(_ context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			f.answer(cmd)
		}
		return nil
	}
}

func (f *fullStream) answer(cmd redis.Cmder) {
	switch cmd := cmd.(type) {
	case *redis.TimeCmd:
		cmd.SetVal(time.Now())
	case *redis.MapStringStringCmd:
		cmd.SetVal(map[string]string{"mode": "idmp", "shards": "1", "hash": strconv.Itoa(layout.HashVersion), "duration": "60"})
	case server.StreamInfoCommand:
		cmd.SetVal(fmt.Appendf(nil, "*10\r\n+last-generated-id\r\n+%d-0\r\n+idmp-duration\r\n:60\r\n+idmp-maxsize\r\n:%d\r\n+iids-tracked\r\n:10000\r\n+iids-added\r\n:%d\r\n",
			1000+f.entries, layout.MaxShardEntries, f.added))
	case *redis.StringCmd:
		if cmd.Name() == "info" {
			cmd.SetErr(server.ReplyError("NOPERM no"))
			return
		}
		f.entries++
		cmd.SetVal(fmt.Sprint(1000+f.entries, "-0"))
	case server.Command:
		if cmd.Name() == "xadd" { // which asks whether the server knows IDMP
			cmd.SetErr(redis.Nil)
			return
		}
		cmd.SetVal("OK")
	}
}

// A topic in use is never forgotten: neither one with a call, however long that takes, nor
// one whose sender goes on when its caller is gone.
func TestTopicInUseIsKept(t *testing.T) {
	held := make(chan struct{})
	dialled := make(chan struct{}, 100)
	client := redis.NewClient(&redis.Options{MaxRetries: -1, DialerRetries: 1, Dialer: func(context.Context, string, string) (net.Conn, error) {
		dialled <- struct{}{}
		<-held
		return nil, errors.New("nowhere")
	}})
	defer func() { _ = client.Close() }()
	p, e := topicsOf(t, func(c *Config) { c.Client, c.Key, c.RetryFor = client, eventkey.MessageUUID(), 50*time.Millisecond })
	has := func(name string) bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		_, ok := e.topics[name]
		return ok
	}
	now := time.Now()
	sweep := func() {
		now = now.Add(24 * time.Hour)
		e.acquire("another, at "+now.String(), now).release()
	}
	called := e.acquire("called", now)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-dialled
		cancel()
	}()
	if _, err := p.Send(ctx, "left", message.NewMessage("u", nil)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	left := e.topics["left"]
	sweep()
	if !has("called") || !has("left") {
		t.Errorf("forgotten in use: %v, %v", !has("called"), !has("left"))
	}
	called.release()
	close(held)
	for deadline := time.Now().Add(10 * time.Second); !left.queue.Idle(); <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the sender does not end")
		}
	}
	sweep()
	if has("called") || has("left") {
		t.Errorf("not forgotten: %v, %v", has("called"), has("left"))
	}
}

// Whoever has a topic has the one that all others get, whatever is forgotten meanwhile.
func TestOneTopicOfAName(t *testing.T) {
	_, e := topicsOf(t, nil)
	var wg sync.WaitGroup
	var clock sync.Mutex
	now := time.Now()
	later := func() time.Time {
		clock.Lock()
		defer clock.Unlock()
		now = now.Add(idleTopic / 2)
		return now
	}
	for worker := range 8 {
		wg.Go(func() {
			for n := range 500 {
				name := fmt.Sprint((worker + n) % 5)
				one := e.acquire(name, later())
				if other := e.acquire(name, later()); other != one {
					t.Error("two topics of one name")
				} else {
					other.release()
				}
				one.release()
			}
		})
	}
	wg.Wait()
}
