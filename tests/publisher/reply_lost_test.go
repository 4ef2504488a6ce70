package publisher_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The reply of the append is lost: it goes out again, and is recognised as its own first try.
func TestReplyOfTheAppendLost(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		p := newPublisher(t, link.Client(), mode(m))
		mustPublish(t, p, topic, payment(0)) // sets up

		link.LoseNext(1, "XADD", "EVAL")
		msg := payment(1)
		r := mustPublish(t, p, topic, msg)[0]
		if link.Stats().Lost != 1 {
			t.Fatal("no reply was lost: the test tests nothing")
		}
		if m != publisher.ModeIDMPAuto { // where every try has the same UUID
			wantVerdict(t, r, publisher.VerdictAdded)
		}
		if !r.Resent || r.Attempts != 2 {
			t.Errorf("receipt does not say that it was sent again: %+v", r)
		}
		wantEntries(t, s.Client(), topic, 2)
		last, err := s.Client().XRevRangeN(t.Context(), topic, "+", "-", 1).Result()
		if err != nil || last[0].ID != r.EntryID {
			t.Errorf("the receipt names entry %s, the stream has %v, %v", r.EntryID, last, err)
		}
	})
}

// The reply of the set-up itself is lost: layout and window are there all the same.
func TestReplyOfTheSetUpLost(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		p := newPublisher(t, link.Client(), mode(m))
		link.LoseNext(1, "HSET")
		wantVerdict(t, mustPublish(t, p, topic, payment(1))[0], publisher.VerdictAdded)
		if link.Stats().Lost != 1 {
			t.Fatal("no reply was lost")
		}
		wantVerdict(t, mustPublish(t, p, topic, payment(1))[0], publisher.VerdictDuplicate)
		wantEntries(t, s.Client(), topic, 1)
	})
}

// Through a link that loses 5 % of the replies every publish returns nil, and each
// event is in the stream once. The plain publisher's count stands beside it.
func TestLossyLink(t *testing.T) {
	const events, goroutines = 5000, 16
	send := func(t *testing.T, p message.Publisher, topic string) {
		var wg sync.WaitGroup
		for g := range goroutines {
			wg.Go(func() {
				for n := g; n < events; n += goroutines {
					if err := p.Publish(topic, payment(n)); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		link.LoseRate(0.05, 1, "XADD", "EVAL")
		var seen observe.Events[publisher.Receipt]
		p := newPublisher(t, link.Client(), mode(m), func(c *publisher.Config) {
			c.Hooks = []publisher.Hooks{{OnPublish: seen.Add}}
		})
		send(t, p, topic)
		lost := link.Stats().Lost
		if lost < 10 {
			t.Fatalf("only %d replies were lost", lost)
		}
		wantEntries(t, s.Client(), topic, events)
		added, resent := 0, 0
		for _, r := range seen.All() {
			if r.Verdict == publisher.VerdictAdded {
				added++
			}
			if r.Resent {
				resent++
			}
		}
		if len(seen.All()) != events || resent == 0 || m != publisher.ModeIDMPAuto && added != events {
			t.Errorf("%d receipts, %d added, %d resent of %d events", len(seen.All()), added, resent, events)
		}
		t.Logf("%d events, %d replies lost, %d messages sent again, %d entries", events, lost, resent, entries(t, s.Client(), topic))
	})
	t.Run("watermill-redisstream", func(t *testing.T) {
		s := testserver.Shared(t, testserver.Redis86)
		topic := testserver.Topic(t)
		link := faultlink.New(t, s.Addr())
		link.LoseRate(0.05, 1, "XADD")
		// With the default of three repeats one in 160,000 publishes would fail: some runs in a hundred.
		client := link.Client(func(o *redis.Options) { o.MaxRetries = 10 })
		p, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, watermill.NopLogger{})
		if err != nil {
			t.Fatal(err)
		}
		send(t, p, topic)
		n := entries(t, s.Client(), topic)
		if n <= events {
			t.Errorf("%d entries: the link does not do what it is for", n)
		}
		t.Logf("%d events, %d replies lost, %d entries", events, link.Stats().Lost, n)
	})
}

// The connection stalls, and the application tries again by itself. A caller's context ends the call in time with any options of the
// client.
func TestStallThenApplicationRetry(t *testing.T) {
	options := map[string]func(*redis.Options){
		"defaults":                func(*redis.Options) {},
		"ContextTimeoutEnabled":   func(o *redis.Options) { o.ContextTimeoutEnabled = true },
		"no retries":              func(o *redis.Options) { o.MaxRetries = -1 },
		"pool of one":             func(o *redis.Options) { o.PoolSize = 1 },
		"long time-outs":          func(o *redis.Options) { o.ReadTimeout, o.WriteTimeout = 30*time.Second, 30*time.Second },
		"long pool time-out":      func(o *redis.Options) { o.PoolTimeout = 30 * time.Second },
		"RESP2":                   func(o *redis.Options) { o.Protocol = 2 },
		"write stalled from dial": func(o *redis.Options) { o.DialTimeout = 30 * time.Second },
	}
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		for name, option := range options {
			if name != "defaults" && m != publisher.ModeIDMP {
				continue // the client's options and the mode have nothing to do with each other
			}
			t.Run(name, func(t *testing.T) {
				topic := testserver.Topic(t)
				link := faultlink.New(t, s.Addr())
				p := newPublisher(t, link.Client(option), mode(m))
				mustPublish(t, p, topic, payment(0))
				direction := faultlink.Both
				if name == "write stalled from dial" {
					link.Cut()
				} else {
					direction = faultlink.Replies
				}
				link.Stall(direction)
				const bound = 150 * time.Millisecond
				took := time.Duration(math.MaxInt64)
				for try := 0; try < 5 && took > bound; try++ { // one may be late for want of a processor
					start := time.Now()
					ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
					msg := payment(1)
					msg.SetContext(ctx)
					err := p.Publish(topic, msg)
					took = time.Since(start)
					cancel()
					if !errors.Is(err, publisher.ErrOutcomeUnknown) && !errors.Is(err, publisher.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("error %v", err)
					}
					if publisher.IsPermanent(err) {
						t.Error("the error is permanent")
					}
				}
				if took > bound {
					t.Errorf("returned after %v", took)
				}
				link.Resume()
				mustPublish(t, p, topic, payment(1))
				wantEntries(t, s.Client(), topic, 2)
			})
		}
	})
}

