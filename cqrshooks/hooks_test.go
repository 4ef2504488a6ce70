package cqrshooks_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/gochannel"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/cqrshooks"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type placed struct{ OrderID string }

func (e placed) EventKey() []string { return []string{"placed", e.OrderID} }

type shipped struct{ OrderID string }

func (e *shipped) EventKey() []string { return []string{"shipped", e.OrderID} }

type keyless struct{ OrderID string }

type noParts struct{}

func (noParts) EventKey() []string { return nil }

type panics struct{}

func (*panics) EventKey() []string { panic("boom") }

var marshaler = cqrs.JSONMarshaler{GenerateName: cqrs.StructName}

// kept is a publisher that keeps what it gets.
type kept struct{ msgs []*message.Message }

func (k *kept) Publish(_ string, msgs ...*message.Message) error {
	k.msgs = append(k.msgs, msgs...)
	return nil
}
func (*kept) Close() error { return nil }

func TestKeysOfEventsAndCommands(t *testing.T) {
	out := &kept{}
	var next int
	events, err := cqrs.NewEventBusWithConfig(out, cqrs.EventBusConfig{
		Marshaler:            marshaler,
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
		OnPublish:            cqrshooks.OnPublish(func(cqrs.OnEventSendParams) error { next++; return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	commands, err := cqrs.NewCommandBusWithConfig(out, cqrs.CommandBusConfig{
		Marshaler:            marshaler,
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
		OnSend:               cqrshooks.OnSend(func(cqrs.CommandBusOnSendParams) error { next++; return nil }),
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		value     any
		want, err string
	}{
		{placed{"1001"}, "placed:1001", ""},
		{&placed{"1001"}, "placed:1001", ""},
		{shipped{"1001"}, "shipped:1001", ""}, // the method is on the pointer
		{&shipped{"a:b"}, "shipped:a%3Ab", ""},
		{keyless{"1001"}, "", ""},
		{&keyless{"1001"}, "", ""},
		{placed{""}, "", "position 1"},
		{noParts{}, "", "no parts"},
		{panics{}, "", "boom"},
		{placed{strings.Repeat("k", 2000)}, "", "1024"},
	} {
		for name, send := range map[string]func() error{
			"event":   func() error { return events.Publish(t.Context(), tt.value) },
			"command": func() error { return commands.Send(t.Context(), tt.value) },
		} {
			out.msgs, next = nil, 0
			err := send()
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) || len(out.msgs) != 0 {
					t.Errorf("%d, %s: error %v does not say %q; %d sent", i, name, err, tt.err, len(out.msgs))
				}
				continue
			}
			if err != nil || len(out.msgs) != 1 {
				t.Fatalf("%d, %s: %v", i, name, err)
			}
			if got := out.msgs[0].Metadata.Get(eventkey.MetadataKey); got != tt.want {
				t.Errorf("%d, %s: key %q, want %q", i, name, got, tt.want)
			}
			if next != 1 {
				t.Errorf("%d, %s: the next hook was called %d times", i, name, next)
			}
		}
	}
	if err := events.Publish(t.Context(), placed{""}); !errors.Is(err, eventkey.ErrNoKey) {
		t.Errorf("an empty part: %v, want ErrNoKey", err)
	}
}

func TestKeyOfTheMarshalerStays(t *testing.T) {
	msg := message.NewMessage("u", nil)
	msg.Metadata.Set(eventkey.MetadataKey, "mine")
	if err := cqrshooks.OnPublish()(cqrs.OnEventSendParams{Message: msg, Event: placed{"1"}}); err != nil || msg.Metadata.Get(eventkey.MetadataKey) != "mine" {
		t.Errorf("%v, %v", msg.Metadata, err)
	}
}

// world is a Router with a bus on a gochannel.
type world struct {
	t      *testing.T
	once   *middleware.Once
	router *message.Router
	pubsub *gochannel.GoChannel
	mu     sync.Mutex
	calls  []string
	errs   []error
}

func newWorld(t *testing.T) *world {
	t.Helper()
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "shop", Retention: time.Hour, Delay: 5 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	router, err := message.NewRouter(message.RouterConfig{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, once: once, router: router, pubsub: gochannel.NewGoChannel(gochannel.Config{}, watermill.NopLogger{})}
	router.AddMiddleware(func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			own := msg.Context()
			out, err := h(msg)
			if eventkeyOf(msg.Context()) != eventkeyOf(own) {
				t.Error("the message left with another context")
			}
			w.mu.Lock()
			defer w.mu.Unlock()
			if err != nil {
				w.errs = append(w.errs, err)
			}
			return out, err
		}
	})
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), w.pubsub.Close(), once.Close(context.Background()), store.Close()); err != nil {
			t.Error(err)
		}
	})
	return w
}

