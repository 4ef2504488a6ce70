package identity_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
)

const retries = "_watermill_requeuer_retries"

func newMessage(payload string, md ...string) *message.Message {
	msg := message.NewMessage("uuid-7", []byte(payload))
	for i := 0; i < len(md); i += 2 {
		msg.Metadata.Set(md[i], md[i+1])
	}
	return msg
}

func constant(key string) eventkey.Source {
	return eventkey.Func(func(string, *message.Message) (string, error) { return key, nil })
}

func handling(key string) eventkey.Handled {
	return eventkey.Handled{Namespace: "billing", Topic: "orders", Handler: "charge", Key: key}
}

func TestKeyPrecedence(t *testing.T) {
	boom := errors.New("boom")
	fails := eventkey.Func(func(string, *message.Message) (string, error) { return "", boom })
	panics := eventkey.Func(func(string, *message.Message) (string, error) { panic("boom") })
	ownChild := identity.Child(handling("parent"), "out", "", identity.ByItself)
	for _, tt := range []struct {
		name             string
		md               []string
		handled          string // key of the message being handled, "" for none
		topic, publisher eventkey.Source
		key              string
		child            bool
		err              error
		text             string
	}{
		{name: "own key first", md: []string{eventkey.MetadataKey, "own", eventkey.MetadataChildKey, "c"}, handled: "parent",
			topic: constant("t"), publisher: constant("p"), key: "own"},
		{name: "topic's source before the publisher's", topic: constant("t"), publisher: constant("p"), key: "t"},
		{name: "publisher's source", publisher: constant("p"), key: "p"},
		{name: "source before child key", md: []string{eventkey.MetadataChildKey, "c"}, handled: "parent", publisher: constant("p"), key: "p"},
		{name: "child key before a derived one", md: []string{eventkey.MetadataChildKey, "c"}, handled: "parent", key: "c", child: true},
		{name: "derived child key", handled: "parent", key: ownChild, child: true},
		{name: "no rule", err: eventkey.ErrNoKey, text: "neither the topic nor the publisher"},
		{name: "no rule, and the handled message has no key", md: []string{"x", "y"}, handled: "-", err: eventkey.ErrNoKey, text: "neither"},

		{name: "inherited key is not own, source decides", md: []string{eventkey.MetadataKey, "parent"}, handled: "parent", publisher: constant("p"), key: "p"},
		{name: "inherited key is not own, derived", md: []string{eventkey.MetadataKey, "parent"}, handled: "parent", key: ownChild, child: true},
		{name: "another key than the parent's is own", md: []string{eventkey.MetadataKey, "parent2"}, handled: "parent", publisher: constant("p"), key: "parent2"},
		{name: "the same key outside of a handler is own", md: []string{eventkey.MetadataKey, "parent"}, publisher: constant("p"), key: "parent"},

		{name: "topic's source replaces the publisher's, also when it has no key", topic: eventkey.Metadata("none"), publisher: constant("p"),
			err: eventkey.ErrNoKey, text: "none is missing"},
		{name: "source without key, child key", md: []string{eventkey.MetadataChildKey, "c"}, topic: eventkey.Metadata("none"), key: "c", child: true},
		{name: "source without key, derived child key", handled: "parent", topic: eventkey.Metadata("none"), key: ownChild, child: true},
		{name: "source says no more than ErrNoKey", publisher: eventkey.Func(func(string, *message.Message) (string, error) { return "", eventkey.ErrNoKey }),
			err: eventkey.ErrNoKey, text: `topic "out"`},
		{name: "source gives an empty key", publisher: constant(""), err: eventkey.ErrNoKey, text: "is missing or empty"},
		{name: "source fails", md: []string{eventkey.MetadataChildKey, "c"}, handled: "parent", publisher: fails, err: boom},
		{name: "source panics", md: []string{eventkey.MetadataChildKey, "c"}, handled: "parent", publisher: panics, text: "panicked"},

		{name: "own key set and empty", md: []string{eventkey.MetadataKey, ""}, publisher: constant("p"), err: eventkey.ErrNoKey, text: eventkey.MetadataKey},
		{name: "own key too long", md: []string{eventkey.MetadataKey, strings.Repeat("k", 2048)}, publisher: constant("p"), text: "2048 bytes"},
		{name: "own key not UTF-8", md: []string{eventkey.MetadataKey, "\xff"}, text: "not valid UTF-8"},
		{name: "source's key too long", publisher: constant(strings.Repeat("k", 2048)), text: "2048 bytes"},
		{name: "child key not UTF-8", md: []string{eventkey.MetadataChildKey, "\xff"}, text: "not valid UTF-8"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx := context.Background()
			if tt.handled != "" {
				ctx = eventkey.WithHandled(ctx, handling(strings.TrimPrefix(tt.handled, "-")))
			}
			for _, where := range []string{"caller's context", "message's context"} {
				msg, callers := newMessage("p", tt.md...), ctx
				if where == "message's context" {
					msg.SetContext(ctx)
					callers = context.Background()
				}
				r, err := identity.Resolve(callers, "out", msg, tt.topic, tt.publisher)
				if r.Key != tt.key || r.Child != tt.child || (err != nil) != (tt.key == "") {
					t.Fatalf("%s: got %+v, %v, want key %q child %v", where, r, err, tt.key, tt.child)
				}
				if err == nil {
					if r.IdempotentID == "" {
						t.Fatal("no idempotent ID")
					}
					continue
				}
				if tt.err != nil && !errors.Is(err, tt.err) || tt.err == nil && errors.Is(err, eventkey.ErrNoKey) || !strings.Contains(err.Error(), tt.text) {
					t.Fatalf("%s: got %v, want %v with %q", where, err, tt.err, tt.text)
				}
				if errors.Is(err, eventkey.ErrNoKey) == errors.Is(err, eventkey.ErrInvalidMessage) {
					t.Errorf("%v matches both or none of ErrNoKey and ErrInvalidMessage", err)
				}
				if !errors.Is(tt.err, boom) && !strings.Contains(err.Error(), "uuid-7") {
					t.Errorf("%v does not name the message", err)
				}
			}
		})
	}
	if _, err := identity.Resolve(context.Background(), "out", nil, nil, constant("p")); err == nil {
		t.Error("a nil message has a key")
	}
	if r, err := identity.Resolve(nil, "out", newMessage(""), nil, constant("p")); err != nil || r.Key != "p" { //nolint:staticcheck // a nil context must do no harm
		t.Errorf("nil context: %+v, %v", r, err)
	}
}