// The producer is killed between the append and its reply, and publishes again when it is
// restarted.
func TestProducerDiesBetweenAppendAndReply(t *testing.T) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) {
			s := testserver.Shared(t, kind)
			client, topic := s.Client(), testserver.Topic(t)
			link := faultlink.New(t, s.Addr())
			mustPublish(t, newPublisher(t, client), topic, payment(0))
			c := startChild(t, orders{Addr: link.Addr(), Topic: topic, From: 1, To: 2})
			appended, killed := make(chan struct{}), make(chan struct{})
			t.Cleanup(func() { closeOnce(killed) })
			link.Lose(func(c faultlink.Command) bool {
				if len(c.Queued) == 0 || !c.Is("XADD", "EVAL") {
					return false // of the set-up
				}
				closeOnce(appended)
				<-killed // nothing passes the link meanwhile, so the child can't try again
				return true
			})
			c.begin()
			select {
			case <-appended:
			case <-time.After(time.Minute):
				t.Fatal("the child did not append")
			}
			c.kill()
			closeOnce(killed)
			if line := c.next(); line != "" {
				t.Errorf("the child says %q", line)
			}
			r := mustPublish(t, newPublisher(t, client), topic, payment(1))[0]
			wantVerdict(t, r, publisher.VerdictDuplicate)
			wantEntries(t, client, topic, 2)
		})
	}
}

// closeOnce closes a channel that may be closed; not for two goroutines at once.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

