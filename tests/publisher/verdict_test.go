package publisher_test

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// with is payment n with another payload.
func with(n int, format string, args ...any) *message.Message {
	msg := payment(n)
	msg.Payload = fmt.Appendf(nil, format, args...)
	return msg
}

// The same behaviour on every server, by the mode that it can do.
func TestEveryServerBehavesTheSame(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, topic := s.Client(), testserver.Topic(t)
		var windows observe.Events[publisher.WindowEvent]
		p := newPublisher(t, client, func(c *publisher.Config) { c.Hooks = []publisher.Hooks{{OnWindow: windows.Add}} })
		first := mustPublish(t, p, topic, payment(1))[0]
		wantVerdict(t, first, publisher.VerdictAdded)
		var again publisher.Receipt
		testserver.Eventually(t, 10*time.Second, func() error { // the entry gets older
			again = mustPublish(t, p, topic, payment(1))[0]
			wantVerdict(t, again, publisher.VerdictDuplicate)
			if again.Age <= 0 {
				return errors.New("the original has no age")
			}
			return nil
		})
		want := publisher.ModeLatch
		if s.Kind().HasIDMP() {
			want = publisher.ModeIDMP
		}
		if again.EntryID != first.EntryID || again.Mode != want {
			t.Errorf("receipts %+v and %+v", first, again)
		}
		if w := windows.All(); len(w) != 1 || w[0].Kind != publisher.WindowEffective || w[0].Effective.Duration != publisher.DefaultWindowDuration {
			t.Errorf("window events %+v", w)
		}
		err := p.Publish(topic, with(1, `{"amount":1,"order_id":"1000","payment_id":"p1"}`))
		wantConflict(t, err, "$.amount")
		var conflict *publisher.ConflictError
		if errors.As(err, &conflict) && (conflict.EntryID != first.EntryID || conflict.Key != "pay:1000:p1") {
			t.Errorf("conflict %+v", conflict)
		}
		batch := mustPublish(t, p, topic, payment(2), payment(1), payment(2), payment(3))
		for i, v := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate, publisher.VerdictDuplicate, publisher.VerdictAdded} {
			wantVerdict(t, batch[i], v)
		}
		wantEntries(t, client, topic, 3)
	})
}

// IDMP is asked for where there is none.
func TestExplicitIDMPOnAnOldServer(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		if s.Kind().HasIDMP() {
			t.Skip("has IDMP")
		}
		for _, m := range []publisher.Mode{publisher.ModeIDMP, publisher.ModeIDMPAuto} {
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client, mode(m))
			err := p.Publish(topic, payment(1))
			if !errors.Is(err, publisher.ErrModeUnsupported) || publisher.IsPermanent(err) {
				t.Errorf("%v: error %v", m, err)
			}
			if _, err := p.Check(t.Context(), topic); !errors.Is(err, publisher.ErrModeUnsupported) {
				t.Errorf("%v: Check says %v", m, err)
			}
			if keys, err := client.Keys(t.Context(), "*"+topic+"*").Result(); err != nil || len(keys) != 0 {
				t.Errorf("%v: written: %v, %v", m, keys, err)
			}
		}
	})
}

// An event is published again after its entry was deleted.
func TestEventAfterDelete(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m))
		r := mustPublish(t, p, topic, payment(1))[0]
		if err := client.XDel(t.Context(), topic, r.EntryID).Err(); err != nil {
			t.Fatal(err)
		}
		wantVerdict(t, mustPublish(t, p, topic, payment(2))[0], publisher.VerdictAdded)
		gone := mustPublish(t, p, topic, payment(1))[0]
		wantVerdict(t, gone, publisher.VerdictOriginalGone)
		if gone.EntryID != r.EntryID {
			t.Errorf("entry %s, want %s", gone.EntryID, r.EntryID)
		}
		wantEntries(t, client, topic, 1)

		mustPublish(t, p, topic, payment(3))
		if err := client.XTrimMaxLen(t.Context(), topic, 0).Err(); err != nil {
			t.Fatal(err)
		}
		wantVerdict(t, mustPublish(t, p, topic, payment(3))[0], publisher.VerdictOriginalGone)
		wantEntries(t, client, topic, 0)
	})
}

// The latch knows the fingerprint of an original that is gone; IDMP does not.
func TestConflictWithAnOriginalThatIsGone(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("another content is another event there")
		}
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m))
		r := mustPublish(t, p, topic, payment(1))[0]
		if err := client.XDel(t.Context(), topic, r.EntryID).Err(); err != nil {
			t.Fatal(err)
		}
		err := p.Publish(topic, with(1, `{"order_id":"1000","payment_id":"p1","amount":1}`))
		if m == publisher.ModeLatch {
			wantConflict(t, err, "")
		} else if err != nil {
			t.Error(err)
		}
	})
}

