package operators_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// interrupted is a publisher whose user presses Ctrl-C as soon as it has published.
type interrupted struct {
	*publisher.Publisher
	cancel context.CancelFunc
}

func (p interrupted) Send(ctx context.Context, topic string, msgs ...*message.Message) ([]publisher.Receipt, error) {
	defer p.cancel()
	return p.Publisher.Send(ctx, topic, msgs...)
}

// A replay is interrupted: what was published is no dead letter any more, the others are.
func TestReplayInterrupted(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		messages := subscribe(t, client, topic, "billing")
		for i := range 3 {
			publish(t, pub, topic, payment(fmt.Sprint("pay:", i)))
			reject(t, messages, "", nil)
		}
		waitLetters(t, letters, topic, 3)
		ctx, cancel := context.WithCancel(t.Context())
		result, err := letters.Replay(ctx, topic, deadletter.Replay{Publisher: interrupted{pub, cancel}})
		if !errors.Is(err, context.Canceled) || result.Replayed != 1 {
			t.Errorf("%+v, %v", result, err)
		}
		waitLetters(t, letters, topic, 2)
		receive(t, messages).Ack()
	})
}

// replies notes how many entries the largest reply to XRANGE and XREVRANGE had.
type replies struct {
	mu      sync.Mutex
	n, most int
}

func (r *replies) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *replies) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		if list, ok := cmd.(*redis.XMessageSliceCmd); ok {
			r.mu.Lock()
			r.n++
			r.most = max(r.most, len(list.Val()))
			r.mu.Unlock()
		}
		return err
	}
}

func (r *replies) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// Large letters are read a few at a time, small ones many.
func TestLettersAreReadInBatchesBySize(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	for _, c := range []struct{ entries, size, atMost, atLeast int }{{30, 600 << 10, 2, 1}, {2000, 10, 500, 200}} {
		topic := testserver.Topic(t)
		payload := strings.Repeat("x", c.size)
		pipe := s.Client().Pipeline()
		for i := range c.entries {
			pipe.XAdd(t.Context(), &redis.XAddArgs{Stream: subscriber.DeadLetterTopic(topic), Values: []string{"payload", payload, "_dead_reason", fmt.Sprint(i)}})
		}
		if _, err := pipe.Exec(t.Context()); err != nil {
			t.Fatal(err)
		}
		client := s.Client()
		seen := new(replies)
		client.AddHook(seen)
		for _, newest := range []bool{false, true} {
			list := all(t, newLetters(t, client), topic, deadletter.Filter{Newest: newest})
			for i, l := range list {
				want := i
				if newest {
					want = c.entries - 1 - i
				}
				if l.Reason != fmt.Sprint(want) {
					t.Fatalf("letter %d is %q, newest first: %v", i, l.Reason, newest)
				}
			}
			if len(list) != c.entries {
				t.Errorf("%d letters of %d", len(list), c.entries)
			}
		}
		if seen.most > c.atMost || seen.most < c.atLeast {
			t.Errorf("%d bytes each: up to %d in a batch", c.size, seen.most)
		}
	}
}

// shouting is somebody's own format.
type shouting struct{}

func (shouting) Marshal(_ string, msg *message.Message) (map[string]any, error) {
	return map[string]any{"id": msg.UUID, "body": strings.ToUpper(string(msg.Payload)), "key": msg.Metadata.Get("idempotency_key")}, nil
}

func (shouting) Unmarshal(values map[string]any) (*message.Message, error) {
	id, _ := values["id"].(string)
	body, ok := values["body"].(string)
	if !ok {
		panic("no body")
	}
	msg := message.NewMessage(id, []byte(strings.ToLower(body)))
	msg.Metadata.Set("idempotency_key", fmt.Sprint(values["key"]))
	return msg, nil
}

