package publisher_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func window(d time.Duration, entries int) change {
	return func(c *publisher.Config) { c.Window = publisher.Window{Duration: d, Entries: entries} }
}

// streamInfo reads what the server does for a stream.
func streamInfo(t testing.TB, client redis.UniversalClient, topic string) server.StreamInfo {
	t.Helper()
	info, exists, err := server.ReadStreamInfo(context.Background(), client, topic)
	if err != nil || !exists {
		t.Fatalf("no stream %q: %v", topic, err)
	}
	return info
}

// shuffled is 0…n-1 in another order, the same for each run.
func shuffled(n int) []int {
	return rand.New(rand.NewPCG(1, 2)).Perm(n)
}

func inOrder(n int) []int {
	list := make([]int, n)
	for i := range list {
		list[i] = i
	}
	return list
}

// publishAll publishes the payments in calls of a thousand.
func publishAll(t testing.TB, p *publisher.Publisher, topic string, numbers []int) {
	t.Helper()
	for chunk := range slices.Chunk(numbers, 1000) {
		msgs := make([]*message.Message, len(chunk))
		for i, n := range chunk {
			msgs[i] = payment(n)
		}
		if err := p.Publish(topic, msgs...); err != nil {
			t.Fatal(err)
		}
	}
}

// A window of 3,600 s and 100,000 entries, which the server refuses as one producer,
// holds: 100,000 keys, and all of them again, in the same order and shuffled. The
// same order is the hard case: each shard forgets first in, first out.
func TestWindowHoldsWhatItPromises(t *testing.T) {
	for _, c := range []struct{ window, percent int }{
		{100_000, 100},
		{20_000, 95}, {20_000, 105}, // short of it and beyond, where a smaller one does
	} {
		for name, order := range map[string]func(int) []int{"same order": inOrder, "shuffled": shuffled} {
			t.Run(fmt.Sprintf("%d percent of %d/%s", c.percent, c.window, name), func(t *testing.T) {
				t.Parallel()
				s := testserver.Shared(t, testserver.Redis86)
				client, topic := s.Client(), testserver.Topic(t)
				defer client.Del(context.Background(), topic)
				p := newPublisher(t, client, window(time.Hour, c.window))
				n := c.window * c.percent / 100
				publishAll(t, p, topic, inOrder(n))
				publishAll(t, p, topic, order(n))
				if c.percent <= 100 {
					wantEntries(t, client, topic, n)
				}
				t.Logf("%d keys twice: %d entries", n, entries(t, client, topic))
			})
		}
	}
}

// Ten times the window: what came long ago is added again, and hook and log say that
// the window was too small.
func TestTenTimesTheWindow(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	defer client.Del(context.Background(), topic)
	var events observe.Events[publisher.WindowEvent]
	p := newPublisher(t, client, window(time.Hour, 10_000), func(c *publisher.Config) {
		c.Hooks = []publisher.Hooks{{OnWindow: events.Add}}
	})
	publishAll(t, p, topic, inOrder(10_000))
	if list := events.All(); len(list) != 1 {
		t.Errorf("events within the window: %+v", list)
	}
	publishAll(t, p, topic, inOrder(100_000))
	wantEntries(t, client, topic, 100_000)
	list := events.All()
	// The second one and, on a machine that takes minutes, more of them.
	if len(list) < 2 || slices.ContainsFunc(list[1:], func(e publisher.WindowEvent) bool { return e.Kind != publisher.WindowOverflow }) || list[1].Kind != publisher.WindowOverflow || list[1].Evicted <= 0 || list[1].Effective.Entries != 10_000 {
		t.Fatalf("events %+v", list)
	}
	// The newest keys are remembered, the oldest are not.
	wantVerdict(t, mustPublish(t, p, topic, payment(99_999))[0], publisher.VerdictDuplicate)
	wantVerdict(t, mustPublish(t, p, topic, payment(0))[0], publisher.VerdictAdded)
	// At the end all are reported that have been forgotten, up to the last batches.
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	var evicted int64
	for _, e := range events.All()[1:] {
		evicted += e.Evicted
	}
	if evicted < 85_000 || evicted > 90_002 {
		t.Errorf("%d were reported as forgotten, 90,000 were", evicted)
	}
}

