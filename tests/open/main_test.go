// Package open_test checks idempotent.Open on real servers.
package open_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // of servers that are away on purpose
	testserver.Main(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// within is how long a test waits for what should happen soon.
const within = 20 * time.Second

// config is short-lived, but for MinIdle: a busy machine stands still for seconds.
func config(t testing.TB, client redis.UniversalClient) idempotent.Config {
	return idempotent.Config{
		Client: client, Service: "billing", Key: eventkey.Template("pay:{$.id}"), Retention: 24 * time.Hour,
		Logger: observe.NewLogger(t),
		Subscriber: subscriber.Config{
			MinIdle: 8 * time.Second, Block: 50 * time.Millisecond,
			RedeliverAfter: 5 * time.Millisecond, RedeliverMax: 50 * time.Millisecond,
		},
	}
}

// open opens, and closes with the test.
func open(t testing.TB, cfg idempotent.Config) *idempotent.PubSub {
	t.Helper()
	p, err := idempotent.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return p
}

// route runs a Router until the test ends or the function returned is called.
func route(t testing.TB, add func(*message.Router)) (closeRouter func()) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	add(router)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	closed := false
	closeRouter = func() {
		if closed {
			return
		}
		closed = true
		if err := router.Close(); err != nil {
			t.Errorf("close the Router: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("run the Router: %v", err)
		}
	}
	t.Cleanup(closeRouter)
	select {
	case <-router.Running():
	case err := <-done:
		t.Fatalf("the Router ended: %v", err)
	case <-time.After(within):
		t.Fatal("the Router does not run")
	}
	return closeRouter
}

// publish publishes an event as a retry does: in a message with another UUID.
func publish(t testing.TB, p *idempotent.PubSub, topic, id string) {
	t.Helper()
	payload := fmt.Sprintf(`{"id":%q}`, id)
	if err := p.Publisher().Publish(topic, message.NewMessage(watermill.NewUUID(), []byte(payload))); err != nil {
		t.Fatal(err)
	}
}

func wantLength(t testing.TB, client redis.UniversalClient, stream string, want int64) {
	t.Helper()
	testserver.Eventually(t, within, func() error {
		if n, err := client.XLen(context.Background(), stream).Result(); err != nil || n != want {
			return fmt.Errorf("%s has %d entries, want %d: %w", stream, n, want, err)
		}
		return nil
	})
}

// wantSettled waits until the group has read and settled everything.
func wantSettled(t testing.TB, client redis.UniversalClient, topic, group string) {
	t.Helper()
	testserver.Eventually(t, within, func() error {
		last, err := client.XRevRangeN(context.Background(), topic, "+", "-", 1).Result()
		if err != nil || len(last) == 0 {
			return fmt.Errorf("last entry: %v, %w", last, err)
		}
		groups, err := client.XInfoGroups(context.Background(), topic).Result()
		for _, g := range groups {
			if g.Name == group && g.Pending == 0 && g.LastDeliveredID == last[0].ID {
				return nil
			}
		}
		return fmt.Errorf("groups %+v, %w", groups, err)
	})
}

// wantError checks that an error has these words.
func wantError(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("no %q in: %v", w, err)
		}
	}
}

// log collects what a user would see.
type log struct {
	*observe.Logger
	lines observe.Events[string]
}

func (l *log) Info(msg string, f watermill.LogFields) { l.lines.Add(fmt.Sprint(msg, f)) }

func (l *log) has(words string) bool {
	for _, line := range l.lines.All() {
		if strings.Contains(line, words) {
			return true
		}
	}
	return false
}