// Entries in a format of the service's own are read by its Unmarshaller.
func TestOwnFormat(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	pub := newPublisher(t, client, func(c *publisher.Config) { c.Marshaller = shouting{} })
	publish(t, pub, topic, payment("pay:1"))
	entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil || entries[0].Values["body"] != `{"PAYMENT":"PAY:1"}` {
		t.Fatalf("%v, %v", entries, err)
	}
	entry := []any{"_dead_origin", topic + " " + entries[0].ID, "_dead_reason", "no card", "_dead_group", "billing"}
	for name, value := range entries[0].Values {
		entry = append(entry, name, value)
	}
	for _, values := range [][]any{entry, {"_dead_reason", "no body", "x", "y"}} {
		if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: subscriber.DeadLetterTopic(topic), Values: values}).Err(); err != nil {
			t.Fatal(err)
		}
	}
	letters, err := deadletter.New(deadletter.Config{Client: client, Unmarshaller: shouting{}})
	if err != nil {
		t.Fatal(err)
	}
	list := all(t, letters, topic, deadletter.Filter{})
	if len(list) != 2 || list[0].Key != "pay:1" || list[0].Reason != "no card" || string(list[0].Payload) != `{"payment":"pay:1"}` ||
		!errors.Is(list[1].Err, deadletter.ErrUndecodable) || list[1].Reason != "no body" {
		t.Fatalf("%+v", list)
	}
	result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub})
	if err != nil || result.Replayed != 1 || result.Failed != 1 {
		t.Errorf("%+v, %v", result, err)
	}
	look, err := inspect.New(inspect.Config{Client: client, Unmarshaller: shouting{}})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := look.Duplicates(t.Context(), topic, inspect.Scan{}); err != nil || d.Total != 1 || d.Pairs[0].Key != "pay:1" || !d.Pairs[0].SameContent {
		t.Errorf("%+v, %v", d, err)
	}
}

// All faults of what is asked for come at once, and nothing is done.
func TestFaultyRequests(t *testing.T) {
	t.Parallel()
	client := testserver.Shared(t, testserver.Redis86).Client()
	letters, look := newLetters(t, client), newInspector(t, client)
	_, err := letters.Replay(t.Context(), "", deadletter.Replay{Filter: deadletter.Filter{Limit: -1}, Attempt: -1, Forget: &deadletter.Forget{}})
	for _, part := range []string{"topic is empty", "Limit -1", "Publisher is nil", "Attempt -1", "Forget.Store is nil", "Forget.Handlers is empty"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	if _, err := letters.Drop(t.Context(), "x", deadletter.Drop{Filter: deadletter.Filter{IDs: []string{"1"}}}); err == nil {
		t.Error("half an ID was taken")
	}
	_, err = look.Duplicates(t.Context(), "", inspect.Scan{MaxEntries: -1, MaxPairs: -1})
	for _, part := range []string{"topic is empty", "MaxEntries -1", "MaxPairs -1"} {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%q is not in %v", part, err)
		}
	}
	for _, w := range []inspect.Watch{{For: -1}, {Every: -1}, {Every: 1}} {
		if _, err := look.Observe(t.Context(), "x", w); err == nil {
			t.Errorf("%+v was taken", w)
		}
	}
	if _, err := deadletter.New(deadletter.Config{}); err == nil {
		t.Error("no client")
	}
	if _, err := inspect.New(inspect.Config{Client: (*redis.Client)(nil)}); err == nil {
		t.Error("no client")
	}
}

// In mode IDMPAuto the server compares contents: the marks of a replay must not be content, and
// which letter it is must be.
func TestReplayByContent(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	letters := newLetters(t, client)
	pub := newPublisher(t, client, func(c *publisher.Config) { c.Mode = publisher.ModeIDMPAuto })
	messages := subscribe(t, client, topic, "billing")
	publish(t, pub, topic, message.NewMessage("u", []byte("content")))
	for round := range 2 {
		reject(t, messages, "", nil)
		waitLetters(t, letters, topic, 1)
		for i, keep := range []bool{true, false} {
			result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, Keep: keep, By: fmt.Sprint("operator ", i)})
			if err != nil || result.Replayed != int64(1-i) || result.AlreadyReplayed != int64(i) {
				t.Errorf("round %d, %d: %+v, %v", round, i, result, err)
			}
		}
	}
	receive(t, messages).Ack()
	if n := client.XLen(t.Context(), topic).Val(); n != 3 {
		t.Errorf("%d entries, want the first and two replays", n)
	}
}
