package operators_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
	"github.com/onceward/watermill-idempotent/window"
)

func topics(t *testing.T, i *inspect.Inspector, match string) map[string]inspect.Summary {
	t.Helper()
	found := make(map[string]inspect.Summary)
	for s, err := range i.Topics(t.Context(), inspect.TopicFilter{Match: match}) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := found[s.Topic]; twice {
			t.Errorf("%q twice", s.Topic)
		}
		found[s.Topic] = s
	}
	return found
}

// Topics of all names are found, on every master of a cluster, among other keys.
func TestTopicsAreListed(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, idmp bool) {
		base, look, pub := testserver.Topic(t), newInspector(t, client), newPublisher(t, client)
		var names []string
		for _, form := range []string{"%s", "%s:a", "x:{%s}:y", "%s}b", "{%s", "%s%%3A", "%s[*]?"} {
			names = append(names, fmt.Sprintf(form, base))
		}
		for i, name := range names {
			for range i + 1 {
				publish(t, pub, name, payment(fmt.Sprint("pay:", i, time.Now().UnixNano())))
			}
			if err := client.Set(t.Context(), name+":idem:layout", "no layout record", 0).Err(); err != nil {
				t.Fatal(err)
			}
		}
		messages := subscribe(t, client, names[1], "billing")
		reject(t, messages, "", nil)
		waitLetters(t, newLetters(t, client), names[1], 1)
		if err := client.Del(t.Context(), names[0]).Err(); err != nil {
			t.Fatal(err)
		}
		found := topics(t, look, "*"+base+"*")
		if len(found) != len(names) {
			t.Errorf("found %v, want %v", found, names)
		}
		mode := map[bool]publisher.Mode{true: publisher.ModeIDMP, false: publisher.ModeLatch}[idmp]
		for i, name := range names {
			s, ok := found[name]
			if !ok || s.LayoutErr != nil || s.Layout.Mode != mode || s.Layout.Shards != 1 || s.Exists != (i > 0) {
				t.Errorf("%q: %+v", name, s)
			}
			if want := map[bool]int64{true: int64(i + 1)}[i > 0]; s.Length != want || s.Groups != map[bool]int64{true: 1}[i == 1] ||
				s.DeadLetters != map[bool]int64{true: 1}[i == 1] {
				t.Errorf("%q: %+v, want %d entries", name, s, want)
			}
		}
		if got := topics(t, look, base+`\[\*]\?`); len(got) != 1 || got[names[6]].Topic == "" {
			t.Errorf("by an escaped pattern: %v", got)
		}
		if got := topics(t, look, base); len(got) != 1 {
			t.Errorf("by its name: %v", got)
		}
	})
}

// A topic in full: window, groups, consumers, what they hold, dead letters.
func TestTopicInFull(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, idmp bool) {
		topic, look := testserver.Topic(t), newInspector(t, client)
		pub := newPublisher(t, client, func(c *publisher.Config) { c.Window.Entries = 20_000 })
		if got, err := look.Topic(t.Context(), topic); err != nil || got.Exists || got.HasLayout || len(got.Notes) == 0 {
			t.Errorf("before it is made: %+v, %v", got, err)
		}
		for i := range 10 {
			publish(t, pub, topic, payment(fmt.Sprint("pay:", i)))
		}
		publish(t, pub, topic, payment("pay:3"))
		busy := subscribe(t, client, topic, "billing")
		receive(t, busy).Ack()
		reject(t, busy, "", nil)
		waitLetters(t, newLetters(t, client), topic, 1)
		held := receive(t, busy)
		if err := client.XGroupCreate(t.Context(), topic, "audit", "0").Err(); err != nil {
			t.Fatal(err)
		}
		testserver.Eventually(t, within, func() error { // until the first two are acknowledged
			got, err := look.Topic(t.Context(), topic)
			if err != nil {
				return err
			}
			return wantTopic(got, topic, idmp)
		})
		held.Ack()

		if err := client.Set(t.Context(), topic+"-text", "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		if _, err := look.Topic(t.Context(), topic+"-text"); !errors.Is(err, inspect.ErrWrongType) {
			t.Errorf("a key of another type: %v", err)
		}
		plain := topic + "-plain"
		if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: plain, Values: []string{"a", "b"}}).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := look.Topic(t.Context(), plain); err != nil || got.HasLayout || got.Stream.Length != 1 || !strings.Contains(strings.Join(got.Notes, " "), "No publisher of this library") {
			t.Errorf("a plain stream: %+v, %v", got, err)
		}
		deleted := topic + "-deleted"
		publish(t, pub, deleted, payment("pay:1"))
		if err := client.Del(t.Context(), deleted).Err(); err != nil {
			t.Fatal(err)
		}
		if got, err := look.Topic(t.Context(), deleted); err != nil || got.Exists || !got.HasLayout {
			t.Errorf("deleted: %+v, %v", got, err)
		}
	})
}