// Keys that expire in time are no overflow.
func TestExpiryIsNoOverflow(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	var events observe.Events[publisher.WindowEvent]
	p := newPublisher(t, client, window(time.Second, 10_000), func(c *publisher.Config) {
		c.Hooks = []publisher.Hooks{{OnWindow: events.Add}}
	})
	// The rate is well below the window's: 2,000 a second at the most.
	rate := time.NewTicker(50 * time.Millisecond)
	defer rate.Stop()
	n, begun := 0, time.Now()
	for ; n < 4000 || time.Since(begun) < 4*time.Second; n += 100 {
		<-rate.C
		mustPublish(t, p, topic, payments(n, n+100)...)
	}
	if list := events.All(); len(list) != 1 {
		t.Errorf("%d published, events %+v", n, list)
	}
}

// Twenty processes start at once on a new topic, with two windows. One of
// them is in force for the first entry, and every key is added once.
func TestTwentyInstancesStartAtOnce(t *testing.T) {
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) {
			s := testserver.Shared(t, kind)
			client, topic := s.Client(), testserver.Topic(t)
			const events = 50
			windows := []publisher.Window{{Duration: 600 * time.Second, Entries: 5000}, {Duration: 7200 * time.Second, Entries: 50_000}}
			var children []*child
			for i := range 20 {
				children = append(children, startChild(t, orders{Addr: s.Addr(), Topic: topic, Window: windows[i%2], To: events}))
			}
			for _, c := range children {
				c.begin()
			}
			verdicts := map[string]int{}
			for _, c := range children {
				for range events {
					verdicts[c.next()]++
				}
			}
			if verdicts["added"] != events || verdicts["duplicate"] != 19*events {
				t.Errorf("verdicts %v", verdicts)
			}
			wantEntries(t, client, topic, events)
			record, err := client.HGetAll(t.Context(), rediskey.LayoutKey(topic)).Result()
			if err != nil {
				t.Fatal(err)
			}
			if kind.HasIDMP() {
				info := streamInfo(t, client, topic)
				// The one who made the layout also set the window.
				want := map[string]int64{"1": 600, "6": 7200}[record["shards"]]
				if want == 0 || info.IDMPDuration != want || info.IDMPMaxSize != 10_000 || info.IIDsTracked != events {
					t.Errorf("layout %v, stream %+v", record, info)
				}
			} else if record["mode"] != "latch" {
				t.Errorf("layout %v", record)
			}
		})
	}
}

