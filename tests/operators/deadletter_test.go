package operators_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Three events die for two reasons; they are found by what is known of them.
func TestLettersAreFound(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		messages := subscribe(t, client, topic, "billing")
		for i := range 3 {
			publish(t, pub, topic, payment(fmt.Sprint("pay:", i)))
			reject(t, messages, []string{"no card", "", "no card"}[i], fmt.Errorf("Handler says %d", i))
			waitLetters(t, letters, topic, int64(i+1))
		}
		list := all(t, letters, topic, deadletter.Filter{})
		if len(list) != 3 {
			t.Fatalf("%d letters: %+v", len(list), list)
		}
		for i, l := range list {
			want := []string{"no card", subscriber.ReasonRejected, "no card"}[i]
			if l.Key != fmt.Sprint("pay:", i) || l.Reason != want || l.Error != fmt.Sprint("Handler says ", i) || l.Group != "billing" ||
				l.Topic != topic || l.EntryID == "" || l.Err != nil || time.Since(l.At).Abs() > time.Minute ||
				l.MessageUUID != fmt.Sprint("uuid-of-pay:", i) || string(l.Payload) != fmt.Sprintf(`{"payment":"pay:%d"}`, i) {
				t.Errorf("letter %d is %+v", i, l)
			}
		}
		id := func(i int) string { return list[i].ID }
		for name, c := range map[string]struct {
			f    deadletter.Filter
			want []string
		}{
			"reason":           {deadletter.Filter{Reason: "no card"}, []string{id(0), id(2)}},
			"group":            {deadletter.Filter{Group: "shipping"}, nil},
			"error":            {deadletter.Filter{ErrorHas: "says 1"}, []string{id(1)}},
			"key":              {deadletter.Filter{Key: "pay:2"}, []string{id(2)}},
			"limit":            {deadletter.Filter{Limit: 2}, []string{id(0), id(1)}},
			"newest":           {deadletter.Filter{Newest: true, Limit: 1}, []string{id(2)}},
			"reason, newest":   {deadletter.Filter{Newest: true, Reason: "no card"}, []string{id(2), id(0)}},
			"ids":              {deadletter.Filter{IDs: []string{id(2), id(0)}}, []string{id(2), id(0)}},
			"ids and reason":   {deadletter.Filter{IDs: []string{id(1), id(0)}, Reason: "no card"}, []string{id(0)}},
			"before the past":  {deadletter.Filter{To: time.Unix(1, 0)}, nil},
			"after now":        {deadletter.Filter{From: time.Now().Add(time.Hour)}, nil},
			"around now":       {deadletter.Filter{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Hour)}, []string{id(0), id(1), id(2)}},
			"from the second":  {deadletter.Filter{From: timeOf(t, id(1))}, []string{id(1), id(2)}},
			"up to the second": {deadletter.Filter{To: timeOf(t, id(1))}, []string{id(0)}},
			"own condition":    {deadletter.Filter{Match: func(l deadletter.Letter) bool { return strings.HasSuffix(l.Key, "1") }}, []string{id(1)}},
		} {
			var got []string
			for _, l := range all(t, letters, topic, c.f) {
				got = append(got, l.ID)
			}
			if fmt.Sprint(got) != fmt.Sprint(c.want) {
				t.Errorf("%s: %v, want %v", name, got, c.want)
			}
		}
		if got, err := letters.Get(t.Context(), topic, id(1)); err != nil || got.Key != "pay:1" {
			t.Errorf("by its ID: %+v, %v", got, err)
		}
		if _, err := letters.Get(t.Context(), topic, "1-1"); !errors.Is(err, deadletter.ErrNotFound) {
			t.Errorf("one that is not there: %v", err)
		}
		for _, bad := range []string{"", "1", "x", "-", "+"} {
			if _, err := letters.Get(t.Context(), topic, bad); err == nil || errors.Is(err, deadletter.ErrNotFound) {
				t.Errorf("ID %q: %v", bad, err)
			}
		}
		if got := all(t, letters, topic+"-none", deadletter.Filter{}); len(got) != 0 {
			t.Errorf("a topic without dead letters has %v", got)
		}
	})
}

// timeOf is when an entry was added. Entries of one millisecond would make the test blind.
func timeOf(t *testing.T, id string) time.Time {
	t.Helper()
	ms, _, _ := strings.Cut(id, "-")
	var n int64
	if _, err := fmt.Sscan(ms, &n); err != nil {
		t.Fatal(err)
	}
	return time.UnixMilli(n)
}