// DEL of the stream forgets what was in it, in every mode, also for keys that are
// published only after others have made the stream anew.
func TestDeletedStreamIsForgotten(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m))
		mustPublish(t, p, topic, payments(0, 10)...)
		if err := client.Del(t.Context(), topic).Err(); err != nil {
			t.Fatal(err)
		}
		for n := 9; n >= 0; n-- {
			wantVerdict(t, mustPublish(t, p, topic, payment(n))[0], publisher.VerdictAdded)
		}
		for n := range 10 {
			wantVerdict(t, mustPublish(t, p, topic, payment(n))[0], publisher.VerdictDuplicate)
		}
		wantEntries(t, client, topic, 10)
		report, err := p.Check(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		if w := report.Topics[0].Window; w.Duration != publisher.DefaultWindowDuration {
			t.Errorf("the window was not set again: %+v", w)
		}
	})
}

// One key, two payloads: one right after the other, 5,000 times: the same millisecond, often.
func TestSameKeyOtherPayload(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		if m == publisher.ModeIDMPAuto {
			t.Skip("another content is another event there")
		}
		client, topic := s.Client(), testserver.Topic(t)
		p, q := newPublisher(t, client, mode(m)), newPublisher(t, client, mode(m))
		const times = 5000
		for n := range times {
			mustPublish(t, p, topic, payment(n))
			if err := q.Publish(topic, with(n, `{"order_id":"%d","payment_id":"p%d","amount":1}`, 1000+n/2, n)); !errors.Is(err, publisher.ErrConflict) {
				t.Fatalf("payment %d: error %v", n, err)
			}
		}
		wantEntries(t, client, topic, times)
	})
}

// One key, two payloads, from two publishers at once. Exactly one is added, the other is a
// conflict, and the one that was added is what stays.
func TestSameKeyOtherPayloadAtOnce(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		if m == publisher.ModeIDMPAuto {
			t.Skip("another content is another event there")
		}
		client, topic := s.Client(), testserver.Topic(t)
		rivals := []*publisher.Publisher{newPublisher(t, client, mode(m)), newPublisher(t, client, mode(m))}
		const times = 5000
		var added, conflicts atomic.Int64
		winners := make([]string, times)
		for n := range times {
			start := make(chan struct{})
			var wg sync.WaitGroup
			for i, p := range rivals {
				msg := with(n, `{"order_id":"%d","payment_id":"p%d","amount":%d}`, n, n, i)
				wg.Go(func() {
					<-start
					switch err := p.Publish(topic, msg); {
					case err == nil:
						added.Add(1)
						winners[n] = string(msg.Payload)
					case errors.Is(err, publisher.ErrConflict):
						conflicts.Add(1)
					default:
						t.Error(err)
					}
				})
			}
			close(start)
			wg.Wait()
		}
		if added.Load() != times || conflicts.Load() != times {
			t.Errorf("%d added, %d conflicts of %d", added.Load(), conflicts.Load(), times)
		}
		for n, payload := range payloads(t, client, topic) {
			if payload != winners[n] {
				t.Errorf("entry %d is %s, the publish of %s returned Added", n, payload, winners[n])
			}
		}
	})
}

// A conflict stays one when the reply is lost, also with UUIDs made from the key.
func TestConflictWithTheUUIDOfTheOriginal(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("another content is another event there")
		}
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		p := newPublisher(t, link.Client(), mode(m))
		first, other := payment(1), with(1, `{"order_id":"1000","payment_id":"p1","amount":1}`)
		first.UUID = identity.StableUUID("pay:1000:p1")
		other.UUID = first.UUID
		mustPublish(t, p, topic, first)
		link.LoseNext(1, "XADD", "EVAL")
		wantConflict(t, p.Publish(topic, other), "$.amount")
		if link.Stats().Lost != 1 {
			t.Error("no reply was lost")
		}
	})
}

// The same message twice in a call of two batches, and the reply of the second is
// lost: one of them was added.
func TestSameMessageInTwoBatchesOfACall(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		p := newPublisher(t, link.Client(), mode(m))
		mustPublish(t, p, topic, payment(9999))
		msgs := payments(0, 300)
		msgs[299] = msgs[0]
		batch := 0
		link.Lose(func(c faultlink.Command) bool {
			if c.Is("XADD", "EVAL") {
				batch++
				return batch == 2
			}
			return false
		})
		receipts, err := p.Send(t.Context(), topic, msgs...)
		if err != nil {
			t.Fatal(err)
		}
		wantVerdict(t, receipts[0], publisher.VerdictAdded)
		wantVerdict(t, receipts[299], publisher.VerdictDuplicate)
	})
}

