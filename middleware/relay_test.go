package middleware_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

var poisonMarks = []string{"reason_poisoned", "topic_poisoned", "handler_poisoned", "subscriber_poisoned"}

// poisoned is an event that a PoisonQueue has moved away from a topic, after so many
// rounds through Watermill's Requeuer.
func poisoned(key, topic string, rounds int) *message.Message {
	msg := rig.NewMessage(key, "{}")
	for i, mark := range poisonMarks {
		msg.Metadata.Set(mark, []string{"no funds", topic, "charge", "sub"}[i])
	}
	if rounds > 0 {
		msg.Metadata.Set("_watermill_requeuer_retries", fmt.Sprint(rounds))
	}
	return msg
}

// onPoisonTopic says that the rig's topic is one.
func onPoisonTopic(c *middleware.Config) { c.PoisonTopics = []string{rig.TopicName} }

// A handler on a poison topic, such as the Requeuer's or one that alerts, sees each
// poisoning of an event, and each of them once. What it returns are messages of their own.
func TestRelaySeesEachPoisoning(t *testing.T) {
	store, seen, runs := rig.NewStore(t), &rig.Log{}, 0
	r := rig.New(t, rig.NewOnce(t, store, seen.Into, onPoisonTopic).Handler(func(msg *message.Message) ([]*message.Message, error) {
		runs++
		alert := msg.Copy()
		alert.Payload = []byte("alert")
		return []*message.Message{alert}, nil
	}))
	for round := range 3 {
		for range 2 {
			r.WantAcked(poisoned("pay:1", "elsewhere", round))
		}
	}
	var keys []string
	for _, out := range wantPublished(t, r, 3) {
		if key, ok := out.Metadata[eventkey.MetadataKey]; ok {
			t.Errorf("an alert has the event's key %q", key)
		}
		keys = append(keys, out.Metadata.Get(eventkey.MetadataChildKey))
	}
	if slices.Sort(keys); runs != 3 || seen.Count("skipped") != 3 || len(slices.Compact(keys)) != 3 {
		t.Errorf("%d runs, want 3; %d skipped; keys of the alerts %v", runs, seen.Count("skipped"), keys)
	}
	if ev := seen.Get("handled"); ev.Key != "~0.2@elsewhere@charge:pay:1" {
		t.Errorf("recorded under %q", ev.Key)
	}
}

// Back on its own topic it is the event that it was.
func TestRequeuedEventIsTheSameEvent(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs == 1 {
			return nil, errors.New("no funds")
		}
		return nil, nil
	}))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	for round := range 3 {
		r.WantAcked(poisoned("pay:1", rig.TopicName, round))
	}
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if rig.WantDone(t, store, "pay:1"); runs != 2 {
		t.Errorf("%d runs, want 2", runs)
	}
}

// On any other topic the marks are old: a copy of a requeued event is that event.
func TestOldMarksOfAPoisonQueue(t *testing.T) {
	store, runs := rig.NewStore(t), 0
	r := rig.New(t, rig.NewOnce(t, store).Handler(func(*message.Message) ([]*message.Message, error) { runs++; return nil, nil }))
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	for round := range 2 {
		r.WantAcked(poisoned("pay:1", "elsewhere", round))
	}
	if rig.WantDone(t, store, "pay:1"); runs != 1 {
		t.Errorf("%d runs", runs)
	}
}