// A letter is replayed: the handler gets it, marked, and it is no dead letter any more. If it
// dies again it is another letter, which can be replayed, too.
func TestReplay(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		messages := subscribe(t, client, topic, "billing")
		publish(t, pub, topic, payment("pay:1"), payment("pay:2"))
		reject(t, messages, "no card", nil)
		reject(t, messages, "other", nil)
		waitLetters(t, letters, topic, 2)

		var outcomes []deadletter.Outcome
		replay := deadletter.Replay{Publisher: pub, Filter: deadletter.Filter{Reason: "no card"}, By: "anna",
			OnLetter: func(o deadletter.Outcome) { outcomes = append(outcomes, o) }}
		for _, dry := range []bool{true, false} {
			outcomes = nil
			replay.DryRun = dry
			result, err := letters.Replay(t.Context(), topic, replay)
			if err != nil || result.Err() != nil || result.Matched != 1 || result.Replayed != 1 {
				t.Fatalf("%+v, %v, %v", result, err, result.Err())
			}
			if len(outcomes) != 1 || outcomes[0].Letter.Key != "pay:1" || outcomes[0].Action != deadletter.ActionReplayed ||
				outcomes[0].Done != 1 || outcomes[0].Total != 2 || (outcomes[0].Receipt.EntryID == "") != dry {
				t.Errorf("dry %v: outcomes %+v", dry, outcomes)
			}
			want := map[bool]int64{true: 2, false: 1}[dry]
			waitLetters(t, letters, topic, want)
			if n := client.XLen(t.Context(), topic).Val(); n != 2+2-want {
				t.Errorf("dry %v: %d entries", dry, n)
			}
		}
		msg := receive(t, messages)
		if msg.UUID != "uuid-of-pay:1" || string(msg.Payload) != `{"payment":"pay:1"}` || msg.Metadata.Get("_dead_replayed_by") != "anna" ||
			msg.Metadata.Get("_dead_replays") != "1" || msg.Metadata.Get("_dead_replayed_at") == "" || msg.Metadata.Get("_dead_reason") != "no card" {
			t.Errorf("replayed as %s %v", msg.UUID, msg.Metadata)
		}
		d, _ := subscriber.DeliveryOf(msg)
		d.Reject("no card", nil)
		msg.Nack()
		waitLetters(t, letters, topic, 2)
		again := all(t, letters, topic, deadletter.Filter{Reason: "no card"})
		if len(again) != 1 || again[0].Replays != 1 || again[0].ReplayedBy != "anna" || time.Since(again[0].ReplayedAt).Abs() > time.Minute {
			t.Fatalf("died again as %+v", again)
		}
		replay.By = ""
		if result, err := letters.Replay(t.Context(), topic, replay); err != nil || result.Replayed != 1 || result.AlreadyReplayed != 0 {
			t.Fatalf("%+v, %v", result, err)
		}
		msg = receive(t, messages)
		if msg.Metadata.Get("_dead_replays") != "2" || msg.Metadata.Get("_dead_replayed_by") != "" {
			t.Errorf("the second time %v", msg.Metadata)
		}
		msg.Ack()
	})
}

// The program dies after it has published and before it has removed the letter, or the reply
// is lost: the letter is there, and is replayed once all the same.
func TestReplayIsRepeated(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Shared(t, kind)
			client, topic := s.Client(), testserver.Topic(t)
			letters, pub := newLetters(t, client), newPublisher(t, client)
			messages := subscribe(t, client, topic, "billing")
			const n = 4
			for i := range n {
				publish(t, pub, topic, payment(fmt.Sprint("pay:", i)))
				reject(t, messages, "", nil)
			}
			waitLetters(t, letters, topic, n)

			// The letter can't be removed, as if the program had died.
			limited := s.User(fmt.Sprint("no-xdel-", time.Now().UnixNano()), "~*", "+@all", "-xdel")
			result, err := newLetters(t, limited).Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, Filter: deadletter.Filter{Limit: 2}})
			if err != nil || result.Failed != 2 || result.Err() == nil || !strings.Contains(result.Err().Error(), "still a dead letter") {
				t.Fatalf("%+v, %v", result, err)
			}
			// The reply of a publish is lost, and so is that of its retries: nobody knows.
			link := faultlink.New(t, s.Addr())
			unlucky := newPublisher(t, link.Client(func(o *redis.Options) { o.ReadTimeout = 200 * time.Millisecond }), func(c *publisher.Config) { c.RetryFor = time.Second })
			publish(t, unlucky, topic, payment("pay:0")) // sets up; a duplicate
			link.LoseNext(1000, "XADD", "EVAL", "EVALSHA")
			third := all(t, letters, topic, deadletter.Filter{})[2]
			result, err = letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: unlucky, Filter: deadletter.Filter{IDs: []string{third.ID}}})
			if err != nil || result.Failed != 1 || !errors.Is(result.Err(), publisher.ErrOutcomeUnknown) {
				t.Fatalf("%+v, %v", result, err)
			}
			link.Heal()
			waitLetters(t, letters, topic, n)

			result, err = letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub})
			if err != nil || result.Matched != n || result.AlreadyReplayed != 3 || result.Replayed != 1 {
				t.Errorf("%+v, %v", result, err)
			}
			waitLetters(t, letters, topic, 0)
			if got := client.XLen(t.Context(), topic).Val(); got != 2*n {
				t.Errorf("%d entries, want each of %d and its replay", got, n)
			}
			for range n {
				receive(t, messages).Ack()
			}
			// By ID once more, as an operator does who is not sure: it is gone.
			result, err = letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, Filter: deadletter.Filter{IDs: []string{third.ID}}})
			if err != nil || result.Gone != 1 || result.Failed != 0 {
				t.Errorf("%+v, %v", result, err)
			}
		})
	}
}