// A fingerprint may say that everything is the same.
func TestFingerprintOfNothing(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("the server hashes the whole payload")
		}
		topic := testserver.Topic(t)
		p := newPublisher(t, s.Client(), mode(m), func(c *publisher.Config) {
			c.Fingerprint = eventkey.FingerprintFunc(func(*message.Message) ([]byte, error) { return nil, nil })
		})
		mustPublish(t, p, topic, payment(1))
		wantVerdict(t, mustPublish(t, p, topic, with(1, `{"order_id":"1000","payment_id":"p1","amount":1}`))[0], publisher.VerdictDuplicate)
	})
}

// A field that differs in each try.
func TestFieldLeftOutOfTheFingerprint(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("the server hashes the whole payload")
		}
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m), func(c *publisher.Config) { c.Fingerprint = eventkey.JSONWithout("received_at") })
		body := `{"order_id":"1","payment_id":"p","amount":%d,"received_at":%d}`
		wantVerdict(t, mustPublish(t, p, topic, with(0, body, 5, 1))[0], publisher.VerdictAdded)
		wantVerdict(t, mustPublish(t, p, topic, with(0, body, 5, 2))[0], publisher.VerdictDuplicate)
		wantConflict(t, p.Publish(topic, with(0, body, 6, 3)), "$.amount")
	})
}

// A field of the key is missing.
func TestKeyFieldMissing(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	p := newPublisher(t, client)
	good, bad := payment(1), with(2, `{"order_id":"1000","payment_id":""}`)
	err := p.Publish(topic, good, bad, payment(3))
	var noKey *eventkey.NoKeyError
	if !errors.Is(err, publisher.ErrNoKey) || !errors.As(err, &noKey) || noKey.Field != "$.payment_id" || noKey.UUID != bad.UUID {
		t.Errorf("error %v", err)
	}
	if !publisher.IsPermanent(err) {
		t.Error("not permanent, though a retry can't help")
	}
	if r, _ := publisher.ReceiptOf(good); !errors.Is(r.Err, publisher.ErrNotSent) {
		t.Errorf("the message beside it: %+v", r)
	}
	wantEntries(t, client, topic, 0)
}

// Values that contain the separator don't make one key of two events.
func TestValuesThatContainTheSeparator(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m))
		for _, v := range [][2]string{{"a:b", "c"}, {"a", "b:c"}} {
			msg := with(0, `{"order_id":%q,"payment_id":%q}`, v[0], v[1])
			wantVerdict(t, mustPublish(t, p, topic, msg)[0], publisher.VerdictAdded)
		}
		wantEntries(t, client, topic, 2)
	})
}

// In mode IDMPAuto, metadata that differs in each try does not count.
func TestContentHashAndVolatileMetadata(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	p := newPublisher(t, client, mode(publisher.ModeIDMPAuto), func(c *publisher.Config) { c.Key, c.ContentMetadata = nil, []string{"tenant"} })
	event := func(tenant string) *message.Message {
		msg := payment(1)
		msg.Metadata.Set("trace_id", uuid.NewString())
		msg.Metadata.Set("tenant", tenant)
		return msg
	}
	wantVerdict(t, mustPublish(t, p, topic, event("a"))[0], publisher.VerdictAdded)
	wantVerdict(t, mustPublish(t, p, topic, event("a"))[0], publisher.VerdictDuplicate)
	wantVerdict(t, mustPublish(t, p, topic, event("b"))[0], publisher.VerdictAdded)
	next := event("a")
	eventkey.NextAttempt(next)
	wantVerdict(t, mustPublish(t, p, topic, next)[0], publisher.VerdictAdded)
	wantEntries(t, client, topic, 3)
	last, err := client.XRevRangeN(t.Context(), topic, "+", "-", 1).Result()
	if err != nil {
		t.Fatal(err)
	}
	stored, err := redisstream.DefaultMarshallerUnmarshaller{}.Unmarshal(last[0].Values)
	if err != nil || stored.Metadata.Get(eventkey.MetadataAttempt) != "1" || stored.Metadata.Get("tenant") != "a" || stored.Metadata.Get("trace_id") != "" {
		t.Errorf("stored %+v, %v", stored, err)
	}
}