func wantTopic(got inspect.Topic, topic string, idmp bool) error {
	s, w := got.Stream, got.Window
	if !got.Exists || !got.HasLayout || got.LayoutErr != nil || got.DeadLetters != 1 || got.DeadLetterTopic != "{"+topic+"}.dead" || got.Server == "" ||
		s.Length != 10 || s.EntriesAdded != 10 || s.Deleted != 0 || s.FirstID == "" || s.LastID != s.GeneratedID || s.FirstID == s.LastID || s.Memory <= 0 ||
		time.Since(s.FirstAt).Abs() > time.Minute || s.LastAt.Before(s.FirstAt) {
		return fmt.Errorf("%+v", got)
	}
	if w.Duration != time.Minute || w.InServer != idmp {
		return fmt.Errorf("window %+v", w)
	}
	if idmp && (got.Layout.Mode != publisher.ModeIDMP || got.Layout.Shards != 3 || w.MaxIDs != 10_000 || w.Entries < 20_000 || w.IDs != 10 || w.IDsAdded != 10 ||
		w.Duplicates != 1 || w.ProducerIDs < 1 || w.ProducerIDs > 3 || w.Fill != 10.0/30_000) {
		return fmt.Errorf("layout %+v, window %+v", got.Layout, w)
	}
	if len(got.Groups) != 2 || got.Groups[0].Name != "audit" || got.Groups[1].Name != "billing" {
		return fmt.Errorf("groups %+v", got.Groups)
	}
	audit, billing := got.Groups[0], got.Groups[1]
	if audit.Lag != 10 || audit.Pending != 0 || audit.OldestPending != "" || len(audit.Consumers) != 0 {
		return fmt.Errorf("audit %+v", audit)
	}
	// It has read ahead all that there is; two are settled.
	if billing.Lag != 0 || billing.Pending != 8 || billing.OldestPending == "" || billing.OldestAge <= 0 || billing.OldestAge > time.Minute ||
		billing.LastDelivered != s.LastID || len(billing.Consumers) != 1 || billing.Consumers[0].Pending != 8 || billing.Consumers[0].Idle < 0 || billing.Consumers[0].Idle > time.Minute {
		return fmt.Errorf("billing %+v", billing)
	}
	return nil
}