// A letter that is kept is not published twice, unless that is asked for.
func TestReplayAndKeep(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		messages := subscribe(t, client, topic, "billing")
		publish(t, pub, topic, payment("pay:1"))
		reject(t, messages, "", nil)
		waitLetters(t, letters, topic, 1)
		for i, attempt := range []int{0, 0, 1, 1, 2} {
			result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, Keep: true, Attempt: attempt})
			isNew := i != 1 && i != 3
			if err != nil || result.Replayed != map[bool]int64{true: 1}[isNew] || result.AlreadyReplayed != map[bool]int64{false: 1}[isNew] {
				t.Errorf("%d, attempt %d: %+v, %v", i, attempt, result, err)
			}
		}
		if n := client.XLen(t.Context(), topic).Val(); n != 4 {
			t.Errorf("%d entries, want the first and 3 copies", n)
		}
		for range 3 {
			receive(t, messages).Ack()
		}
		waitLetters(t, letters, topic, 1)
	})
}

// A letter that can't be published does not hold up the others, and the result says which.
func TestReplayGoesOn(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters := testserver.Topic(t), newLetters(t, client)
		pub := newPublisher(t, client, func(c *publisher.Config) { c.MaxPayload = 1000 })
		dead := subscriber.DeadLetterTopic(topic)
		add := func(key, payload string) string {
			return client.XAdd(t.Context(), &redis.XAddArgs{Stream: dead, Values: []string{
				"_watermill_message_uuid", key, "payload", payload, eventkey.MetadataKey, key,
				"_dead_origin", topic + " 1-" + key, "_dead_group", "billing", "_dead_at", "2026-01-02T03:04:05Z"}}).Val()
		}
		add("1", "small")
		large := add("2", strings.Repeat("x", 2000))
		undecodable := client.XAdd(t.Context(), &redis.XAddArgs{Stream: dead, Values: []string{
			"_watermill_message_uuid", "3", "payload", "p", "metadata", "\xc1", "_dead_origin", topic + " 1-3", "_dead_reason", subscriber.ReasonUndecodable}}).Val()
		add("4", "small")
		result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub})
		if err != nil || result.Matched != 4 || result.Replayed != 2 || result.Failed != 2 || len(result.Failures) != 2 {
			t.Fatalf("%+v, %v", result, err)
		}
		if f := result.Failures[0]; f.Letter.ID != large || !errors.Is(f.Err, publisher.ErrTooLarge) {
			t.Errorf("%s: %v", f.Letter.ID, f.Err)
		}
		if f := result.Failures[1]; f.Letter.ID != undecodable || !errors.Is(f.Err, deadletter.ErrUndecodable) {
			t.Errorf("%s: %v", f.Letter.ID, f.Err)
		}
		if err := result.Err(); !errors.Is(err, publisher.ErrTooLarge) || !strings.Contains(err.Error(), large) {
			t.Errorf("the result says %v", err)
		}
		waitLetters(t, letters, topic, 2)
		if got := all(t, letters, topic, deadletter.Filter{})[1]; !errors.Is(got.Err, deadletter.ErrUndecodable) || got.Reason != subscriber.ReasonUndecodable {
			t.Errorf("shown as %+v", got)
		}
		// Both fail again, one after the other.
		result, err = letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, StopAfter: 1})
		if err == nil || result.Matched != 1 {
			t.Errorf("%+v, %v", result, err)
		}
		result, err = letters.Drop(t.Context(), topic, deadletter.Drop{Filter: deadletter.Filter{Reason: subscriber.ReasonUndecodable}})
		if err != nil || result.Dropped != 1 {
			t.Errorf("%+v, %v", result, err)
		}
		if got := all(t, letters, topic, deadletter.Filter{}); len(got) != 1 || got[0].ID != large {
			t.Errorf("left: %+v", got)
		}
	})
}