// What can't be handled can be moved away, whatever is wrong with its key.
func TestPoisonedMessageWithoutAUsableKey(t *testing.T) {
	template := eventkey.Template("pay:{$.id}")
	for name, metadata := range map[string]map[string]string{
		"no key":       {"topic_poisoned": "orders"},
		"key too long": {"topic_poisoned": "orders", eventkey.MetadataKey: strings.Repeat("k", 2000)},
	} {
		msg := message.NewMessage("u1", []byte("no json"))
		for k, v := range metadata {
			msg.Metadata.Set(k, v)
		}
		r, err := identity.Resolve(context.Background(), "poison", msg, nil, template)
		if err != nil || r.Key != "poisoned:u1" || !r.Origin.Poisoned {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
	msg := message.NewMessage("u1", []byte(`{"id":1}`))
	msg.Metadata.Set("topic_poisoned", "orders")
	if r, err := identity.Resolve(context.Background(), "poison", msg, nil, template); err != nil || r.Key != "pay:1" {
		t.Errorf("with a usable key: %+v, %v", r, err)
	}
	if _, err := identity.Resolve(context.Background(), "orders", message.NewMessage("u1", nil), nil, template); !errors.Is(err, eventkey.ErrNoKey) {
		t.Errorf("not poisoned: %v", err)
	}
}

// A copy of the message being handled is a new message, except where it is that
// message going on: requeued, republished or poisoned.
func TestInheritedKeyAndAttempt(t *testing.T) {
	parent := newMessage("p", eventkey.MetadataKey, "k", eventkey.MetadataAttempt, "2", retries, "1",
		"topic_poisoned", "orders", "handler_poisoned", "charge", "reason_poisoned", "r",
		"_dead_origin", "orders 1-0", "_dead_group", "billing", "_dead_at", "10:00")
	letter := "!" + identity.AttemptOf(parent.Metadata).DeadLetter
	handled := handling("k")
	handled.Metadata = parent.Metadata
	child := identity.Child(handled, "out", "", identity.ByItself)
	for _, tt := range []struct {
		name string
		edit func(*message.Message)
		key  string
		id   string
	}{
		{"copy", func(*message.Message) {}, child, identity.IdempotentID(child, identity.Attempt{}, identity.Origin{})},
		{"copy with a key of its own", func(m *message.Message) { m.Metadata.Set(eventkey.MetadataKey, "own") }, "own", "own"},
		{"next attempt", eventkey.NextAttempt, "k", "~3.1" + letter + "@orders@charge:k"},
		{"requeued", func(m *message.Message) { m.Metadata.Set(retries, "2") }, "k", "~2.2" + letter + "@orders@charge:k"},
		{"poisoned by another handler", func(m *message.Message) { m.Metadata.Set("handler_poisoned", "ship") }, "k", "~2.1" + letter + "@orders@ship:k"},
		{"a copy that the application has cleaned of dead letters", func(m *message.Message) {
			delete(m.Metadata, "_dead_origin")
			delete(m.Metadata, retries)
		}, child, "~2.0:" + child},
		{"new message with an attempt", func(m *message.Message) {
			m.Metadata = message.Metadata{eventkey.MetadataKey: "own", eventkey.MetadataAttempt: "1"}
		}, "own", "~1.0:own"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			msg := parent.Copy()
			tt.edit(msg)
			r, err := identity.Resolve(eventkey.WithHandled(context.Background(), handled), "out", msg, nil, nil)
			if err != nil || r.Key != tt.key || r.IdempotentID != tt.id {
				t.Fatalf("got %+v, %v, want %q %q", r, err, tt.key, tt.id)
			}
			if got := identity.IdempotentID(r.Key, r.Attempt, r.Origin); got != r.IdempotentID {
				t.Errorf("attempt and origin give %q, the ID is %q", got, r.IdempotentID)
			}
		})
	}

	// Another dead letter that a handler has read, and copies back.
	other := parent.Copy()
	other.Metadata.Set("_dead_origin", "orders 2-0")
	r, err := identity.Resolve(eventkey.WithHandled(context.Background(), handled), "orders", other, nil, nil)
	if err != nil || r.Key != "k" || r.Attempt != identity.AttemptOf(other.Metadata) || r.Attempt == identity.AttemptOf(handled.Metadata) {
		t.Errorf("another dead letter: %+v, %v", r, err)
	}

	// The first poisoning: the handled message had no such metadata.
	fresh := newMessage("p", eventkey.MetadataKey, "k")
	ctx := eventkey.WithHandled(context.Background(), handling("k"))
	fresh.Metadata.Set("reason_poisoned", "r")
	fresh.Metadata.Set("topic_poisoned", "orders")
	fresh.Metadata.Set("handler_poisoned", "charge")
	if r, err := identity.Resolve(ctx, "poison", fresh, nil, constant("p")); err != nil || r.Key != "k" || r.IdempotentID != "~0.0@orders@charge:k" {
		t.Errorf("poisoned: %+v, %v", r, err)
	}
}

// A handler of dead letters sends one back to where it comes from: it is the event going
// on. What any other handler makes of a replayed one is another event.
func TestDeadLetterSentBackByAHandler(t *testing.T) {
	letter := newMessage("p", eventkey.MetadataKey, "k", "_dead_origin", "my orders 1-0", "_dead_group", "billing", "_dead_at", "10:00")
	attempt := identity.AttemptOf(letter.Metadata)
	for _, tt := range []struct {
		name              string
		topic, id, target string
		goesOn            bool
	}{
		{"to its stream", "{my orders}.dead", "~dead", "my orders", true},
		{"to another topic", "{my orders}.dead", "~dead", "mail", false},
		{"after a replay, from its stream to another", "my orders", "k", "mail", false},
		{"after a replay, from its stream to itself", "my orders", "k", "my orders", false},
		{"after a replay, from another topic", "mail", "k", "my orders", false},
		{"after a replay, from another topic, by a caller of WithHandled", "mail", "", "my orders", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			handled := eventkey.Handled{Namespace: "billing", Topic: tt.topic, Handler: "send-back", Key: "k", ID: tt.id, Metadata: letter.Metadata}
			want, wantAttempt := "k", attempt
			if !tt.goesOn {
				want, wantAttempt = identity.Child(handled, tt.target, "", identity.ByItself), identity.Attempt{}
			}
			r, err := identity.Resolve(eventkey.WithHandled(context.Background(), handled), tt.target, letter.Copy(), nil, nil)
			if err != nil || r.Key != want || r.Attempt != wantAttempt {
				t.Errorf("resolved %+v, %v, want %q and %+v", r, err, want, wantAttempt)
			}
			returned := letter.Copy()
			returned.Metadata.Set("tenant", "t")
			goesOn := identity.StripInherited(handled, tt.target, returned.Metadata)
			if left := len(returned.Metadata); goesOn != tt.goesOn || goesOn && left != 5 || !goesOn && left != 1 {
				t.Errorf("returned: goes on %v, %v", goesOn, returned.Metadata)
			}
		})
	}
}