// Latches of a topic: found by key and by pattern, with age, time to live and entry.
func TestLatches(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, idmp bool) {
		topic, look := testserver.Topic(t)+":{*", newInspector(t, client)
		pub := newPublisher(t, client, func(c *publisher.Config) { c.Mode = publisher.ModeLatch })
		other := newPublisher(t, client, func(c *publisher.Config) { c.Mode, c.ProducerID = publisher.ModeLatch, "a:b%" })
		var ids []string
		for i := range 5 {
			ids = append(ids, publish(t, pub, topic, payment(fmt.Sprint("pay:", i)))[0].EntryID)
		}
		publish(t, other, topic, payment("pay:0"))
		publish(t, pub, topic+"2", payment("pay:0")) // not ours
		if err := client.XDel(t.Context(), topic, ids[2]).Err(); err != nil {
			t.Fatal(err)
		}
		list := func(f inspect.LatchFilter) (ids []string) {
			for l, err := range look.Latches(t.Context(), topic, f) {
				if err != nil {
					t.Fatal(err)
				}
				state := inspect.EntryThere
				if l.IdempotentID == "pay:2" {
					state = inspect.EntryGone
				}
				if l.Void || l.Err != nil || l.Age < 0 || l.TTL <= 0 || (l.Age+l.TTL-time.Minute).Abs() > 5*time.Second || l.Fingerprint == "" || l.Entry != state {
					t.Errorf("%+v", l)
				}
				ids = append(ids, l.ProducerID+" "+l.IdempotentID)
			}
			slices.Sort(ids)
			return ids
		}
		if got := fmt.Sprint(list(inspect.LatchFilter{})); got != "[a:b% pay:0 payment-service pay:0 payment-service pay:1 payment-service pay:2 payment-service pay:3 payment-service pay:4]" {
			t.Errorf("all: %s", got)
		}
		if got := fmt.Sprint(list(inspect.LatchFilter{ProducerID: "a:b%"})); got != "[a:b% pay:0]" {
			t.Errorf("of a producer: %s", got)
		}
		if got := fmt.Sprint(list(inspect.LatchFilter{Match: "pay:[12]"})); got != "[payment-service pay:1 payment-service pay:2]" {
			t.Errorf("of a pattern: %s", got)
		}
		if got := list(inspect.LatchFilter{Limit: 2}); len(got) != 2 {
			t.Errorf("two: %v", got)
		}
		for _, producer := range []string{"", "payment-service"} {
			l, err := look.Latch(t.Context(), topic, producer, "pay:2")
			if err != nil || l.EntryID != ids[2] || l.Entry != inspect.EntryGone || l.ProducerID != "payment-service" {
				t.Errorf("one of %q: %+v, %v", producer, l, err)
			}
			if l, err := look.Latch(t.Context(), topic, producer, "pay:3"); err != nil || l.EntryID != ids[3] || l.Entry != inspect.EntryThere {
				t.Errorf("one of %q: %+v, %v", producer, l, err)
			}
			if _, err := look.Latch(t.Context(), topic, producer, "pay:*"); !errors.Is(err, inspect.ErrNotFound) {
				t.Errorf("none of %q: %v", producer, err)
			}
		}
		if got, err := look.Topic(t.Context(), topic); err != nil || got.Window.Duration != time.Minute || got.Window.InServer && got.Window.Entries != 0 {
			t.Errorf("the window that latches show: %+v, %v", got.Window, err)
		}
		if err := client.Del(t.Context(), topic).Err(); err != nil {
			t.Fatal(err)
		}
		publish(t, pub, topic, payment("pay:9")) // the generation after
		if l, err := look.Latch(t.Context(), topic, "payment-service", "pay:3"); err != nil || !l.Void {
			t.Errorf("of the stream before: %+v, %v", l, err)
		}
		if idmp {
			guarded := testserver.Topic(t)
			publish(t, newPublisher(t, client), guarded, payment("pay:1"))
			if _, err := look.Latch(t.Context(), guarded, "payment-service", "pay:1"); !errors.Is(err, inspect.ErrNoLatches) {
				t.Errorf("mode IDMP: %v", err)
			}
		}
		if _, err := look.Latch(t.Context(), topic+"none", "payment-service", "pay:1"); !errors.Is(err, inspect.ErrNotFound) {
			t.Errorf("no topic: %v", err)
		}
	})
}