// Instances with other settings come one after the other, while a third
// retries. Nothing is wiped, nothing is split, and both values are reported.
func TestOtherSettingsInTheNextVersion(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	old := newPublisher(t, client, window(time.Hour, 5000))
	mustPublish(t, old, topic, payments(0, 100)...)

	stop, done := make(chan struct{}), make(chan struct{})
	go func() { // the third one
		defer close(done)
		p := newPublisher(t, client, window(time.Hour, 5000))
		for {
			for n := range 100 {
				if err := p.Publish(topic, payment(n)); err != nil {
					t.Error(err)
				}
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	var wg sync.WaitGroup
	for _, w := range []publisher.Window{{Duration: 2 * time.Hour, Entries: 5000}, {Duration: time.Hour, Entries: 100_000}, {Duration: time.Minute, Entries: 200_000}} {
		var windows observe.Events[publisher.WindowEvent]
		var layouts observe.Events[publisher.LayoutEvent]
		p := newPublisher(t, client, window(w.Duration, w.Entries), func(c *publisher.Config) {
			c.Hooks = []publisher.Hooks{{OnWindow: windows.Add, OnLayout: layouts.Add}}
		})
		for n := range 100 {
			wantVerdict(t, mustPublish(t, p, topic, payment(n))[0], publisher.VerdictDuplicate)
		}
		for _, ev := range windows.All() {
			if ev.Wanted != w || ev.Effective.Duration != time.Hour {
				t.Errorf("window event %+v", ev)
			}
		}
		if w.Duration != time.Hour && len(windows.All()) != 2 {
			t.Errorf("a window of %v: events %+v", w.Duration, windows.All())
		}
		if w.Entries > 10_000 {
			if l := layouts.All(); len(l) != 1 || l[0].Layout.Shards != 1 || l[0].Wanted.Shards < 11 {
				t.Errorf("layout events %+v", l)
			}
		}
	}
	close(stop)
	<-done
	wg.Wait()
	wantEntries(t, client, topic, 100)
}

// The window is part of what the first instance decides: a stream that is made anew
// gets it again, whoever makes it.
func TestWindowComesBackWithTheStream(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	mustPublish(t, newPublisher(t, client, window(time.Hour, 5000)), topic, payment(1))
	if err := client.Del(t.Context(), topic).Err(); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, newPublisher(t, client, window(2*time.Hour, 5000)), topic, payment(1))
	if info := streamInfo(t, client, topic); info.IDMPDuration != 3600 {
		t.Errorf("stream %+v", info)
	}
}

// A consumer group is there first after the stream was deleted, as with a subscriber
// that heals itself: what was in the old stream is forgotten, and the window is ours.
func TestDeletedStreamMadeAnewByAGroup(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, mode(m))
		mustPublish(t, p, topic, payments(0, 10)...)
		if err := client.Del(t.Context(), topic).Err(); err != nil {
			t.Fatal(err)
		}
		if err := client.XGroupCreateMkStream(t.Context(), topic, "consumers", "0").Err(); err != nil {
			t.Fatal(err)
		}
		for _, r := range mustPublish(t, p, topic, payments(5, 10)...) {
			wantVerdict(t, r, publisher.VerdictAdded)
		}
		for _, r := range mustPublish(t, p, topic, payments(0, 5)...) {
			wantVerdict(t, r, publisher.VerdictAdded)
		}
		publishAll(t, p, topic, inOrder(3000))
		publishAll(t, p, topic, inOrder(3000)) // more than the server's default window
		wantEntries(t, client, topic, 3000)
	})
}

// A server that is full says nothing about what it can do.
func TestFullServerIsNotAnOldOne(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	admin, client, ctx := s.Client(), s.Client(), t.Context()
	if err := admin.ConfigSet(ctx, "maxmemory", "1").Err(); err != nil {
		t.Fatal(err)
	}
	p := newPublisher(t, client, func(c *publisher.Config) { c.RetryFor = 2 * time.Second })
	err := p.Publish("orders", payment(1))
	if err == nil || errors.Is(err, publisher.ErrModeUnsupported) || publisher.IsPermanent(err) || !strings.Contains(err.Error(), "OOM") {
		t.Errorf("error %v", err)
	}
	if _, err := p.Check(ctx, "orders"); err == nil {
		t.Error("Check says fine")
	}
	// The memory is freed right after the probe of the next set-up.
	client.AddHook(afterHook(func(cmd redis.Cmder) {
		if cmd.Name() == "xadd" {
			admin.ConfigSet(ctx, "maxmemory", "0")
		}
	}))
	for p.Publish("orders", payment(1)) != nil {
	}
	if record := admin.HGetAll(ctx, rediskey.LayoutKey("orders")).Val(); record["mode"] != "idmp" {
		t.Errorf("layout %v", record)
	}
}

// afterHook sees single commands after they were run.
type afterHook func(cmd redis.Cmder)

func (afterHook) DialHook(next redis.DialHook) redis.DialHook { return next }
func (afterHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}
func (h afterHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		err := next(ctx, cmd)
		h(cmd)
		return err
	}
}

