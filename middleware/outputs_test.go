package middleware_test

import (
	"context"
	"errors"
	"maps"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// What Copy() takes along says nothing about the new message; what was raised or
// poisoned by this run does.
func TestInheritedMetadata(t *testing.T) {
	poisoned := message.Metadata{"reason_poisoned": "r", "topic_poisoned": "orders", "handler_poisoned": "charge", "subscriber_poisoned": "s"}
	with := func(m message.Metadata, more ...string) message.Metadata {
		m = maps.Clone(m)
		if m == nil {
			m = message.Metadata{}
		}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	const retries, attempt = "_watermill_requeuer_retries", eventkey.MetadataAttempt
	for name, tt := range map[string]struct {
		handled message.Metadata
		make    func(msg *message.Message) *message.Message
		want    message.Metadata // beside the child key
		sameID  bool
	}{
		"a copy": {
			make: func(msg *message.Message) *message.Message { return msg.Copy() },
			want: message.Metadata{"tenant": "t"},
		},
		"the handled message itself": {
			make: func(msg *message.Message) *message.Message { return msg },
			want: message.Metadata{"tenant": "t"},
		},
		"a key of its own": {
			make: func(msg *message.Message) *message.Message {
				c := msg.Copy()
				c.Metadata.Set(eventkey.MetadataKey, "receipt:1")
				return c
			},
			want: message.Metadata{"tenant": "t", eventkey.MetadataKey: "receipt:1"},
		},
		"a copy of a requeued one": {
			handled: with(poisoned, retries, "2", attempt, "1"),
			make:    func(msg *message.Message) *message.Message { return msg.Copy() },
			want:    message.Metadata{"tenant": "t"},
		},
		"a copy of a replayed dead letter": {
			handled: message.Metadata{"_dead_origin": "orders 1-0", "_dead_group": "billing", "_dead_at": "10:00", "_dead_reason": "rejected", "_dead_error": "", "_dead_count": "1"},
			make:    func(msg *message.Message) *message.Message { return msg.Copy() },
			want:    message.Metadata{"tenant": "t"},
		},
		"the next attempt": {
			handled: message.Metadata{retries: "2"},
			make: func(msg *message.Message) *message.Message {
				c := msg.Copy()
				eventkey.NextAttempt(c)
				return c
			},
			want:   message.Metadata{"tenant": "t", eventkey.MetadataKey: "pay:1", retries: "2", attempt: "1"},
			sameID: true,
		},
		"poisoned by the handler": {
			make: func(msg *message.Message) *message.Message {
				c := msg.Copy()
				maps.Copy(c.Metadata, poisoned)
				return c
			},
			want:   with(poisoned, "tenant", "t", eventkey.MetadataKey, "pay:1"),
			sameID: true,
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(msg *message.Message) ([]*message.Message, error) {
				return []*message.Message{tt.make(msg)}, nil
			}))
			msg := rig.NewMessage("pay:1", "{}")
			msg.Metadata.Set("tenant", "t")
			maps.Copy(msg.Metadata, tt.handled)
			before := msg.Copy()
			r.WantAcked(msg)
			got := r.WantPublished(1)[0]
			if got == msg || !msg.Equals(before) {
				t.Errorf("the consumed message was changed: %v, before %v", msg.Metadata, before.Metadata)
			}
			child := got.Metadata.Get(eventkey.MetadataChildKey)
			if child == "" {
				t.Error("no child key")
			}
			md := maps.Clone(got.Metadata)
			delete(md, eventkey.MetadataChildKey)
			if !maps.Equal(md, tt.want) {
				t.Errorf("metadata %v, want %v", md, tt.want)
			}
			if wantID := identity.StableUUID(child); tt.sameID != (got.UUID == msg.UUID) || !tt.sameID && got.UUID != wantID {
				t.Errorf("UUID %s, consumed %s, stable %s", got.UUID, msg.UUID, wantID)
			}
			// What the publisher makes of it, outside of the handled context.
			res, err := identity.Resolve(context.Background(), rig.OutTopic, got, nil, nil)
			if err != nil || !tt.sameID && res.Attempt != (identity.Attempt{}) {
				t.Errorf("resolved %+v, %v", res, err)
			}
			if own, set := tt.want[eventkey.MetadataKey]; set && res.Key != own || !set && res.Key != child {
				t.Errorf("published under %q", res.Key)
			}
		})
	}
}

// A message that the handler publishes by itself is published inside the handled
// context, and gets its child key there.
func TestChildKeyOfAMessagePublishedByTheHandler(t *testing.T) {
	store := rig.NewStore(t)
	once := rig.NewOnce(t, store)
	var keys []string
	r := rig.New(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		out := msg.Copy()
		res, err := identity.Resolve(msg.Context(), "mail", out, nil, nil)
		if err != nil {
			return nil, err
		}
		keys = append(keys, res.Key)
		if len(keys) == 1 {
			return nil, errors.New("after the publish")
		}
		return nil, nil
	}))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	want := identity.Child(eventkey.Handled{Namespace: "payments", Handler: rig.HandlerName, Topic: rig.TopicName, Key: "pay:1"}, "mail", "", identity.ByItself)
	if len(keys) != 2 || keys[0] != want || keys[1] != want {
		t.Errorf("keys %q, want %q twice", keys, want)
	}
}

