package open_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// addForeign adds an event as watermill-redisstream does.
func addForeign(t testing.TB, client redis.UniversalClient, topic, payload string) {
	t.Helper()
	values, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal(topic, message.NewMessage(watermill.NewUUID(), []byte(payload)))
	if err != nil {
		t.Fatal(err)
	}
	if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, Values: values}).Err(); err != nil {
		t.Fatal(err)
	}
}

// openFor opens under a deadline, and says how long it took.
func openFor(cfg idempotent.Config, d time.Duration) (*idempotent.PubSub, time.Duration, error) {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	begun := time.Now()
	p, err := idempotent.Open(ctx, cfg)
	return p, time.Since(begun), err
}

// A server that is down, or frozen, is an error at the deadline, which says what to do; with
// SkipCheck it is none.
func TestServerAway(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	for name, away := range map[string]func(*faultlink.Link){
		"down":   func(l *faultlink.Link) { l.Refuse() },
		"frozen": func(l *faultlink.Link) { l.Stall(faultlink.Replies) },
	} {
		t.Run(name, func(t *testing.T) {
			link := faultlink.New(t, s.Addr())
			away(link)
			cfg := config(t, link.Client())
			_, took, err := openFor(cfg, time.Second)
			wantError(t, err, "can't be reached", "correct the address, or start it", "SkipCheck")
			if !errors.Is(err, context.DeadlineExceeded) || took > 10*time.Second { // 1 s, and a stall of the machine
				t.Errorf("after %v: %v", took, err)
			}
			cfg.SkipCheck = true
			p, _, err := openFor(cfg, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			link.Heal()
			publish(t, p, testserver.Topic(t), "1001")
			if err := p.Close(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A server that comes up while Open waits is waited for.
func TestServerComesUp(t *testing.T) {
	s := testserver.Shared(t, testserver.Valkey91)
	link := faultlink.New(t, s.Addr())
	link.Refuse()
	l := &log{Logger: observe.NewLogger(t)}
	cfg := config(t, link.Client())
	cfg.Logger = l
	go func() {
		testserver.Eventually(t, within, func() error {
			if !l.has("can't be reached; asking again") {
				return errors.New("the log does not say that the server is away")
			}
			return nil
		})
		link.Accept()
	}()
	p, _, err := openFor(cfg, within)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if !l.has("Warning: The server has no append-only file") {
		t.Errorf("the log has no warning: %q", l.lines.All())
	}
}

// What waiting does not help is an error at once.
func TestWrongPassword(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis80)
	client := s.Client(func(o *redis.Options) { o.Username, o.Password = "nobody", "wrong" })
	_, took, err := openFor(config(t, client), time.Minute)
	wantError(t, err, "refuses the client", "WRONGPASS", "correct the options")
	if took > 30*time.Second {
		t.Errorf("took %v", took)
	}
}

// Missing rights show when the process starts: each list of topics is checked for what is
// done with it, and for nothing else.
func TestMissingRightsShowAtOpen(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	in, out := testserver.Topic(t), testserver.Topic(t)
	client := s.User("billing-open", "+@all", "~"+in+"*", "~{"+in+"*", "~idem:done:*")
	cfg := config(t, client)
	cfg.SubscribeTopics = []string{in}
	open(t, cfg)
	cfg.PublishTopics = []string{out}
	_, _, err := openFor(cfg, within)
	wantError(t, err, "check the publisher", out)
	if strings.Contains(err.Error(), "check the subscriber") {
		t.Errorf("the service does not read %s: %v", out, err)
	}

	cfg.PublishTopics = nil
	cfg.Client = s.User("billing-store", "+@all", "~"+in+"*", "~{"+in+"*")
	_, _, err = openFor(cfg, within)
	wantError(t, err, "check the store", "idem:done:")

	cfg.Client = s.User("billing-reader", "+@all", "-xack", "~*")
	_, _, err = openFor(cfg, within)
	wantError(t, err, "check the subscriber", in, "XACK")
}

// Close returns at its context's end though a handler does not, nor the server answers; what
// it began ends by itself. (TestMain looks for goroutines that are left.)
func TestCloseIsBounded(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	link, in := faultlink.New(t, s.Addr()), testserver.Topic(t)
	client := link.Client()
	addForeign(t, client, in, `{"id":"1001"}`)
	cfg := config(t, client)
	cfg.Subscriber.CloseTimeout = 6 * time.Second
	p, err := idempotent.Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	messages, err := p.Subscriber().Subscribe(t.Context(), in)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-messages: // never settled
	case <-time.After(within):
		t.Fatal("no message")
	}
	link.Stall(faultlink.Replies)
	ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
	defer cancel()
	begun := time.Now()
	err = p.Close(ctx)
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("Close took %v", took)
	}
	wantError(t, err, "the subscriber has not ended yet")
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	link.Heal()
	if err := p.Close(context.Background()); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the second Close: %v", err)
	}
	if _, open := <-messages; open {
		t.Error("the subscription has not ended")
	}
}

// Without a deadline Open gives up by itself.
func TestDefaultDeadline(t *testing.T) {
	t.Parallel()
	link := faultlink.New(t, testserver.Shared(t, testserver.Redis86).Addr())
	link.Refuse()
	failed := make(chan error, 1)
	go func() {
		_, err := idempotent.Open(context.Background(), config(t, link.Client()))
		failed <- err
	}()
	select {
	case err := <-failed:
		wantError(t, err, "can't be reached")
	case <-time.After(idempotent.DefaultOpenTimeout + within):
		t.Fatal("Open goes on without an end")
	}
}

// A user who may not even PING has reached the server.
func TestNoPing(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	open(t, config(t, s.User("billing-no-ping", "+@all", "-ping", "~*")))
}