// Another mode asked for than the one that the topic has: it is obeyed, or it is an
// error where that can't be.
func TestOtherModeInTheNextVersion(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client := s.Client()
	modes := []publisher.Mode{publisher.ModeIDMP, publisher.ModeIDMPAuto, publisher.ModeLatch}
	for _, first := range modes {
		for _, next := range append(modes, publisher.ModeAuto) {
			t.Run(fmt.Sprint(first, " then ", next), func(t *testing.T) {
				topic := testserver.Topic(t)
				mustPublish(t, newPublisher(t, client, mode(first)), topic, payment(1))
				err := newPublisher(t, client, mode(next)).Publish(topic, payment(1))
				if first == publisher.ModeIDMPAuto && next != publisher.ModeIDMPAuto {
					if err == nil || publisher.IsPermanent(err) {
						t.Errorf("error %v", err)
					}
				} else if err != nil {
					t.Error(err)
				}
				wantEntries(t, client, topic, 1)
			})
		}
	}
}

// The server is upgraded under running publishers in mode Auto.
func TestServerUpgrade(t *testing.T) {
	t.Parallel()
	old := testserver.Start(t, testserver.Redis80)
	next := testserver.Start(t, testserver.Redis86)
	topic := testserver.Topic(t)
	where := &switchable{addr: old.Addr()}
	client := redis.NewClient(&redis.Options{Dialer: where.dial})
	t.Cleanup(func() { _ = client.Close() })
	p := newPublisher(t, client)
	mustPublish(t, p, topic, payments(0, 100)...)

	// Everything moves to the new server as an upgrade does it: by replication.
	host, port := hostPort(old.Addr())
	newer := next.Client()
	if err := newer.Do(t.Context(), "REPLICAOF", host, port).Err(); err != nil {
		t.Fatal(err)
	}
	testserver.Eventually(t, 10*time.Second, func() error {
		if n := newer.XLen(t.Context(), topic).Val(); n != 100 {
			return fmt.Errorf("%d entries on the new server", n)
		}
		return nil
	})
	if err := newer.Do(t.Context(), "REPLICAOF", "NO", "ONE").Err(); err != nil {
		t.Fatal(err)
	}
	old.Stop()
	where.set(next.Addr())

	for n := range 100 {
		r := mustPublish(t, p, topic, payment(n))[0]
		wantVerdict(t, r, publisher.VerdictDuplicate)
		if r.Mode != publisher.ModeLatch {
			t.Fatalf("mode %v", r.Mode)
		}
	}
	fresh := newPublisher(t, newer) // an instance that starts after the upgrade
	wantVerdict(t, mustPublish(t, fresh, topic, payment(0))[0], publisher.VerdictDuplicate)
	r := mustPublish(t, fresh, topic, payment(100))[0]
	wantVerdict(t, r, publisher.VerdictAdded)
	wantVerdict(t, mustPublish(t, p, topic, payment(100))[0], publisher.VerdictDuplicate)
	if r := mustPublish(t, fresh, topic+"-new", payment(0))[0]; r.Mode != publisher.ModeIDMP {
		t.Errorf("a topic that is made after the upgrade has mode %v", r.Mode)
	}
	wantEntries(t, newer, topic, 101)
}

// An older server answers under running publishers, as after a failover to a replica
// that was not upgraded: a clear error, and no entry that nothing protects.
func TestOlderServerTakesOver(t *testing.T) {
	t.Parallel()
	old, next := testserver.Start(t, testserver.Redis80), testserver.Start(t, testserver.Redis86)
	topic := testserver.Topic(t)
	where := &switchable{addr: next.Addr()}
	client := redis.NewClient(&redis.Options{Dialer: where.dial})
	t.Cleanup(func() { _ = client.Close() })
	p := newPublisher(t, client)
	mustPublish(t, p, topic, payment(1))

	// Snapshots of the new server can't be read by the old one; its keys can be made.
	older, ctx := old.Client(), t.Context()
	record, err := client.HGetAll(ctx, rediskey.LayoutKey(topic)).Result()
	if err != nil {
		t.Fatal(err)
	}
	if err := older.HSet(ctx, rediskey.LayoutKey(topic), record).Err(); err != nil {
		t.Fatal(err)
	}
	if err := older.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []string{"a", "b"}}).Err(); err != nil {
		t.Fatal(err)
	}
	where.set(old.Addr())
	next.Kill()
	for range 3 {
		if err := p.Publish(topic, payment(2)); !errors.Is(err, publisher.ErrModeUnsupported) || publisher.IsPermanent(err) {
			t.Errorf("error %v", err)
		}
	}
	wantEntries(t, older, topic, 1)
}