func TestNilMessageReturned(t *testing.T) {
	store := rig.NewStore(t)
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{rig.NewMessage("", "a"), nil}, nil
	}))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	if r.Err == nil {
		t.Error("no error: the Router would have panicked")
	}
	rig.WantNothing(t, store, "pay:1")
}

// Settled only after the acknowledgement that follows the publish.
func TestSettle(t *testing.T) {
	fn := func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{rig.NewMessage("", "out")}, nil
	}
	t.Run("not before", func(t *testing.T) {
		store := rig.NewStore(t)
		once := rig.NewOnce(t, store)
		msg := rig.NewMessage("pay:1", "{}")
		out, err := once.Run(context.Background(), msg, rig.HandlerName, func(context.Context) ([]*message.Message, error) { return fn(msg) })
		if err != nil || len(out) != 1 {
			t.Fatal(out, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := once.Close(ctx); err != nil { // a process that stops without the ack
			t.Fatal(err)
		}
		rec, err := store.Lookup(ctx, dedupe.Key{Namespace: "payments", Handler: rig.HandlerName, Event: "pay:1"})
		if err != nil || rec.Outputs != 1 {
			t.Errorf("%+v, %v: settled without an acknowledgement", rec, err)
		}
	})
	t.Run("by the end of Close", func(t *testing.T) {
		store := rig.NewStore(t)
		once := rig.NewOnce(t, store)
		r := rig.New(t, once.Handler(fn))
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := once.Close(ctx); err != nil {
			t.Fatal(err)
		}
		if rec := rig.WantDone(t, store, "pay:1"); rec.Outputs != 0 {
			t.Errorf("%d outputs left", rec.Outputs)
		}
		r.WantNacked(rig.NewMessage("pay:2", "{}"))
	})
	t.Run("not when the publish failed", func(t *testing.T) {
		store := rig.NewStore(t)
		once := rig.NewOnce(t, store)
		r := rig.New(t, once.Handler(fn))
		r.Out.Fail = 1
		r.WantNacked(rig.NewMessage("pay:1", "{}"))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = once.Close(ctx)
		if rec := rig.WantDone(t, store, "pay:1"); rec.Outputs != 1 {
			t.Errorf("%d outputs left, want the one that was not published", rec.Outputs)
		}
	})
	t.Run("not under InstantAck", func(t *testing.T) {
		store := rig.NewStore(t)
		once := rig.NewOnce(t, store)
		r := rig.New(t, once.Handler(fn), instantAck)
		r.Out.Fail = 1
		r.WantAcked(rig.NewMessage("pay:1", "{}"))
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = once.Close(ctx)
		if rec := rig.WantDone(t, store, "pay:1"); rec.Outputs != 1 {
			t.Errorf("%d outputs left: the acknowledgement came before the publish", rec.Outputs)
		}
	})
}

// A handler that returned messages, and returns none in the next release: they must
// not be dropped in silence.
func TestOutputsOfAConsumer(t *testing.T) {
	store := rig.NewStore(t)
	first := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		return []*message.Message{rig.NewMessage("", "out")}, nil
	}))
	first.Out.Fail = 1
	first.WantNacked(rig.NewMessage("pay:1", "{}"))
	consume := rig.NewOnce(t, store).Consumer(func(*message.Message) error { return nil })
	second := rig.New(t, func(msg *message.Message) ([]*message.Message, error) { return nil, consume(msg) })
	second.WantNacked(rig.NewMessage("pay:1", "{}"))
	if !errors.Is(second.Err, middleware.ErrUnexpectedOutputs) {
		t.Errorf("error %v", second.Err)
	}
	second.WantAcked(rig.NewMessage("pay:2", "{}"))
	rig.WantDone(t, store, "pay:2")
}

// garbled is a store whose record can't be read any more.
type garbled struct{ dedupe.Store }

func (s garbled) Claim(context.Context, dedupe.Key, dedupe.ClaimOptions) (dedupe.Claim, error) {
	return garbledClaim{}, nil
}

type garbledClaim struct{ dedupe.Claim }

func (garbledClaim) State() dedupe.State    { return dedupe.StateDone }
func (garbledClaim) Info() dedupe.ClaimInfo { return dedupe.ClaimInfo{} }
func (garbledClaim) Outputs() [][]byte      { return [][]byte{{9, 9}} }

func TestCorruptRecord(t *testing.T) {
	for name, store := range map[string]dedupe.Store{
		"outputs": garbled{rig.NewStore(t)},
		"record":  corruptStore{rig.NewStore(t)},
	} {
		poison, runs := &rig.Published{}, 0
		r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }))
		r.WantNacked(rig.NewMessage("pay:1", "{}"))
		if !errors.Is(r.Err, dedupe.ErrCorrupt) || runs != 0 || len(poison.Messages()) != 0 {
			t.Errorf("%s: error %v, %d runs", name, r.Err, runs)
		}
	}
}

type corruptStore struct{ dedupe.Store }

func (corruptStore) Claim(context.Context, dedupe.Key, dedupe.ClaimOptions) (dedupe.Claim, error) {
	return nil, dedupe.ErrCorrupt
}