func eventkeyOf(ctx context.Context) bool { _, ok := eventkey.HandledFrom(ctx); return ok }

func (w *world) run() {
	w.t.Helper()
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := w.router.Run(context.Background()); err != nil {
			w.t.Error(err)
		}
	}()
	<-w.router.Running()
	w.t.Cleanup(func() {
		_ = w.router.Close()
		<-stopped
	})
}

// handler notes its calls; it fails the first times.
func (w *world) handler(name string, failures int) cqrs.GroupEventHandler {
	return cqrs.NewGroupEventHandler(func(ctx context.Context, _ *placed) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, name)
		h, ok := eventkey.HandledFrom(ctx)
		if !ok || h.Key != "placed:1001" || h.Topic != "events" {
			w.t.Errorf("%s: handled %+v, %v", name, h, ok)
		}
		if failures > 0 {
			failures--
			return errors.New(name + " fails")
		}
		return nil
	})
}

func (w *world) group(handlers ...cqrs.GroupEventHandler) {
	w.t.Helper()
	p, err := cqrs.NewEventGroupProcessorWithConfig(w.router, cqrs.EventGroupProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventGroupProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor: func(cqrs.EventGroupProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return w.pubsub, nil
		},
		OnHandle:  cqrshooks.OnGroupEvent(w.once),
		Marshaler: marshaler,
		Logger:    watermill.NopLogger{},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := p.AddHandlersGroup("billing", handlers...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) publish(event any) {
	w.t.Helper()
	bus, err := cqrs.NewEventBusWithConfig(w.pubsub, cqrs.EventBusConfig{
		GeneratePublishTopic: func(cqrs.GenerateEventPublishTopicParams) (string, error) { return "events", nil },
		OnPublish:            cqrshooks.OnPublish(), Marshaler: marshaler,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := bus.Publish(context.Background(), event); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) send(command any) {
	w.t.Helper()
	bus, err := cqrs.NewCommandBusWithConfig(w.pubsub, cqrs.CommandBusConfig{
		GeneratePublishTopic: func(cqrs.CommandBusGeneratePublishTopicParams) (string, error) { return "commands", nil },
		OnSend:               cqrshooks.OnSend(), Marshaler: marshaler,
	})
	if err != nil {
		w.t.Fatal(err)
	}
	if err := bus.Send(context.Background(), command); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) wantCalls(want ...string) {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		w.mu.Lock()
		calls := slices.Clone(w.calls)
		w.mu.Unlock()
		if slices.Equal(calls, want) {
			return
		}
		if time.Now().After(deadline) || len(calls) > len(want) {
			w.t.Fatalf("calls %v, want %v", calls, want)
		}
	}
}

// The first handler of the group is done, the second fails: on redelivery only it and
// the ones after it run.
func TestSecondHandlerOfAGroupFails(t *testing.T) {
	w := newWorld(t)
	w.group(cqrshooks.Named("charge", w.handler("charge", 0)), cqrshooks.Named("mail", w.handler("mail", 2)), cqrshooks.Named("ship", w.handler("ship", 0)))
	w.run()
	w.publish(placed{"1001"})
	w.wantCalls("charge", "mail", "mail", "mail", "ship")
	w.publish(placed{"1001"}) // once more: nobody runs
	w.publish(&placed{"1001"})
	w.wantCalls("charge", "mail", "mail", "mail", "ship")
}

func TestTwoUnnamedHandlersForOneEvent(t *testing.T) {
	w := newWorld(t)
	w.group(w.handler("first", 0), w.handler("second", 0))
	w.run()
	w.publish(placed{"1001"})
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		w.mu.Lock()
		n := len(w.errs)
		w.mu.Unlock()
		if n >= 3 { // and again on each redelivery
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no errors")
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, err := range w.errs {
		if !errors.Is(err, cqrshooks.ErrUnnamed) || !middleware.IsPermanent(err) || !strings.Contains(err.Error(), "Named") {
			t.Errorf("error %v, want a permanent ErrUnnamed that says what to do", err)
		}
	}
	if !slices.Equal(w.calls, []string{"first"}) {
		t.Errorf("calls %v", w.calls)
	}
}

// funcHandler can't be compared.
type funcHandler struct{ fn func() error }

func (funcHandler) NewEvent() any                       { return &placed{} }
func (h funcHandler) Handle(context.Context, any) error { return h.fn() }

func TestUnnamedHandlers(t *testing.T) {
	hook := cqrshooks.OnGroupEvent(newWorld(t).once)
	msg := func() *message.Message {
		m := message.NewMessage("u", nil)
		m.Metadata.Set(eventkey.MetadataKey, "k")
		return m
	}
	one := cqrs.NewGroupEventHandler(func(context.Context, *placed) error { return nil })
	for i, tt := range []struct {
		group, event string
		handler      cqrs.GroupEventHandler
		ok           bool
	}{
		{"g", "e", one, true},
		{"g", "e", one, true},     // the same again
		{"g", "other", one, true}, // another event
		{"h", "e", one, true},     // another group
		{"g", "e", cqrs.NewGroupEventHandler(func(context.Context, *placed) error { return nil }), false},
		{"g", "e", cqrshooks.Named("n", one), true},
		{"g", "new", funcHandler{}, false},
		{"g", "new", cqrshooks.Named("m", funcHandler{func() error { return nil }}), true},
		{"g", "e", cqrshooks.Named("n", one), true}, // the same again
		{"g", "e", cqrshooks.Named("n", cqrs.NewGroupEventHandler(func(context.Context, *placed) error { return nil })), false},
		{"g", "third", cqrshooks.Named("n", cqrs.NewGroupEventHandler(func(context.Context, *placed) error { return nil })), false},
	} {
		err := hook(cqrs.EventGroupProcessorOnHandleParams{GroupName: tt.group, EventName: tt.event, Handler: tt.handler, Event: &placed{"1"}, Message: msg()})
		if (err == nil) != tt.ok {
			t.Errorf("%d: %v", i, err)
		}
	}
}

func TestCommandsAndEvents(t *testing.T) {
	w := newWorld(t)
	commands, err := cqrs.NewCommandProcessorWithConfig(w.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return w.pubsub, nil
		},
		OnHandle: cqrshooks.OnCommand(w.once), Marshaler: marshaler, Logger: watermill.NopLogger{},
	})
	if err != nil {
		t.Fatal(err)
	}
	failures := 1
	note := func(name string) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, name)
		if failures > 0 {
			failures--
			return errors.New("fails")
		}
		return nil
	}
	if err := commands.AddHandlers(cqrs.NewCommandHandler("charge", func(context.Context, *shipped) error { return note("command") })); err != nil {
		t.Fatal(err)
	}
	events, err := cqrs.NewEventProcessorWithConfig(w.router, cqrs.EventProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.EventProcessorGenerateSubscribeTopicParams) (string, error) { return "events", nil },
		SubscriberConstructor:  func(cqrs.EventProcessorSubscriberConstructorParams) (message.Subscriber, error) { return w.pubsub, nil },
		OnHandle:               cqrshooks.OnEvent(w.once), Marshaler: marshaler, Logger: watermill.NopLogger{},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := events.AddHandlers(
		cqrs.NewEventHandler("mail", func(context.Context, *placed) error { return note("mail") }),
	); err != nil {
		t.Fatal(err)
	}
	w.run()
	for range 3 {
		w.send(shipped{"1001"})
	}
	w.wantCalls("command", "command")
	for range 3 {
		w.publish(placed{"1001"})
	}
	w.wantCalls("command", "command", "mail")
}

