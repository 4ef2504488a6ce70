package identity_test

import (
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// The IDs are compared by servers for the length of a window, across versions.
func TestGoldenIdempotentIDs(t *testing.T) {
	poisoned := identity.Origin{Poisoned: true, Topic: "orders", Handler: "charge"}
	long := strings.Repeat("k", 129)
	for _, tt := range []struct {
		key  string
		a    identity.Attempt
		o    identity.Origin
		want string
	}{
		{"pay:1001", identity.Attempt{}, identity.Origin{}, "pay:1001"},
		{"pay:1001", identity.Attempt{Raised: 1}, identity.Origin{}, "~1.0:pay:1001"},
		{"pay:1001", identity.Attempt{Requeued: 2}, poisoned, "~0.2@orders@charge:pay:1001"},
		{"k", identity.Attempt{}, identity.Origin{Poisoned: true, Topic: "a@b:c%"}, "~0.0@a%40b%3Ac%25@:k"},
		{"~1.0:k", identity.Attempt{}, identity.Origin{}, "~0.0:~1.0:k"},
		{"k", identity.Attempt{Raised: 1, DeadLetter: "d:1"}, poisoned, "~1.0!d%3A1@orders@charge:k"},
		{long[:128], identity.Attempt{}, identity.Origin{}, long[:128]},
		{long, identity.Attempt{}, identity.Origin{}, "~sha256:kJQDT7LQzi5AfJsmDygGqy77NS4gByL9YpbZzxz35vU"},
		{long[:128], identity.Attempt{Raised: 1}, identity.Origin{}, "~sha256:jDVu0-E-iG0oP8lttl_tnzV4b01UVLgKhUFEtNYJz-o"},
	} {
		if got := identity.IdempotentID(tt.key, tt.a, tt.o); got != tt.want {
			t.Errorf("IdempotentID(%q, %+v, %+v) = %q, want %q", tt.key, tt.a, tt.o, got, tt.want)
		}
	}
	letter := newMessage("", "_dead_origin", "orders 1700000000000-0", "_dead_group", "billing", "_dead_at", "2026-11-20T10:00:00Z")
	want := "~0.0!zp4urfTWDIdnW-NgWZMgEqq_7xMAci1_DyfhPJDHyTo:pay:1001"
	if got := identity.IdempotentID("pay:1001", identity.AttemptOf(letter.Metadata), identity.OriginOf(letter.Metadata)); got != want {
		t.Errorf("a dead letter copied back: %q, want %q", got, want)
	}
}

func TestIdempotentIDIsInjectiveAndBounded(t *testing.T) {
	type in struct {
		key string
		a   identity.Attempt
		o   identity.Origin
	}
	text := rapid.OneOf(rapid.StringMatching(`[a~@:.%01]{0,6}`), rapid.StringN(100, 140, -1))
	draw := rapid.Custom(func(t *rapid.T) in {
		v := in{key: "k" + text.Draw(t, "key")}
		if rapid.Bool().Draw(t, "hostile key") {
			v.key = rapid.StringMatching(`~(sha256:|[01]\.[01])(@a@a)?:?[a~]{0,2}`).Draw(t, "key")
		}
		v.a = identity.Attempt{Raised: rapid.Uint64Range(0, 11).Draw(t, "raised"), Requeued: rapid.Uint64Range(0, 11).Draw(t, "requeued")}
		if rapid.Bool().Draw(t, "dead") {
			v.a.DeadLetter = rapid.StringMatching(`[a~@:!%01]{0,3}`).Draw(t, "dead letter")
		}
		if v.o.Poisoned = rapid.Bool().Draw(t, "poisoned"); v.o.Poisoned {
			v.o.Topic, v.o.Handler = text.Draw(t, "topic"), text.Draw(t, "handler")
		}
		return v
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := draw.Draw(t, "a"), draw.Draw(t, "b")
		idA, idB := identity.IdempotentID(a.key, a.a, a.o), identity.IdempotentID(b.key, b.a, b.o)
		if (idA == idB) != (a == b) {
			t.Fatalf("%+v and %+v give %q and %q", a, b, idA, idB)
		}
		if idA == "" || len(idA) > 128 {
			t.Fatalf("ID %q", idA)
		}
	})
}

// Keys and origins that look like other forms of an ID, all combinations.
func TestIdempotentIDsOfHostileKeys(t *testing.T) {
	type in struct {
		key string
		a   identity.Attempt
		o   identity.Origin
	}
	keys := append(combinations([]string{"k", "~", "0.0", "1.0", ":", "@", "@k", "sha256:"}, 1, 3),
		combinations([]string{"k", "~", "0.0", ":", "@", "!"}, 4, 4)...)
	parts := []string{"", "k", "@", ":", "%40", "k@k", "k:k"}
	origins := []identity.Origin{{}}
	for _, topic := range parts {
		for _, handler := range parts {
			origins = append(origins, identity.Origin{Poisoned: true, Topic: topic, Handler: handler})
		}
	}
	owner := make(map[string]in)
	for _, key := range keys {
		for _, o := range origins {
			for _, a := range []identity.Attempt{{}, {Raised: 1}, {Requeued: 1}, {Raised: 1, Requeued: 1}, {DeadLetter: "k"}, {DeadLetter: "@k:"}} {
				v := in{key, a, o}
				id := identity.IdempotentID(key, a, o)
				if other, taken := owner[id]; taken && other != v {
					t.Fatalf("%+v and %+v share the ID %q", v, other, id)
				}
				owner[id] = v
			}
		}
	}
}

// Each deliberate publish of one event has an idempotent ID that none before had,
// whoever makes it.
func TestEveryAttemptHasItsOwnID(t *testing.T) {
	requeue := func(m *message.Message) {
		n := map[string]string{"": "1", "1": "2", "2": "3"}[m.Metadata.Get(retries)]
		m.Metadata.Set(retries, n)
	}
	poison := func(topic, handler string) func(*message.Message) {
		return func(m *message.Message) {
			m.Metadata.Set("reason_poisoned", "r")
			m.Metadata.Set("topic_poisoned", topic)
			m.Metadata.Set("handler_poisoned", handler)
		}
	}
	dead := func(group, origin, at string) func(*message.Message) {
		return func(m *message.Message) {
			m.Metadata.Set("_dead_group", group)
			m.Metadata.Set("_dead_origin", origin)
			m.Metadata.Set("_dead_at", at)
		}
	}
	for name, steps := range map[string][]func(*message.Message){
		"a dead letter again and again":    {dead("billing", "orders 1-0", "10:00"), dead("billing", "orders 2-0", "10:00"), dead("billing", "orders 3-0", "10:00")},
		"a dead letter of two groups":      {dead("billing", "orders 1-0", "10:00"), dead("shipping", "orders 1-0", "10:00")},
		"a group made again":               {dead("billing", "orders 1-0", "10:00"), dead("billing", "orders 1-0", "10:05")},
		"a dead letter among others":       {requeue, dead("billing", "orders 1-0", "10:00"), requeue, eventkey.NextAttempt, poison("orders", "charge")},
		"requeued again and again":         {poison("orders", "charge"), requeue, requeue, requeue},
		"replayed, then requeued":          {eventkey.NextAttempt, requeue, eventkey.NextAttempt},
		"requeued, then replayed":          {requeue, eventkey.NextAttempt, requeue},
		"poisoned by one, then by another": {poison("orders", "charge"), poison("orders", "ship"), poison("mail", "ship")},
	} {
		msg := message.NewMessage("u", nil)
		msg.Metadata = nil
		seen := map[string]int{identity.IdempotentID("k", identity.AttemptOf(msg.Metadata), identity.OriginOf(msg.Metadata)): 0}
		msg.Metadata = message.Metadata{}
		for i, step := range steps {
			step(msg)
			id := identity.IdempotentID("k", identity.AttemptOf(msg.Metadata), identity.OriginOf(msg.Metadata))
			if before, taken := seen[id]; taken {
				t.Errorf("%s: step %d has the ID %q of step %d", name, i+1, id, before)
			}
			seen[id] = i + 1
		}
	}
	// The two counters are independent: one requeue is not one replay.
	replayed, requeued := message.NewMessage("u", nil), message.NewMessage("u", nil)
	eventkey.NextAttempt(replayed)
	requeue(requeued)
	if a, b := identity.IdempotentID("k", identity.AttemptOf(replayed.Metadata), identity.Origin{}),
		identity.IdempotentID("k", identity.AttemptOf(requeued.Metadata), identity.Origin{}); a == b {
		t.Errorf("a replay passes for a requeue: %q", a)
	}
}

func TestAttemptOf(t *testing.T) {
	for value, want := range map[string]uint64{"": 0, "0": 0, "3": 3, "03": 3, "-1": 0, "x": 0, "1.5": 0, "99999999999999999999": 0, "18446744073709551615": math.MaxUint64} {
		msg := newMessage("", eventkey.MetadataAttempt, value)
		if got := identity.AttemptOf(msg.Metadata); got != (identity.Attempt{Raised: want}) {
			t.Errorf("%q: %+v", value, got)
		}
	}
	msg := message.NewMessage("u", nil)
	msg.Metadata = nil
	eventkey.NextAttempt(msg)
	eventkey.NextAttempt(msg)
	if got := identity.AttemptOf(msg.Metadata).Raised; got != 2 {
		t.Errorf("raised twice: %d", got)
	}
}

// Each mark that names a dead letter makes another attempt, and a copy keeps none.
func TestMarksOfADeadLetterMakeAnAttempt(t *testing.T) {
	marks := []string{wmeta.DeadOrigin, wmeta.DeadGroup, wmeta.DeadAt}
	attempts := make(map[identity.Attempt]string)
	for _, changed := range append(marks, "none") {
		msg := message.NewMessage("u", nil)
		for _, name := range marks {
			msg.Metadata.Set(name, "orders 1-0")
		}
		if changed != "none" {
			msg.Metadata.Set(changed, "orders 2-0")
		}
		a := identity.AttemptOf(msg.Metadata)
		if other, taken := attempts[a]; taken || a.DeadLetter == "" {
			t.Errorf("changed %s: attempt %+v, as for %s", changed, a, other)
		}
		attempts[a] = changed
	}
	all := message.NewMessage("u", nil)
	for _, name := range []string{wmeta.DeadReason, wmeta.DeadError, wmeta.DeadCount, wmeta.DeadGroup, wmeta.DeadOrigin, wmeta.DeadAt} {
		all.Metadata.Set(name, "x")
	}
	handled := eventkey.Handled{Metadata: maps.Clone(all.Metadata)}
	if identity.StripInherited(handled, "mail", all.Metadata); len(all.Metadata) != 0 {
		t.Errorf("left on a copy: %v", all.Metadata)
	}
}

// combinations are all different concatenations of shortest to longest fragments.
func combinations(fragments []string, shortest, longest int) []string {
	seen := map[string]bool{}
	var all []string
	var add func(prefix string, n int)
	add = func(prefix string, n int) {
		if n >= shortest && !seen[prefix] {
			seen[prefix] = true
			all = append(all, prefix)
		}
		if n < longest {
			for _, f := range fragments {
				add(prefix+f, n+1)
			}
		}
	}
	add("", 0)
	return all
}
