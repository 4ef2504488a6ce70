package middleware_test

import (
	"bytes"
	"errors"
	"maps"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// changes are what a handler does to the message that it was given, to return it.
var changes = map[string]func(*message.Message){
	"payload":             func(m *message.Message) { m.Payload = []byte("receipt") },
	"payload in place":    func(m *message.Message) { copy(m.Payload, "!!") },
	"key":                 func(m *message.Message) { m.Metadata.Set(eventkey.MetadataKey, "receipt:1") },
	"key deleted":         func(m *message.Message) { delete(m.Metadata, eventkey.MetadataKey) },
	"attempt":             eventkey.NextAttempt,
	"metadata replaced":   func(m *message.Message) { m.Metadata = message.Metadata{eventkey.MetadataKey: "receipt:1"} },
	"metadata taken away": func(m *message.Message) { m.Metadata = nil },
	"UUID":                func(m *message.Message) { m.UUID = "other" },
}

// delivered is another delivery of an event; Copy() shares the payload.
func delivered(event *message.Message) *message.Message {
	msg := event.Copy()
	msg.Payload = bytes.Clone(event.Payload)
	return msg
}

// wantPublished checks what was published, each message once: until its claim is settled
// a duplicate of the event has it published again.
func wantPublished(t *testing.T, r *rig.Rig, n int) []*message.Message {
	t.Helper()
	var list []*message.Message
	known := map[string]bool{}
	for _, m := range r.Out.Messages() {
		if !known[m.UUID] {
			known[m.UUID] = true
			list = append(list, m)
		}
	}
	if len(list) != n {
		t.Fatalf("%d messages published, want %d", len(list), n)
	}
	return list
}

// asItCame checks that a message is the event again.
func asItCame(t *testing.T, msg, event *message.Message) {
	t.Helper()
	if msg.UUID != event.UUID || string(msg.Payload) != string(event.Payload) || !maps.Equal(msg.Metadata, event.Metadata) {
		t.Errorf("message %s, %q, %v, want %s, %q, %v", msg.UUID, msg.Payload, msg.Metadata, event.UUID, event.Payload, event.Metadata)
	}
}

// A handler returns its own message, changed in place, and the publish fails. Subscribers
// such as redisstream's deliver a copy of the message again: it is the event that came.
func TestHandlerChangesItsMessage(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			store, seen, runs := rig.NewStore(t), &rig.Log{}, 0
			var changed message.Metadata
			r := rig.New(t, rig.NewOnce(t, store, seen.Into).Handler(func(msg *message.Message) ([]*message.Message, error) {
				runs++
				change(msg)
				msg.Metadata = maps.Clone(msg.Metadata)
				if msg.Metadata == nil {
					msg.Metadata = make(message.Metadata)
				}
				msg.Metadata.Set("kind", "receipt")
				changed = maps.Clone(msg.Metadata)
				return []*message.Message{msg}, nil
			}))
			r.Out.Fail = 1
			msg := rig.NewMessage("pay:1", "{}")
			event, held, payload := delivered(msg), msg.Metadata, msg.Payload
			r.WantNacked(msg)
			asItCame(t, msg, event)
			if held.Set("seen", "by who holds it"); msg.Metadata.Get("seen") == "" {
				t.Error("the message has another map than before")
			}
			delete(held, "seen")
			if string(payload) != "{}" {
				t.Errorf("who holds the payload has %q", payload)
			}
			r.WantAcked(msg.Copy())
			r.WantAcked(event)
			if out := wantPublished(t, r, 1)[0]; runs != 1 || out.Metadata.Get("kind") != "receipt" ||
				changed.Get(eventkey.MetadataKey) == "receipt:1" && out.Metadata.Get(eventkey.MetadataKey) != "receipt:1" {
				t.Errorf("%d runs, published %v, want what the handler returned: %v", runs, out.Metadata, changed)
			}
			if seen.Count("conflict") != 0 {
				t.Errorf("hooks got %v", seen.Events)
			}
			rig.WantDone(t, store, "pay:1")
		})
	}
}