// Two handlers with one name: the second one would be skipped.
func TestTwoHandlersWithOneName(t *testing.T) {
	w := newWorld(t)
	w.group(cqrshooks.Named("charge", w.handler("first", 0)), cqrshooks.Named("charge", w.handler("second", 0)))
	w.run()
	w.publish(placed{"1001"})
	err := w.wantError()
	if !errors.Is(err, cqrshooks.ErrSameName) || !middleware.IsPermanent(err) {
		t.Errorf("error %v, want a permanent ErrSameName", err)
	}
	w.wantCalls("first")
}

func (w *world) wantError() error {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(10 * time.Second); ; <-tick.C {
		w.mu.Lock()
		errs := slices.Clone(w.errs)
		w.mu.Unlock()
		if len(errs) > 0 {
			return errs[0]
		}
		if time.Now().After(deadline) {
			w.t.Fatal("no errors")
		}
	}
}

// A group named a/b with a handler c is another scope than a group a with a handler b/c,
// and an unnamed handler another one than one whose name begins with a slash.
func TestScopesAreInjective(t *testing.T) {
	hook, calls := cqrshooks.OnGroupEvent(newWorld(t).once), 0
	handler := func() cqrs.GroupEventHandler {
		return cqrs.NewGroupEventHandler(func(context.Context, *placed) error { calls++; return nil })
	}
	for i, of := range []struct {
		group   string
		handler cqrs.GroupEventHandler
	}{
		{"billing/eu", cqrshooks.Named("charge", handler())}, {"billing", cqrshooks.Named("eu/charge", handler())},
		{"billing", handler()}, {"billing", cqrshooks.Named("/placed", handler())}, {"billing/", cqrshooks.Named("placed", handler())}, {"billing%2Feu", cqrshooks.Named("charge", handler())},
	} {
		msg := message.NewMessage("u", nil)
		msg.Metadata.Set(eventkey.MetadataKey, "k")
		err := hook(cqrs.EventGroupProcessorOnHandleParams{GroupName: of.group, EventName: "placed", Handler: of.handler, Event: &placed{"1"}, Message: msg})
		if err != nil || calls != i+1 {
			t.Errorf("%d: %d calls, %v", i, calls, err)
		}
	}
}