// Why a stream has duplicates: each cause once.
func TestWhyAStreamHasDuplicates(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, idmp bool) {
		topic, look, letters := testserver.Topic(t), newInspector(t, client), newLetters(t, client)
		pub := newPublisher(t, client, func(c *publisher.Config) { c.Window.Duration = time.Second })
		messages := subscribe(t, client, topic, "billing")
		ctx := t.Context()

		publish(t, pub, topic, payment("late"))
		publish(t, pub, topic, payment("once"), payment("once"))

		// A dead letter that is replayed is no fault.
		publish(t, pub, topic, payment("replayed"))
		for range 2 {
			receive(t, messages).Ack()
		}
		reject(t, messages, "", nil)
		waitLetters(t, letters, topic, 1)
		if result, err := letters.Replay(ctx, topic, deadletter.Replay{Publisher: pub}); err != nil || result.Replayed != 1 {
			t.Fatalf("%+v, %v", result, err)
		}
		// Somebody else publishes the same message twice, and one that has a key by its field.
		plain, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		unkeyed := message.NewMessage("plain", []byte(`{"a":1}`))
		for range 2 {
			if err := plain.Publish(topic, unkeyed); err != nil {
				t.Fatal(err)
			}
		}
		foreign := message.NewMessage("foreign", []byte(`{"payment":"other"}`))
		foreign.Metadata.Set("payment", "once")
		if err := plain.Publish(topic, foreign); err != nil {
			t.Fatal(err)
		}
		// A retry that comes when the window is over.
		testserver.Eventually(t, within, func() error {
			if r := publish(t, pub, topic, payment("late"))[0]; r.Verdict != publisher.VerdictAdded {
				return fmt.Errorf("%v: the window is not over", r.Verdict)
			}
			return nil
		})
		// Two services with ProducerIDs of their own add one event each.
		publish(t, pub, topic, payment("shared"))
		publish(t, newPublisher(t, client, func(c *publisher.Config) { c.ProducerID = "pod-2"; c.Window.Duration = time.Second }), topic, payment("shared"))

		var read int64
		d, err := look.Duplicates(ctx, topic, inspect.Scan{Key: eventkey.Metadata("payment"), OnProgress: func(n, _ int64) { read = n }})
		if err != nil {
			t.Fatal(err)
		}
		inWindow := inspect.CauseUnknown
		if idmp {
			inWindow = inspect.CauseProducers
		}
		want := map[inspect.Cause]int64{inspect.CauseLate: 1, inspect.CauseAttempt: 1, inspect.CauseUnguarded: 2}
		want[inWindow]++
		if fmt.Sprint(d.ByCause) != fmt.Sprint(want) || d.Total != 5 || d.Entries != 10 || d.Keyless != 2 || read != 10 || d.More || d.Apart.Count != 1 {
			t.Errorf("%+v, want %v", d, want)
		}
		var lateAgain time.Time
		for _, p := range d.Pairs {
			switch key := p.Key; key {
			case "late":
				lateAgain = p.Second.At
				if p.Cause != inspect.CauseLate || p.Apart < time.Second || p.Between != 6 || !p.SameMessage || !p.SameContent || !p.First.Ours || !p.Second.Ours {
					t.Errorf("%+v", p)
				}
			case "replayed":
				if p.Cause != inspect.CauseAttempt || p.Second.Attempt != "replay" || p.First.Attempt != "" || !p.SameContent {
					t.Errorf("%+v", p)
				}
			case "once":
				if p.Cause != inspect.CauseUnguarded || p.SameMessage || p.SameContent || p.Differs != "$.payment" || !p.First.Ours || p.Second.Ours {
					t.Errorf("%+v", p)
				}
			case "":
				if p.Cause != inspect.CauseUnguarded || p.Between != 0 || !p.SameMessage || p.First.MessageUUID != "plain" {
					t.Errorf("%+v", p)
				}
			case "shared":
				if p.Cause != inWindow || p.Between != 0 {
					t.Errorf("%+v", p)
				}
			default:
				t.Errorf("%+v", p)
			}
		}
		if text := strings.Join(d.Findings, "\n"); !strings.HasPrefix(text, "2 entries have no key, and the source of keys finds none") ||
			!strings.Contains(d.Findings[1], "2 pairs: at least one of the two was not written") || !strings.Contains(text, "Raise Window.Duration") ||
			strings.Contains(text, "ProducerIDs of their own each") != idmp || strings.Contains(text, "The second entry of a pair is the extra one") != idmp {
			t.Errorf("findings:\n%s", text)
		}
		// Only one key; only the newest entries; only up to a time.
		if d, err := look.Duplicates(ctx, topic, inspect.Scan{Only: "late"}); err != nil || d.Total != 1 || d.Pairs[0].Key != "late" {
			t.Errorf("one key: %+v, %v", d, err)
		}
		if d, err := look.Duplicates(ctx, topic, inspect.Scan{MaxEntries: 2}); err != nil || d.Entries != 2 || !d.More || d.Total != 1 || d.Pairs[0].Key != "shared" {
			t.Errorf("the newest: %+v, %v", d, err)
		}
		if d, err := look.Duplicates(ctx, topic, inspect.Scan{To: lateAgain}); err != nil || d.Total != 2 || d.More {
			t.Errorf("before the second: %+v, %v", d, err)
		}
		if d, err := look.Duplicates(ctx, topic, inspect.Scan{MaxPairs: 1, Key: eventkey.Metadata("payment")}); err != nil || d.Total != 5 || len(d.Pairs) != 1 || d.Pairs[0].Key != "shared" {
			t.Errorf("one pair: %+v, %v", d, err)
		}
		if _, err := look.Duplicates(ctx, topic+"none", inspect.Scan{}); !errors.Is(err, inspect.ErrNotFound) {
			t.Errorf("no stream: %v", err)
		}
	})
}