// The first try fails after it has changed the message, by an error or a panic: Retry's
// next one handles the event that came.
func TestFailedTryHasChangedTheMessage(t *testing.T) {
	for name, change := range changes {
		for how, fail := range map[string]func() error{
			"error": func() error { return errors.New("no funds") },
			"panic": func() error { panic("no funds") },
		} {
			t.Run(name+", "+how, func(t *testing.T) {
				store, runs := rig.NewStore(t), 0
				event := rig.NewMessage("pay:1", "{}")
				r := rig.New(t, rig.NewOnce(t, store).Handler(func(msg *message.Message) ([]*message.Message, error) {
					asItCame(t, msg, event)
					change(msg)
					if runs++; runs == 1 {
						return nil, fail()
					}
					return []*message.Message{msg}, nil
				}), retry, recoverer)
				r.WantAcked(delivered(event))
				r.WantAcked(delivered(event))
				wantPublished(t, r, 1)
				rig.WantDone(t, store, "pay:1")
				if runs != 2 {
					t.Errorf("%d runs, want 2", runs)
				}
			})
		}
	}
}

// What a PoisonQueue around moves away is the event, not what the handler made of it.
func TestPoisonedAsItCame(t *testing.T) {
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			poison := &rig.Published{}
			r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(msg *message.Message) ([]*message.Message, error) {
				change(msg)
				return nil, errors.New("no funds")
			}), poisonQueue(poison))
			event := rig.NewMessage("pay:1", "{}")
			r.WantAcked(delivered(event))
			all := poison.Messages()
			if len(all) != 1 {
				t.Fatalf("%d poisoned", len(all))
			}
			asItCame(t, all[0], event)
		})
	}
}

// A message without metadata stays one.
func TestMessageWithoutMetadata(t *testing.T) {
	once := rig.NewOnce(t, rig.NewStore(t), func(c *middleware.Config) { c.Key = eventkey.MessageUUID() })
	r := rig.New(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		msg.Metadata = message.Metadata{eventkey.MetadataKey: "receipt:1"}
		return nil, errors.New("no funds")
	}))
	msg := rig.NewMessage("", "{}")
	msg.Metadata = nil
	r.WantNacked(msg)
	if msg.Metadata != nil {
		t.Errorf("metadata %v", msg.Metadata)
	}
}

// A DelayOnError inside of ours talks to the subscriber by the message's metadata.
func TestDelayAskedForInsideStays(t *testing.T) {
	const until, length = "_watermill_delayed_until", "_watermill_delayed_for"
	for _, fails := range []bool{true, false} {
		r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(msg *message.Message) ([]*message.Message, error) {
			msg.Metadata.Set(until, "2030-01-01T00:00:00Z")
			msg.Metadata.Set(length, "1m0s")
			if fails {
				return nil, errors.New("no funds")
			}
			return nil, nil
		}))
		msg := rig.NewMessage("pay:1", "{}")
		if acked := r.Deliver(msg); acked == fails {
			t.Errorf("fails %v, acknowledged %v", fails, acked)
		}
		if kept := msg.Metadata[until] != "" && msg.Metadata[length] == "1m0s"; kept != fails {
			t.Errorf("fails %v: metadata %v", fails, msg.Metadata)
		}
	}
}

// What a handler has nacked is the subscriber's: it may be reading it (-race finds it).
func TestNackedMessageIsLeftAlone(t *testing.T) {
	r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(msg *message.Message) ([]*message.Message, error) {
		msg.Metadata.Set("tried", "yes")
		msg.Payload = []byte("changed")
		msg.Nack()
		return nil, nil
	}))
	msg, copied := rig.NewMessage("pay:1", "{}"), make(chan *message.Message)
	msg.Metadata.Set("subscriber_poisoned", "s") // comes back from a poison queue
	go func() {
		<-msg.Nacked()
		copied <- msg.Copy()
	}()
	r.WantNacked(msg)
	<-copied
}

// A handler that takes Watermill's marks off its message, to send it on, has not poisoned
// it.
func TestHandlerTakesPoisonMarksOff(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(msg *message.Message) ([]*message.Message, error) {
		runs++
		for _, mark := range poisonMarks {
			delete(msg.Metadata, mark)
		}
		return []*message.Message{msg}, nil
	}))
	for range 2 {
		r.WantAcked(poisoned("pay:1", rig.TopicName, 0))
	}
	wantPublished(t, r, 1)
	rig.WantDone(t, store, "pay:1")
	if runs != 1 {
		t.Errorf("%d runs", runs)
	}
}