// The connection is cut when half of a batch is done, and the caller repeats the call.
func TestBatchHalfDone(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		topic := testserver.Topic(t)
		client := s.Client()
		link := faultlink.New(t, s.Addr())
		p := newPublisher(t, link.Client(), mode(m), func(c *publisher.Config) { c.RetryFor = 2 * time.Second })
		mustPublish(t, p, topic, payment(0))

		// The replies of the second batch are lost, in every try; a third one would
		// get through.
		link.Lose(func(c faultlink.Command) bool {
			return slices.ContainsFunc(c.Queued, func(q faultlink.Command) bool {
				return slices.ContainsFunc(q.Args, func(arg string) bool { return strings.Contains(arg, `"payment_id":"p300"`) })
			})
		})
		msgs := payments(1, 1001)
		receipts, err := p.Send(t.Context(), topic, msgs...)
		var failed *publisher.PublishError
		if !errors.As(err, &failed) || !errors.Is(err, publisher.ErrOutcomeUnknown) || !errors.Is(err, publisher.ErrNotSent) {
			t.Fatalf("error %v", err)
		}
		in := 0
		for i, r := range receipts {
			switch {
			case r.Err == nil:
				if in++; i+1 != in {
					t.Fatal("a later message is said to be in before an earlier one")
				}
			case r.Verdict != publisher.VerdictUnknown || r.EntryID != "":
				t.Fatalf("an unknown outcome with a verdict: %+v", r)
			}
		}
		if n := entries(t, client, topic) - 1; in == 0 || in >= n || n > 512 {
			t.Fatalf("%d are said to be in, %d are", in, n)
		}

		link.Heal()
		again, err := p.Send(t.Context(), topic, msgs...)
		if err != nil {
			t.Fatal(err)
		}
		duplicates := 0
		for _, r := range again {
			if r.Verdict == publisher.VerdictDuplicate {
				duplicates++
			}
		}
		if duplicates < in {
			t.Errorf("%d duplicates, %d were in", duplicates, in)
		}
		want := []string{string(payment(0).Payload)}
		for _, msg := range msgs {
			want = append(want, string(msg.Payload))
		}
		if got := payloads(t, client, topic); !slices.Equal(got, want) {
			t.Errorf("%d entries, in another order or number", len(got))
		}
	})
}

// Close returns when the calls have: here one whose reply takes a while.
func TestCloseWaitsForWhatIsBeingSent(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	topic := testserver.Topic(t)
	link := faultlink.New(t, s.Addr())
	p := newPublisher(t, link.Client())
	mustPublish(t, p, topic, payment(0))
	link.Stall(faultlink.Replies)
	result := make(chan error, 1)
	go func() { result <- p.Publish(topic, payment(1)) }()
	testserver.Eventually(t, 5*time.Second, func() error {
		if entries(t, s.Client(), topic) < 2 {
			return errors.New("not sent yet")
		}
		return nil
	})
	var resumed atomic.Bool
	time.AfterFunc(200*time.Millisecond, func() {
		resumed.Store(true)
		link.Resume()
	})
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if !resumed.Load() {
		t.Error("Close did not wait for the call")
	}
	if err := <-result; err != nil {
		t.Error(err)
	}
}

// Close is called while there are publishers.
func TestCloseWhilePublishing(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		topic := testserver.Topic(t)
		client := s.Client()
		p := newPublisher(t, client, mode(m))
		var in sync.Map
		var wg sync.WaitGroup
		begun := make(chan struct{}, 64)
		for g := range 64 {
			wg.Go(func() {
				for n := 0; ; n++ {
					msg := payment(g*100_000 + n)
					err := p.Publish(topic, msg)
					if errors.Is(err, publisher.ErrClosed) {
						return
					}
					if err != nil {
						t.Error(err)
						return
					}
					in.Store(string(msg.Payload), true)
					if n == 3 {
						begun <- struct{}{}
					}
				}
			})
		}
		for range 64 {
			<-begun
		}
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		closed := entries(t, client, topic)
		wg.Wait()
		wantEntries(t, client, topic, closed) // nothing was still on its way
		stored := map[string]bool{}
		for _, payload := range payloads(t, client, topic) {
			if stored[payload] {
				t.Errorf("%s is there twice", payload)
			}
			stored[payload] = true
		}
		acknowledged := 0
		in.Range(func(payload, _ any) bool {
			acknowledged++
			if !stored[payload.(string)] {
				t.Errorf("%s was acknowledged and is not there", payload)
			}
			return true
		})
		if acknowledged < 256 || len(stored) != acknowledged {
			t.Errorf("%d acknowledged, %d stored", acknowledged, len(stored))
		}
		if err := client.Ping(t.Context()).Err(); err != nil {
			t.Errorf("the caller's client does not work: %v", err)
		}
		if err := p.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
	})
}