// What dies while a replay runs is left to the next one, also what it has itself replayed.
func TestReplayEnds(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		messages := subscribe(t, client, topic, "billing")
		publish(t, pub, topic, payment("pay:1"), payment("pay:2"))
		reject(t, messages, "", nil)
		reject(t, messages, "", nil)
		waitLetters(t, letters, topic, 2)
		seen := 0
		result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, OnLetter: func(deadletter.Outcome) {
			if seen++; seen <= 2 {
				reject(t, messages, "", nil) // before the next one is read
				waitLetters(t, letters, topic, 2)
			}
		}})
		if err != nil || result.Matched != 2 {
			t.Errorf("%+v, %v", result, err)
		}
	})
}

// Letters are trimmed away, or dropped by another, while they are replayed.
func TestLettersTrimmedMeanwhile(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		topic, letters, pub := testserver.Topic(t), newLetters(t, client), newPublisher(t, client)
		messages := subscribe(t, client, topic, "billing")
		const n = 40
		for i := range n {
			publish(t, pub, topic, payment(fmt.Sprint("pay:", i)))
			reject(t, messages, "", nil)
		}
		waitLetters(t, letters, topic, n)
		ctx := context.WithoutCancel(t.Context())
		first := true
		result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: pub, OnLetter: func(o deadletter.Outcome) {
			if first {
				first = false
				if err := client.XTrimMaxLen(ctx, subscriber.DeadLetterTopic(topic), 5).Err(); err != nil {
					t.Error(err)
				}
			}
		}})
		// The first ones had been read; of the others 5 are left.
		if err != nil || result.Failed != 0 || result.Replayed != result.Matched || result.Matched < 5 || result.Matched > n {
			t.Errorf("%+v, %v", result, err)
		}
		if got := client.XLen(ctx, topic).Val(); got != n+result.Replayed {
			t.Errorf("%d entries, %d replayed", got, result.Replayed)
		}
		waitLetters(t, letters, topic, 0)
		for range result.Replayed {
			receive(t, messages).Ack()
		}
	})
}

// An event that its handler has handled is skipped when it comes again. Forget makes it run;
// and a replay that is repeated does not make it run twice.
func TestReplayForgetsTheRecord(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		for _, source := range []eventkey.Source{nil, eventkey.Metadata("payment")} {
			topic, letters := testserver.Topic(t), newLetters(t, client)
			pub := newPublisher(t, client, func(c *publisher.Config) { c.Key = source })
			store, err := redisstore.New(redisstore.Config{Client: client})
			if err != nil {
				t.Fatal(err)
			}
			once, err := middleware.New(middleware.Config{Store: store, Retention: time.Hour, Key: source}, observe.NewLogger(t))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = once.Close(context.WithoutCancel(t.Context())) })
			messages := subscribe(t, client, topic, "billing")
			runs := 0
			handle := func(msg *message.Message) {
				t.Helper()
				if _, err := once.Run(msg.Context(), msg, "charge", func(context.Context) ([]*message.Message, error) { runs++; return nil, nil }); err != nil {
					t.Fatal(err)
				}
				msg.Ack()
			}
			msg := message.NewMessage("u", []byte("{}"))
			msg.Metadata.Set("payment", "pay:1")
			if source == nil {
				msg.Metadata.Set(eventkey.MetadataKey, "pay:1")
			}
			publish(t, pub, topic, msg)
			handle(receive(t, messages))
			// Another publish of it, which the handler should have been asked about, is refused
			// by hand: a dead letter that is newer than the record.
			eventkey.NextAttempt(msg)
			publish(t, pub, topic, msg)
			reject(t, messages, "conflict", nil)
			waitLetters(t, letters, topic, 1)

			replay := deadletter.Replay{Publisher: pub, Keep: true}
			if _, err := letters.Replay(t.Context(), topic, replay); err != nil {
				t.Fatal(err)
			}
			if handle(receive(t, messages)); runs != 1 {
				t.Fatalf("%d runs: it was not skipped", runs)
			}
			replay.Attempt = 1
			replay.Forget = &deadletter.Forget{Store: store, Handlers: []string{"refund", "charge"}}
			replay.DryRun = true
			result, err := letters.Replay(t.Context(), topic, replay)
			if err != nil || result.Forgotten != 1 || result.HandledSince != 0 {
				t.Fatalf("dry: %+v, %v", result, err)
			}
			key := dedupe.Key{Namespace: "billing", Topic: topic, Handler: "charge", Event: "pay:1"}
			if _, err := store.Lookup(t.Context(), key); err != nil {
				t.Fatalf("the dry run has removed it: %v", err)
			}
			replay.DryRun = false
			if result, err = letters.Replay(t.Context(), topic, replay); err != nil || result.Forgotten != 1 || result.Replayed != 1 {
				t.Fatalf("%+v, %v", result, err)
			}
			if handle(receive(t, messages)); runs != 2 {
				t.Fatalf("%d runs: the record that was forgotten is not the one that counts", runs)
			}
			// As if the program had died before it removed the letter: the record is that of
			// the replay, and stays.
			replay.Keep = false
			var handledAt time.Time
			replay.OnLetter = func(o deadletter.Outcome) { handledAt = o.HandledAt }
			if result, err = letters.Replay(t.Context(), topic, replay); err != nil || result.Forgotten != 0 || result.HandledSince != 1 || result.AlreadyReplayed != 1 {
				t.Errorf("repeated: %+v, %v", result, err)
			}
			if _, err := store.Lookup(t.Context(), key); err != nil || time.Since(handledAt).Abs() > time.Minute {
				t.Errorf("the record of the replay is gone: %v; handled at %v", err, handledAt)
			}
		}
	})
}

