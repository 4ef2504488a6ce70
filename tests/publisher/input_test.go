package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// What can't be sent is refused before anything is, with an error that says why.
func TestBadInput(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client := s.Client()
	topic := testserver.Topic(t)
	p := newPublisher(t, client, func(c *publisher.Config) { c.MaxPayload = 1 << 20 })
	keyed := func(key string) *message.Message {
		msg := payment(1)
		msg.Metadata.Set(eventkey.MetadataKey, key)
		return msg
	}
	reserved := payment(1)
	reserved.Metadata.Set(redisstream.UUIDHeaderKey, "x")
	for name, tt := range map[string]struct {
		topic string
		msg   *message.Message
		want  string
	}{
		"empty topic":         {"", payment(1), "topic is empty"},
		"reserved topic":      {"{orders}:idem:layout", payment(1), "keeps for itself"},
		"nil message":         {topic, nil, "is nil"},
		"key of 2 KiB":        {topic, keyed(strings.Repeat("x", 2048)), "1024"},
		"key not UTF-8":       {topic, keyed("\xff\xfe"), "UTF-8"},
		"empty key":           {topic, keyed(""), "no idempotency key"},
		"not JSON":            {topic, with(1, `{`), "payload"},
		"too large":           {topic, with(1, `{"order_id":"1","payment_id":"p","x":%q}`, strings.Repeat("x", 1<<20)), "limit is 1048576"},
		"reserved metadata":   {topic, reserved, "reserved"},
		"object for a scalar": {topic, with(1, `{"order_id":{},"payment_id":"p"}`), "order_id"},
	} {
		t.Run(name, func(t *testing.T) {
			good := payment(2)
			receipts, err := p.Send(t.Context(), tt.topic, good, tt.msg)
			if err == nil || !strings.Contains(err.Error(), tt.want) || !publisher.IsPermanent(err) {
				t.Errorf("error %v, want %q in it", err, tt.want)
			}
			if !errors.Is(err, publisher.ErrNoKey) && !errors.Is(err, publisher.ErrInvalidMessage) && !errors.Is(err, publisher.ErrTooLarge) {
				t.Errorf("%v matches no error that callers branch on", err)
			}
			if len(receipts) != 2 || receipts[1].Err == nil || receipts[0].Err == nil || receipts[0].MessageUUID != good.UUID {
				t.Errorf("receipts %+v", receipts)
			}
			wantEntries(t, client, topic, 0)
		})
	}
	if err := p.Publish(topic); err != nil {
		t.Errorf("no messages: %v", err)
	}
	if receipts, err := p.Send(t.Context(), topic); err != nil || len(receipts) != 0 {
		t.Errorf("no messages: %v, %v", receipts, err)
	}
	if n, err := client.Exists(t.Context(), "{"+topic+"}:idem:layout").Result(); err != nil || n != 0 {
		t.Errorf("a layout record was made for nothing: %v", err)
	}
}

// A context that has ended already sends nothing.
func TestEndedContext(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	p := newPublisher(t, s.Client())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Send(ctx, topic, payment(1)); !errors.Is(err, publisher.ErrNotSent) || !errors.Is(err, context.Canceled) {
		t.Errorf("Send: %v", err)
	}
	ended, alive := payment(1), payment(2)
	ended.SetContext(ctx)
	if err := p.Publish(topic, alive, ended); !errors.Is(err, publisher.ErrNotSent) {
		t.Errorf("one of two contexts has ended: %v", err)
	}
	wantEntries(t, s.Client(), topic, 0)
	// What Publish leaves on a message's context changes nothing else about it.
	msg := payment(3)
	type key struct{}
	live, stop := context.WithTimeout(context.WithValue(t.Context(), key{}, "value"), time.Minute)
	defer stop()
	msg.SetContext(live)
	mustPublish(t, p, topic, msg)
	if _, ok := msg.Context().Deadline(); !ok || msg.Context().Value(key{}) != "value" || msg.Context().Err() != nil {
		t.Error("the message lost its context")
	}
	derived := message.NewMessage(uuid.NewString(), nil)
	derived.SetContext(msg.Context())
	if _, ok := publisher.ReceiptOf(derived); ok {
		t.Error("a message has the receipt of the one that it was derived from")
	}
}