// What a handler publishes gets the same key when the handler runs again.
func TestChildKeysOfAHandlerThatPublishesByItself(t *testing.T) {
	resolve := func(ctx context.Context, topic string, msg *message.Message) (string, error) {
		r, err := identity.Resolve(ctx, topic, msg, nil, nil)
		return r.Key, err
	}
	run := func(ctx context.Context) (keys []string) {
		for i, m := range []struct{ topic, name string }{{"receipts", ""}, {"receipts", "Sent"}, {"receipts", "Booked"}, {"mail", "Sent"}} {
			key, err := resolve(ctx, m.topic, newMessage(fmt.Sprint(i), "name", m.name))
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
		return keys
	}
	first := run(eventkey.WithHandled(context.Background(), handling("k")))
	again := run(eventkey.WithHandled(context.Background(), handling("k")))
	other := run(eventkey.WithHandled(context.Background(), handling("k2")))
	seen := make(map[string]bool)
	for i, key := range first {
		if key != again[i] || key == other[i] || seen[key] {
			t.Errorf("keys %q, again %q, for another event %q", first, again, other)
		}
		seen[key] = true
	}

	ctx := eventkey.WithHandled(context.Background(), handling("k"))
	msg := newMessage("p")
	key, err := resolve(ctx, "out", msg)
	if err != nil {
		t.Fatal(err)
	}
	for name, retry := range map[string]*message.Message{"the same message": msg, "a decorator's copy": msg.Copy()} {
		if got, err := resolve(ctx, "out", retry); err != nil || got != key {
			t.Errorf("%s again: %q, %v, want %q", name, got, err, key)
		}
	}
	another := msg.Copy()
	another.Payload = []byte("q")
	second := newMessage("p")
	second.UUID = "uuid-8"
	for name, next := range map[string]*message.Message{"a copy with another payload": another, "another message": second} {
		if got, err := resolve(ctx, "out", next); !errors.Is(err, eventkey.ErrNoKey) || !strings.Contains(err.Error(), "charge") {
			t.Errorf("%s: got %q, %v", name, got, err)
		}
	}
	msg.Payload = []byte("refilled")
	if got, err := resolve(ctx, "out", msg); !errors.Is(err, eventkey.ErrNoKey) {
		t.Errorf("one message object filled anew: got %q, %v", got, err)
	}
	unnamed := newMessage("q")
	unnamed.UUID = ""
	for range 2 {
		if got, err := resolve(ctx, "unnamed", unnamed); err != nil {
			t.Errorf("without UUID: %q, %v", got, err)
		}
	}
	if got, err := resolve(ctx, "unnamed", unnamed.Copy()); !errors.Is(err, eventkey.ErrNoKey) {
		t.Errorf("a message without UUID is only itself: %q, %v", got, err)
	}

	// With a source that has no key for it, the error names both.
	if _, err := identity.Resolve(ctx, "out", second, eventkey.Metadata("ref"), nil); !errors.Is(err, eventkey.ErrNoKey) ||
		!strings.Contains(err.Error(), "ref is missing") || !strings.Contains(err.Error(), "already published") {
		t.Errorf("got %v", err)
	}
}

func TestConcurrentPublishesOfAHandler(t *testing.T) {
	ctx := eventkey.WithHandled(context.Background(), handling("k"))
	var wg sync.WaitGroup
	var mu sync.Mutex
	keys := make(map[string]int)
	for i := range 8 {
		wg.Go(func() {
			msg := newMessage(fmt.Sprint(i))
			msg.UUID = fmt.Sprint(i)
			r, err := identity.Resolve(ctx, "out", msg, nil, nil)
			if err != nil && !errors.Is(err, eventkey.ErrNoKey) {
				t.Error(err)
			}
			mu.Lock()
			defer mu.Unlock()
			keys[r.Key]++
		})
	}
	wg.Wait()
	if len(keys) != 2 || keys[""] != 7 {
		t.Errorf("exactly one of eight may have the child key: %v", keys)
	}
}

func TestChildIsInjectiveAndBounded(t *testing.T) {
	type child struct {
		namespace, parentTopic, handler, key string
		topic, event                         string
		index                                int
	}
	keyOf := func(c child) string {
		parent := eventkey.Handled{Namespace: c.namespace, Topic: c.parentTopic, Handler: c.handler, Key: c.key}
		return identity.Child(parent, c.topic, c.event, c.index)
	}
	part := rapid.OneOf(rapid.StringMatching(`[ab:%]{0,3}`), rapid.StringN(100, 200, -1))
	draw := rapid.Custom(func(t *rapid.T) child {
		return child{part.Draw(t, "namespace"), part.Draw(t, "parent topic"), part.Draw(t, "handler"), part.Draw(t, "key"),
			part.Draw(t, "topic"), part.Draw(t, "event"), rapid.IntRange(-1, 20).Draw(t, "index")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		keyA, keyB := keyOf(a), keyOf(b)
		if (keyA == keyB) != (a == b) {
			t.Fatalf("%+v and %+v give %q and %q", a, b, keyA, keyB)
		}
		if len(keyA) > 128 || eventkey.CheckKey(keyA) != nil {
			t.Fatalf("key %q", keyA)
		}
	})
	// A child of a child stays bounded, and its idempotent ID readable.
	key := "k"
	for range 10 {
		key = identity.Child(handling(key), "orders", "Again", 0)
	}
	if id := identity.IdempotentID(key, identity.Attempt{}, identity.Origin{}); id != key {
		t.Errorf("idempotent ID %q of the key %q", id, key)
	}
}

// Keys and UUIDs stand in streams and records: a change needs a migration.
func TestGoldenChildKeys(t *testing.T) {
	if got, want := identity.Child(handling("pay:1001"), "receipts", "Sent", 0), "child:billing:orders:charge:pay%3A1001:receipts:Sent:0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := identity.Child(handling(strings.Repeat("k", 100)), "receipts", "Sent", identity.ByItself), "child:sha256:pU0sabhyzW_4tEIieoIzVC2uDj5eIkebY1ieSeQoEG0"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got, want := identity.StableUUID("pay:1001"), "d8e6db54-0d3a-5c33-b13d-3cb5a747b8ca"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