// awayStore is one that is unavailable the first time.
type awayStore struct {
	dedupe.Store
	away atomic.Bool
}

func (s *awayStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if s.away.Swap(false) {
		return nil, errors.New("connection refused")
	}
	return s.Store.Claim(ctx, k, o)
}

// AckCommandHandlingErrors acknowledges commands whose handler fails, not those that
// could not be handled yet.
func TestCommandThatCannotBeHandledYetIsNotAcknowledged(t *testing.T) {
	w := newWorld(t)
	memory, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	store := &awayStore{Store: memory}
	store.away.Store(true)
	once, err := middleware.New(middleware.Config{Store: store, Namespace: "shop", Retention: time.Hour, Delay: 5 * time.Millisecond}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(once.Close(context.Background()), memory.Close()); err != nil {
			t.Error(err)
		}
	})
	commands, err := cqrs.NewCommandProcessorWithConfig(w.router, cqrs.CommandProcessorConfig{
		GenerateSubscribeTopic: func(cqrs.CommandProcessorGenerateSubscribeTopicParams) (string, error) { return "commands", nil },
		SubscriberConstructor: func(cqrs.CommandProcessorSubscriberConstructorParams) (message.Subscriber, error) {
			return w.pubsub, nil
		},
		OnHandle: cqrshooks.OnCommand(once), Marshaler: marshaler, Logger: watermill.NopLogger{}, AckCommandHandlingErrors: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := commands.AddHandlers(cqrs.NewCommandHandler("charge", func(context.Context, *shipped) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.calls = append(w.calls, "charge")
		return nil
	})); err != nil {
		t.Fatal(err)
	}
	w.run()
	w.send(shipped{"1001"})
	w.wantCalls("charge")
}