// Another publisher than ours can't recognise what it has published.
func TestReplayByAnotherPublisher(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	letters, pub := newLetters(t, client), newPublisher(t, client)
	messages := subscribe(t, client, topic, "billing")
	publish(t, pub, topic, payment("pay:1"))
	reject(t, messages, "", nil)
	waitLetters(t, letters, topic, 1)
	plain, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: s.Client()}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = plain.Close() })
	if _, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: plain}); !errors.Is(err, deadletter.ErrPublisher) {
		t.Errorf("%v", err)
	}
	waitLetters(t, letters, topic, 1)
	result, err := letters.Replay(t.Context(), topic, deadletter.Replay{Publisher: plain, AnyPublisher: true})
	if err != nil || result.Replayed != 1 {
		t.Errorf("%+v, %v", result, err)
	}
	if msg := receive(t, messages); msg.Metadata.Get("_dead_replays") != "1" {
		t.Errorf("%v", msg.Metadata)
	} else {
		msg.Ack()
	}
	waitLetters(t, letters, topic, 0)
}

// A right is missing: Check names it, and so does what is refused.
func TestRightsOnDeadLetters(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s, topic := testserver.Shared(t, kind), testserver.Topic(t)
			dead := subscriber.DeadLetterTopic(topic)
			rights := []string{"xinfo|stream", "xrange", "xrevrange", "xlen", "xdel"}
			var rules []string
			for _, r := range rights {
				rules = append(rules, "+"+r)
			}
			name := fmt.Sprint("dead-", time.Now().UnixNano(), "-")
			for i, without := range append([]string{""}, rights...) {
				own := append([]string{"~" + dead}, rules...)
				if without != "" {
					own = append(own, "-"+without)
				}
				l := newLetters(t, s.User(name+fmt.Sprint(i), own...))
				missing, err := l.Check(t.Context(), topic, true)
				want := strings.ToUpper(strings.ReplaceAll(without, "|", " "))
				if strings.Join(missing, " ") != want || (err == nil) != (without == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("without %q: %v, %v", without, missing, err)
				}
				if _, err := l.Check(t.Context(), topic, false); (err == nil) != (without == "" || without == "xdel") {
					t.Errorf("to read, without %q: %v", without, err)
				}
				if without == "" { // these are enough
					if _, err := l.Drop(t.Context(), topic, deadletter.Drop{}); err != nil {
						t.Error(err)
					}
				}
			}
			stranger := newLetters(t, s.User(name+"stranger", "~other", "+@all"))
			if missing, err := stranger.Check(t.Context(), topic, true); err == nil || fmt.Sprint(missing) != "[~"+dead+"]" {
				t.Errorf("%v, %v", missing, err)
			}
		})
	}
}