// More keys than the window holds come between an event and its retry.
func TestDuplicatesOfAFullWindow(t *testing.T) {
	t.Parallel()
	client, topic := testserver.Shared(t, testserver.Redis86).Client(), testserver.Topic(t)
	pub := newPublisher(t, client, func(c *publisher.Config) { c.Window.Duration = time.Hour })
	publish(t, pub, topic, payment("first"))
	var batch []*message.Message
	for i := range 10_000 {
		batch = append(batch, payment(fmt.Sprint("filler:", i)))
	}
	publish(t, pub, topic, batch...)
	publish(t, pub, topic, payment("first"))
	look := newInspector(t, client)
	o, err := look.Observe(t.Context(), topic, inspect.Watch{For: 30 * time.Millisecond, Every: 10 * time.Millisecond, Scan: &inspect.Scan{}})
	if err != nil || o.Missed.Count != 1 || !o.Looked || o.Tracked != 10_000 || o.Shards != 1 || o.ProducerIDs != 1 {
		t.Fatalf("%+v, %v", o, err)
	}
	a := window.Advise(o)
	if a.Verdict != window.TooSmall || a.Window.Entries < 20_000 || a.Forgets != 10_000 {
		t.Errorf("%+v", a)
	}
	d, err := look.Duplicates(t.Context(), topic, inspect.Scan{})
	if err != nil || d.Total != 1 || d.ByCause[inspect.CauseFull] != 1 || d.Pairs[0].Between != 10_000 {
		t.Errorf("%+v, %v", d, err)
	}
}

// What is watched is what was published meanwhile.
func TestObserve(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, idmp bool) {
		topic, look, pub := testserver.Topic(t), newInspector(t, client), newPublisher(t, client)
		if _, err := look.Observe(t.Context(), topic, inspect.Watch{}); !errors.Is(err, inspect.ErrNotFound) {
			t.Errorf("no stream: %v", err)
		}
		publish(t, pub, topic, payment("before"))
		if err := client.XGroupCreate(t.Context(), topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		n := 0
		var samples []inspect.Sample
		ctx, cancel := context.WithCancel(t.Context())
		o, err := look.Observe(ctx, topic, inspect.Watch{For: time.Hour, Every: 20 * time.Millisecond, OnSample: func(s inspect.Sample) {
			samples = append(samples, s)
			if n == 5 {
				cancel()
				return
			}
			n++
			publish(t, pub, topic, payment(fmt.Sprint("pay:", n)), payment(fmt.Sprint("pay:", n)), payment(fmt.Sprint("pay:", n, "b")))
		}})
		if err != nil {
			t.Fatal(err)
		}
		duplicates := map[bool]int64{true: 5, false: -1}[idmp]
		if o.Added != 10 || o.Duplicates != duplicates || o.Length != 11 || o.Lag != 11 || o.Window.Duration != time.Minute || o.Lasted <= 0 || o.Rate <= 0 || o.Peak < o.Rate || o.Looked {
			t.Errorf("%+v", o)
		}
		if last := samples[len(samples)-1]; len(samples) != 6 || last.Added != 10 || last.Duplicates != duplicates || samples[0].Added != 0 || last.Of != time.Hour {
			t.Errorf("%+v", samples)
		}
		if mode := map[bool]publisher.Mode{true: publisher.ModeIDMP, false: publisher.ModeLatch}[idmp]; o.Mode != mode || idmp && o.Window.Entries != 10_000 {
			t.Errorf("%+v", o)
		}
		o, err = look.Observe(t.Context(), topic, inspect.Watch{For: 50 * time.Millisecond, Every: 10 * time.Millisecond})
		if err != nil || o.Lasted < 40*time.Millisecond || o.Added != 0 {
			t.Errorf("to the end: %+v, %v", o, err)
		}
	})
}