// A payload of 16 MiB passes; what is stored is what was sent.
func TestLargePayload(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		// 15 MB take a busy machine longer than the usual time-outs.
		client, topic := s.Client(testserver.Patient), testserver.Topic(t)
		p := newPublisher(t, client, mode(m), retryFor(5*time.Minute))
		body := fmt.Sprintf(`{"order_id":"1","payment_id":"p","x":%q}`, strings.Repeat("x", 15<<20))
		mustPublish(t, p, topic, with(1, "%s", body))
		msgs := []*message.Message{payment(2), with(1, "%s", body), payment(3), with(1, "%s", body)}
		receipts := mustPublish(t, p, topic, msgs...)
		for i, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate, publisher.VerdictAdded, publisher.VerdictDuplicate} {
			wantVerdict(t, receipts[i], want)
		}
		if got := payloads(t, client, topic); len(got) != 3 || got[0] != body {
			t.Errorf("%d entries", len(got))
		}
	})
}

// The server may forget its scripts at any time.
func TestScriptsAreFlushed(t *testing.T) {
	s := testserver.Start(t, testserver.Redis70)
	client, topic := s.Client(), testserver.Topic(t)
	p := newPublisher(t, client)
	for n := range 5 {
		mustPublish(t, p, topic, payments(n*10, n*10+10)...)
		if err := client.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	wantEntries(t, client, topic, 50)
}

// bracketed is a marshaller of an application's own: other field names, and a field
// that differs each time.
type bracketed struct{}

func (bracketed) Marshal(_ string, msg *message.Message) (map[string]any, error) {
	return map[string]any{"id": msg.UUID, "body": []byte(msg.Payload), "at": time.Now(), "key": msg.Metadata[eventkey.MetadataKey]}, nil
}

func (bracketed) Unmarshal(values map[string]any) (*message.Message, error) {
	body, ok := values["body"].(string)
	if !ok {
		return nil, errors.New("no body")
	}
	msg := message.NewMessage(fmt.Sprint(values["id"]), []byte(body))
	msg.Metadata.Set(eventkey.MetadataKey, fmt.Sprint(values["key"]))
	return msg, nil
}

// A marshaller of the application's own, with conflicts found all the same.
func TestMarshallerOfTheApplication(t *testing.T) {
	for _, c := range everyMode() {
		if c.mode == publisher.ModeIDMPAuto {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			s := testserver.Shared(t, c.kind)
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client, mode(c.mode), func(cfg *publisher.Config) { cfg.Marshaller = bracketed{} })
			wantVerdict(t, mustPublish(t, p, topic, payment(1))[0], publisher.VerdictAdded)
			wantVerdict(t, mustPublish(t, p, topic, payment(1))[0], publisher.VerdictDuplicate)
			wantConflict(t, p.Publish(topic, with(1, `{"order_id":"1000","payment_id":"p1","amount":1}`)), "$.amount")
			// Somebody has overwritten the topic with what can't be read.
			plain := newPublisher(t, client, mode(c.mode))
			mustPublish(t, plain, topic, payment(2))
			if err := p.Publish(topic, payment(2)); c.mode == publisher.ModeIDMP && (err == nil || !strings.Contains(err.Error(), "no body")) {
				t.Errorf("an original that can't be decoded: %v", err)
			}
			wantEntries(t, client, topic, 2)
		})
	}
}

// Entries are read by watermill-redisstream, and what its publisher wrote is an
// original like any other.
func TestEntriesAreThoseOfRedisstream(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	msg := payment(1)
	msg.Metadata.Set("trace_id", "abc")
	mustPublish(t, newPublisher(t, client), topic, msg)
	list, err := client.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	got, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(list[0].Values)
	if err != nil {
		t.Fatal(err)
	}
	if got.UUID != msg.UUID || string(got.Payload) != string(msg.Payload) || got.Metadata.Get("trace_id") != "abc" ||
		got.Metadata.Get(eventkey.MetadataKey) != "pay:1000:p1" {
		t.Errorf("read %+v", got)
	}
	if msg.Metadata.Get(eventkey.MetadataKey) != "" {
		t.Error("the caller's message was written to")
	}
}
