package operators_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A letter that does not say where it was before, since it was written by hand or by other
// code, is no duplicate of its event's first publish: else it would be removed and nobody
// would get it.
func TestReplayOfALetterWithoutOrigin(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, idmp bool) {
		modes := []publisher.Mode{publisher.ModeAuto, publisher.ModeLatch}
		if idmp {
			modes = append(modes, publisher.ModeIDMPAuto)
		}
		for _, mode := range modes {
			topic, letters := testserver.Topic(t)+mode.String(), newLetters(t, client)
			pub := newPublisher(t, client, func(c *publisher.Config) { c.Mode = mode })
			publish(t, pub, topic, payment("pay:1"))
			entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
			if err != nil {
				t.Fatal(err)
			}
			for range 2 { // two letters of one event are two
				args := &redis.XAddArgs{Stream: subscriber.DeadLetterTopic(topic), Values: entries[0].Values}
				if err := client.XAdd(t.Context(), args).Err(); err != nil {
					t.Fatal(err)
				}
			}
			for round, keep := range []bool{true, false} {
				result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, Keep: keep})
				if err != nil || result.Replayed != int64(2-2*round) || result.AlreadyReplayed != int64(2*round) {
					t.Errorf("mode %v, round %d: %+v, %v", mode, round, result, err)
				}
			}
			if n := client.XLen(t.Context(), topic).Val(); n != 3 {
				t.Errorf("mode %v: %d entries, want the first one and two replays", mode, n)
			}
		}
	})
}

// Letters that can't be decoded, however many, hold up none behind them: they say nothing of
// the server.
func TestReplayPassesUndecodableLetters(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	letters, pub := newLetters(t, client), newPublisher(t, client)
	const broken = 30
	for range broken {
		args := &redis.XAddArgs{Stream: subscriber.DeadLetterTopic(topic), Values: []string{"_watermill_message_uuid", "u", "payload", "x", "metadata", "no metadata"}}
		if err := client.XAdd(t.Context(), args).Err(); err != nil {
			t.Fatal(err)
		}
	}
	messages := subscribe(t, client, topic, "billing")
	publish(t, pub, topic, payment("pay:1"))
	reject(t, messages, "", nil)
	waitLetters(t, letters, topic, broken+1)
	result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub})
	if err != nil || result.Replayed != 1 || result.Failed != broken {
		t.Errorf("%+v, %v", result, err)
	}
	receive(t, messages).Ack()
}

// A user with the rights that Check asks for sees which streams exist in a list, too.
func TestTopicsAreListedWithTheRightsThatCheckNames(t *testing.T) {
	t.Parallel()
	s := testserver.Start(t, testserver.Redis70)
	pub := newPublisher(t, s.Client())
	for _, topic := range []string{"there", "deleted", "other"} {
		publish(t, pub, topic, payment("pay:1"))
	}
	if err := s.Client().Del(t.Context(), "deleted", "other").Err(); err != nil {
		t.Fatal(err)
	}
	if err := s.Client().Set(t.Context(), "other", "no stream", 0).Err(); err != nil {
		t.Fatal(err)
	}
	rights := []string{"~*", "+xinfo|stream", "+xinfo|groups", "+xinfo|consumers", "+xpending", "+xrange", "+xrevrange", "+hgetall", "+get", "+pttl", "+xlen", "+scan"}
	look := newInspector(t, s.User("looker", rights...))
	for _, topic := range []string{"there", "deleted"} {
		if missing, err := look.Check(t.Context(), topic); err != nil {
			t.Fatal(missing, err)
		}
	}
	for name, found := range topics(t, look, "") {
		if want := name == "there"; name != "other" && (found.Exists != want || found.LayoutErr != nil) {
			t.Errorf("%+v", found)
		}
	}
}

// Whoever looks at less of a stream than the window lasts has not looked for retries that came
// after it.
func TestObserveHasNotLookedBehindTheWindow(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	pub := newPublisher(t, client, func(c *publisher.Config) { c.Window.Duration = 4 * time.Second })
	look := newInspector(t, client)
	watch := inspect.Watch{For: 20 * time.Millisecond, Every: 10 * time.Millisecond, Scan: &inspect.Scan{}}
	publish(t, pub, topic, payment("pay:1"), payment("pay:2"))
	if o, err := look.Observe(t.Context(), topic, watch); err != nil || o.Looked {
		t.Errorf("%+v, %v", o, err)
	}
	<-time.After(4100 * time.Millisecond) // the window is over, by the server's clock
	publish(t, pub, topic, payment("pay:3"))
	if o, err := look.Observe(t.Context(), topic, watch); err != nil || !o.Looked {
		t.Errorf("%+v, %v", o, err)
	}
	watch.Scan.MaxEntries = 1
	if o, err := look.Observe(t.Context(), topic, watch); err != nil || o.Looked {
		t.Errorf("the newest one: %+v, %v", o, err)
	}
}

// What another operator drops while a replay runs is not published, also where the replay had
// read it before.
func TestDroppedWhileReplaying(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		const n, first = 100, 40
		for i := range n {
			args := &redis.XAddArgs{Stream: subscriber.DeadLetterTopic(topic), Values: []any{"_watermill_message_uuid", i, "payload", i, eventkey.MetadataKey, i}}
			if err := client.XAdd(t.Context(), args).Err(); err != nil {
				t.Fatal(err)
			}
		}
		told := 0
		var dropped deadletter.Result
		result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, OnLetter: func(deadletter.Outcome) {
			if told++; told != first {
				return
			}
			var err error
			if dropped, err = letters.Drop(t.Context(), topic, deadletter.Drop{}); err != nil {
				t.Error(err)
			}
		}})
		if err != nil || result.Replayed != first || dropped.Dropped != n-first || result.Failed > 0 {
			t.Errorf("%+v, %v; %d dropped", result, err, dropped.Dropped)
		}
		if got := client.XLen(t.Context(), topic).Val(); got != first {
			t.Errorf("%d entries, want %d", got, first)
		}
	})
}