// A requeue and a replay inside the window are published, and their retries are not.
func TestDeliberateRepublish(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m))
		mustPublish(t, p, topic, payment(1))
		attempts := map[string]func(*message.Message){
			"replay":           eventkey.NextAttempt,
			"second replay":    func(msg *message.Message) { eventkey.NextAttempt(msg); eventkey.NextAttempt(msg) },
			"requeue":          func(msg *message.Message) { msg.Metadata.Set("_watermill_requeuer_retries", "1") },
			"poisoned by one":  func(msg *message.Message) { poison(msg, "charge") },
			"poisoned by next": func(msg *message.Message) { poison(msg, "notify") },
		}
		for name, mark := range attempts {
			for _, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate} {
				msg := payment(1)
				mark(msg)
				if r := mustPublish(t, p, topic, msg)[0]; r.Verdict != want || r.Key != "pay:1000:p1" {
					t.Errorf("%s: %+v, want %v", name, r, want)
				}
			}
		}
		wantEntries(t, client, topic, 1+len(attempts))
	})
}

func poison(msg *message.Message, handler string) {
	msg.Metadata.Set("reason_poisoned", "it failed")
	msg.Metadata.Set("topic_poisoned", "orders")
	msg.Metadata.Set("handler_poisoned", handler)
}

// A handler that runs again and publishes something else by itself: the first one
// stays, it is no error, and the hook receives it.
func TestChildKeyWithOtherContent(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		if m == publisher.ModeIDMPAuto {
			t.Skip("another content is another event there")
		}
		client, topic := s.Client(), testserver.Topic(t)
		var differs observe.Events[publisher.Receipt]
		p := newPublisher(t, client, mode(m), func(c *publisher.Config) {
			c.Key, c.Hooks = nil, []publisher.Hooks{{OnChildDiffers: differs.Add}}
		})
		run := func(payload string) publisher.Receipt {
			ctx := eventkey.WithHandled(t.Context(), eventkey.Handled{Namespace: "shop", Handler: "charge", Topic: "orders", Key: "pay:1"})
			msg := message.NewMessage(uuid.NewString(), []byte(payload))
			msg.SetContext(ctx)
			return mustPublish(t, p, topic, msg)[0]
		}
		wantVerdict(t, run("first"), publisher.VerdictAdded)
		wantVerdict(t, run("first"), publisher.VerdictDuplicate)
		wantVerdict(t, run("second"), publisher.VerdictDuplicate)
		if len(differs.All()) != 1 {
			t.Errorf("the hook received it %d times", len(differs.All()))
		}
		wantEntries(t, client, topic, 1)
	})
}

// Receipts reach a caller that does not see the messages.
func TestCollectReceipts(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	p := newPublisher(t, s.Client())
	ctx, receipts := publisher.CollectReceipts(t.Context())
	msg := payment(1)
	msg.SetContext(ctx)
	mustPublish(t, p, topic, msg)
	if _, err := p.Send(ctx, topic, payment(1), payment(2)); err != nil {
		t.Fatal(err)
	}
	var verdicts []string
	for _, r := range receipts.All() {
		verdicts = append(verdicts, r.Verdict.String())
	}
	if fmt.Sprint(verdicts) != "[added duplicate added]" {
		t.Errorf("collected %v", verdicts)
	}
}

// Several producers on one topic are remembered apart, and are bounded.
func TestProducerOfEachMessage(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	p := newPublisher(t, client, func(c *publisher.Config) { c.Producer = eventkey.Metadata(eventkey.MetadataProducer) })
	from := func(producer string) *message.Message {
		msg := payment(1)
		msg.Metadata.Set(eventkey.MetadataProducer, producer)
		return msg
	}
	for i := range 64 {
		wantVerdict(t, mustPublish(t, p, topic, from(fmt.Sprint("service-", i)))[0], publisher.VerdictAdded)
	}
	wantVerdict(t, mustPublish(t, p, topic, from("service-7"))[0], publisher.VerdictDuplicate)
	if err := p.Publish(topic, from("service-64")); !errors.Is(err, publisher.ErrProducers) {
		t.Errorf("65th producer: %v", err)
	}
	if err := p.Publish(topic, from("a/b")); !errors.Is(err, publisher.ErrProducerID) {
		t.Errorf("slash: %v", err)
	}
}

// A latch that this library has not written proves nothing.
func TestForeignLatch(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis70)
	client, topic := s.Client(), testserver.Topic(t)
	p := newPublisher(t, client)
	mustPublish(t, p, topic, payment(0))
	if err := client.Set(t.Context(), "{"+topic+"}:idem:latch:payment-service:pay:1000:p1", "payment-service", 0).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.RPush(t.Context(), "{"+topic+"}:idem:latch:payment-service:pay:1001:p2", "x").Err(); err != nil {
		t.Fatal(err)
	}
	for n := 1; n <= 2; n++ {
		if err := p.Publish(topic, payment(n)); !errors.Is(err, publisher.ErrLatchUnconfirmed) {
			t.Errorf("payment %d: error %v", n, err)
		}
	}
	wantEntries(t, client, topic, 1)
}