// The state of the keys survives what the server survives.
func TestRestartOfTheServer(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind, testserver.Set("appendonly", "yes"), testserver.Set("appendfsync", "always"))
			topic := testserver.Topic(t)
			p := newPublisher(t, s.Client())
			mustPublish(t, p, topic, payments(0, 100)...)
			s.Kill()
			published := make(chan error, 1)
			go func() { published <- p.Publish(topic, payments(0, 101)...) }()
			s.Restart()
			if err := <-published; err != nil {
				t.Fatal(err)
			}
			wantEntries(t, s.Client(), topic, 101)
		})
	}
}

// A foreign XADD that makes a deleted stream anew does so with the server's default
// window: it gets ours before the first key is remembered.
func TestStreamMadeAnewBySomebodyElse(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	p := newPublisher(t, client)
	mustPublish(t, p, topic, payment(1))
	if err := client.Del(t.Context(), topic).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, Values: []string{"a", "b"}}).Err(); err != nil {
		t.Fatal(err)
	}
	wantVerdict(t, mustPublish(t, p, topic, payment(2))[0], publisher.VerdictAdded)
	if info := streamInfo(t, client, topic); info.IDMPDuration != 3600 || info.IDMPMaxSize != 10_000 {
		t.Errorf("stream %+v", info)
	}
	wantVerdict(t, mustPublish(t, p, topic, payment(2))[0], publisher.VerdictDuplicate)
}

// A stream that tracks somebody else's ids keeps its window, and both are reported; it gets
// ours from the next instance that finds them expired.
func TestWindowOfSomebodyElse(t *testing.T) {
	t.Parallel()
	s := testserver.Shared(t, testserver.Redis86)
	client, topic, ctx := s.Client(), testserver.Topic(t), t.Context()
	theirs := &redis.XAddArgs{Stream: topic, ProducerID: "other", IdempotentID: "1", Values: []string{"a", "b"}}
	if err := client.XAdd(ctx, theirs).Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.Do(ctx, "XCFGSET", topic, "IDMP-DURATION", "4", "IDMP-MAXSIZE", "500").Err(); err != nil {
		t.Fatal(err)
	}
	if err := client.XAdd(ctx, theirs).Err(); err != nil { // XCFGSET has cleared the map
		t.Fatal(err)
	}
	var events observe.Events[publisher.WindowEvent]
	p := newPublisher(t, client, func(c *publisher.Config) { c.Hooks = []publisher.Hooks{{OnWindow: events.Add}} })
	mustPublish(t, p, topic, payment(1))
	if list := events.All(); len(list) != 2 || list[1].Kind != publisher.WindowDiffers || list[1].Effective.Duration != 4*time.Second || list[1].Wanted.Duration != time.Hour {
		t.Errorf("events %+v", list)
	}
	<-time.After(4500 * time.Millisecond) // all ids expire
	mustPublish(t, newPublisher(t, client), topic, payment(1))
	if info := streamInfo(t, client, topic); info.IDMPDuration != 3600 || info.IDMPMaxSize != 10_000 {
		t.Errorf("stream %+v", info)
	}
}

// A stream that others filled before, and keep filling, is taken over.
func TestBusyStreamIsSetUp(t *testing.T) {
	s := testserver.Shared(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				_, _ = client.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
					for range 100 {
						pipe.XAdd(ctx, &redis.XAddArgs{Stream: topic, MaxLen: 1000, Values: []string{"a", "b"}})
					}
					return nil
				})
			}
		})
	}
	testserver.Eventually(t, 5*time.Second, func() error {
		if client.XLen(ctx, topic).Val() < 500 {
			return fmt.Errorf("nothing there yet")
		}
		return nil
	})
	start := time.Now()
	p := newPublisher(t, client)
	wantVerdict(t, mustPublish(t, p, topic, payment(1))[0], publisher.VerdictAdded)
	took := time.Since(start)
	if r := mustPublish(t, p, topic, payment(1))[0]; r.Verdict != publisher.VerdictDuplicate && r.Verdict != publisher.VerdictOriginalGone {
		t.Errorf("receipt %+v", r)
	}
	stop()
	wg.Wait()
	if info := streamInfo(t, client, topic); info.IDMPDuration != 3600 || info.IDMPMaxSize != 10_000 {
		t.Errorf("stream %+v", info)
	}
	t.Logf("set up after %v", took)
}