// shareABatch publishes special amid many other callers, over a link so slow that
// they share transactions, until it has seen that special's first one was shared. It
// returns the errors of the others and special's receipt.
func shareABatch(t *testing.T, s *testserver.Server, link *faultlink.Link, m publisher.Mode, special *message.Message) (others []error, _ publisher.Receipt) {
	t.Helper()
	var retries observe.Events[publisher.RetryEvent]
	p := newPublisher(t, link.Client(), mode(m), func(c *publisher.Config) {
		c.RetryFor = 12 * time.Second // of a hundred callers on a busy machine
		c.Hooks = []publisher.Hooks{{OnRetry: retries.Add}}
	})
	topic := testserver.Topic(t)
	mustPublish(t, p, topic, payment(0))
	link.Slow(5*time.Millisecond, 5*time.Millisecond)
	var errs observe.Events[error]
	var wg sync.WaitGroup
	ctx, stop := context.WithCancel(t.Context())
	for g := range 100 {
		wg.Go(func() {
			for n := 1; ctx.Err() == nil; n++ {
				if err := p.Publish(topic, payment(g*100_000+n)); err != nil {
					errs.Add(err)
				}
			}
		})
	}
	shared := func(e publisher.RetryEvent) bool { return e.Attempt == 1 && e.Messages > 10 }
	var r publisher.Receipt
	for try := 0; try < 10 && !slices.ContainsFunc(retries.All(), shared); try++ {
		_ = p.Publish(topic, special)
		r, _ = publisher.ReceiptOf(special)
	}
	stop()
	wg.Wait()
	if !slices.ContainsFunc(retries.All(), shared) {
		t.Fatalf("the batch was never shared: %+v", retries.All())
	}
	if n := entries(t, s.Client(), topic); n < 200 {
		t.Errorf("only %d entries: the others were kept", n)
	}
	return errs.All(), r
}

// One caller's messages that the server refuses don't fail the others that share the
// batch.
func TestOneCallerDoesNotFailTheOthers(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86, testserver.Set("proto-max-bulk-len", "1mb"))
	link := faultlink.New(t, s.Addr())
	large := with(1, "%s", strings.Repeat("x", 1<<20+1))
	large.Metadata.Set(eventkey.MetadataKey, "large")
	others, r := shareABatch(t, s, link, publisher.ModeIDMP, large)
	// The server closes the connection while the client still writes: whether its
	// words arrive is a matter of luck in each try.
	if r.Attempts < 2 || r.Verdict != publisher.VerdictUnknown || r.Err == nil {
		t.Errorf("the message above the server's limit: %+v", r)
	}
	for _, err := range others {
		if err != nil {
			t.Error(err)
		}
	}
}

// A caller whose replies never come back keeps the others for one try only.
func TestOneCallerDoesNotKeepTheOthers(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		link := faultlink.New(t, s.Addr())
		link.Lose(func(c faultlink.Command) bool {
			return slices.ContainsFunc(c.Queued, func(q faultlink.Command) bool {
				return slices.ContainsFunc(q.Args, func(arg string) bool { return strings.Contains(arg, `"unlucky"`) })
			})
		})
		others, r := shareABatch(t, s, link, m, with(1, `{"order_id":"1","payment_id":"unlucky"}`))
		if r.Attempts < 2 || !errors.Is(r.Err, publisher.ErrOutcomeUnknown) {
			t.Errorf("the unlucky one: %+v", r)
		}
		for _, err := range others {
			if err != nil {
				t.Error(err)
			}
		}
	})
}

// The commands of the publisher are not repeated by go-redis, which would hide a
// lost reply. Its transactions are not anyway, as of v9.23; single commands are.
func TestCommandIsSentOnce(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	link := faultlink.New(t, s.Addr())
	client, key := link.Client(), testserver.Topic(t)
	link.LoseNext(1, "INCR")
	cmd := server.NewCommand(t.Context(), 1, "incr", key)
	if err := client.Process(t.Context(), cmd); server.Classify(err) != server.Ambiguous {
		t.Errorf("the error %v was not handed back", err)
	}
	if n, err := client.Get(t.Context(), key).Int(); err != nil || n != 1 {
		t.Errorf("sent %d times, %v", n, err)
	}
}
