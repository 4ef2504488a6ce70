package publisher

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
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