// Trimming by age and by length. (That age goes by the server's clock, and what happens
// when that is set back, are unit tests: TestMaxAgeGoesByTheServersClock and the next.)
func TestTrimming(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		client := s.Client()
		topic := testserver.Topic(t)
		old := strconv.FormatInt(time.Now().Add(-2*time.Hour).UnixMilli(), 10)
		for i := range 500 {
			if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, ID: fmt.Sprintf("%s-%d", old, i+1), Values: []string{"a", "b"}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		p := newPublisher(t, client, mode(m), func(c *publisher.Config) { c.MaxAge = time.Hour })
		mustPublish(t, p, topic, payments(0, 9)...)
		mustPublish(t, p, topic, payment(9))                   // what was old before goes with the next call
		if n := entries(t, client, topic); n < 10 || n > 110 { // about, to a macro node of 100
			t.Errorf("%d entries after trimming by age", n)
		}

		// A process that publishes once and ends.
		topic += "-once"
		for i := range 500 {
			if err := client.XAdd(t.Context(), &redis.XAddArgs{Stream: topic, ID: fmt.Sprintf("%s-%d", old, i+1), Values: []string{"a", "b"}}).Err(); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 2 {
			mustPublish(t, newPublisher(t, client, mode(m), func(c *publisher.Config) { c.MaxAge = time.Hour }), topic, payment(i))
		}
		if n := entries(t, client, topic); n < 2 || n > 110 {
			t.Errorf("%d entries after trimming by age in two short lives", n)
		}

		topic += "-length"
		q := newPublisher(t, client, mode(m), func(c *publisher.Config) {
			c.DefaultMaxlen, c.Maxlens = 100, map[string]int64{"other": 5}
		})
		mustPublish(t, q, topic, payments(0, 1000)...)
		if n := entries(t, client, topic); n < 100 || n > 250 {
			t.Errorf("%d entries after trimming by length", n)
		}
	})
}

// KeepUnacked: what a group has not acknowledged is not trimmed.
func TestKeepUnacked(t *testing.T) {
	for _, m := range []publisher.Mode{publisher.ModeIDMP, publisher.ModeLatch} {
		t.Run(m.String(), func(t *testing.T) {
			s := testserver.Shared(t, testserver.Redis86)
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client, mode(m), func(c *publisher.Config) { c.DefaultMaxlen, c.KeepUnacked = 100, true })
			report, err := p.Check(t.Context(), topic)
			if err != nil || len(report.Warnings) == 0 {
				t.Errorf("Check does not warn of a missing group: %+v, %v", report, err)
			}
			if err := client.XGroupCreateMkStream(t.Context(), topic, "g", "0").Err(); err != nil {
				t.Fatal(err)
			}
			mustPublish(t, p, topic, payments(0, 1000)...)
			wantEntries(t, client, topic, 1000)
		})
	}
	t.Run("old server", func(t *testing.T) {
		s := testserver.Shared(t, testserver.Redis70)
		topic := testserver.Topic(t)
		p := newPublisher(t, s.Client(), func(c *publisher.Config) { c.DefaultMaxlen, c.KeepUnacked = 100, true })
		if _, err := p.Check(t.Context(), topic); err == nil {
			t.Error("Check says nothing")
		}
		if err := p.Publish(topic, payment(1)); !errors.Is(err, publisher.ErrModeUnsupported) || !strings.Contains(err.Error(), "KeepUnacked") {
			t.Errorf("error %v", err)
		}
		wantEntries(t, s.Client(), topic, 0)
	})
}