// Ages come from the hooks of a publisher.
func TestAgesOfRetries(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, client redis.UniversalClient, _ bool) {
		var ages window.Ages
		topic := testserver.Topic(t)
		pub := newPublisher(t, client, func(c *publisher.Config) { c.Hooks = []publisher.Hooks{ages.Hooks()} })
		publish(t, pub, topic, payment("pay:1"), payment("pay:2"))
		first := time.Now()
		if d := ages.Distribution(); d.Count != 0 {
			t.Errorf("without retries: %+v", d)
		}
		testserver.Eventually(t, within, func() error {
			if time.Since(first) < 300*time.Millisecond {
				return errors.New("too early")
			}
			return nil
		})
		publish(t, pub, topic, payment("pay:1"))
		other := payment("pay:2")
		other.Payload = []byte("another event")
		if _, err := pub.Send(t.Context(), topic, other); !errors.Is(err, publisher.ErrConflict) {
			t.Fatalf("%v", err)
		}
		if d := ages.Distribution(); d.Count != 1 || d.Max < 250*time.Millisecond || d.Max > 10*time.Second {
			t.Errorf("%+v", d)
		}
	})
}

// A right is missing: Check names it.
func TestRightsOfInspecting(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s, topic := testserver.Shared(t, kind), testserver.Topic(t)
			pub := newPublisher(t, s.Client(), func(c *publisher.Config) { c.Mode = publisher.ModeLatch })
			publish(t, pub, topic, payment("pay:1"))
			if err := s.Client().XGroupCreate(t.Context(), topic, "billing", "0").Err(); err != nil {
				t.Fatal(err)
			}
			keys := []string{"~" + topic, "~{" + topic + "}*"}
			rights := []string{"xinfo|stream", "xinfo|groups", "xinfo|consumers", "xpending", "xrange", "xrevrange", "hgetall", "get", "pttl", "xlen"}
			name := fmt.Sprint("look-", time.Now().UnixNano(), "-")
			for n, without := range append([]string{""}, rights...) {
				own := slices.Clone(keys)
				for _, r := range rights {
					if r != without {
						own = append(own, "+"+r)
					}
				}
				look := newInspector(t, s.User(name+fmt.Sprint(n), own...))
				missing, err := look.Check(t.Context(), topic)
				want := strings.ToUpper(strings.ReplaceAll(without, "|", " "))
				if strings.Join(missing, " ") != want || (err == nil) != (without == "") || err != nil && !strings.Contains(err.Error(), want) {
					t.Errorf("without %q: %v, %v", without, missing, err)
				}
				if without != "" {
					continue
				}
				// These are enough; what needs more is said.
				got, err := look.Topic(t.Context(), topic)
				if err != nil || got.Stream.Length != 1 || got.Stream.Memory != -1 || !strings.Contains(strings.Join(got.Notes, " "), "memory") {
					t.Errorf("%+v, %v", got, err)
				}
				if l, err := look.Latch(t.Context(), topic, "payment-service", "pay:1"); err != nil || l.Entry != inspect.EntryThere {
					t.Errorf("%+v, %v", l, err)
				}
				if d, err := look.Duplicates(t.Context(), topic, inspect.Scan{}); err != nil || d.Entries != 1 {
					t.Errorf("%+v, %v", d, err)
				}
			}
			stranger := newInspector(t, s.User(name+"stranger", "~other", "+@all"))
			if _, err := stranger.Topic(t.Context(), topic); err == nil || !strings.Contains(err.Error(), "lacks a right") {
				t.Errorf("%v", err)
			}
		})
	}
}

// A large stream is not read in order to be looked at.
func TestLargeStreamIsNotRead(t *testing.T) {
	t.Parallel()
	s := testserver.Start(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	pub := newPublisher(t, client)
	large := strings.Repeat("x", 1<<20)
	for i := range 20 {
		msg := payment(fmt.Sprint("pay:", i))
		msg.Payload = []byte(large)
		publish(t, pub, topic, msg)
	}
	sent := func() (n int64) {
		info := client.Info(t.Context(), "stats").Val()
		for line := range strings.Lines(info) {
			_, _ = fmt.Sscanf(line, "total_net_output_bytes:%d", &n)
		}
		return n
	}
	before := sent()
	look := newInspector(t, client)
	if got, err := look.Topic(t.Context(), topic); err != nil || got.Stream.Length != 20 || got.Stream.LastID == "" {
		t.Fatalf("%+v, %v", got, err)
	}
	topics(t, look, "*")
	if n := sent() - before; n > 3<<20 {
		t.Errorf("%d bytes were sent, more than the first and last entry", n)
	}
}
