package subscriber_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// awaitLine waits for a log line of a topic's consumers.
func awaitLine(t testing.TB, client redis.UniversalClient, topic string, match func(logLine) bool) logLine {
	t.Helper()
	var found logLine
	testserver.Eventually(t, within, func() error {
		lines := readLog(t, client, topic)
		for _, l := range lines {
			if match(l) {
				found = l
				return nil
			}
		}
		return fmt.Errorf("not in the log: %+v", lines)
	})
	return found
}

// A process is frozen beyond MinIdle, its entry is taken over, and it is thawed.
func TestFrozenConsumer(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic := s.Client(), testserver.Topic(t)
		const minIdle, heartbeat = 8000, 2 * time.Second
		spec := consumerSpec{Addr: s.Addr(), Topic: topic, MaxInFlight: 1, MinIdleMS: minIdle, HandlerMS: 60_000, AckLate: true}
		publish(t, client, topic, "in flight", "read ahead")
		frozen := startConsumer(t, spec)
		awaitLine(t, client, topic, func(l logLine) bool { return l.event == "start" })
		wantPending(t, client, topic, "billing", 2)
		frozen.signal(syscall.SIGSTOP)
		messages, _ := subscribe(t, newSubscriber(t, client, func(c *subscriber.Config) {
			c.MinIdle, c.MaxInFlight = minIdle*time.Millisecond, 2
		}), topic)
		msg := receive(t, messages)
		if string(msg.Payload) != "in flight" {
			t.Fatalf("took over %q first", msg.Payload)
		}
		thawed := time.Now()
		frozen.signal(syscall.SIGCONT)
		cancelled := awaitLine(t, client, topic, func(l logLine) bool { return l.event == "cancelled" })
		if took := cancelled.at.Sub(thawed); took > heartbeat {
			t.Errorf("its context ended %v after the thaw, a heartbeat is %v", took, heartbeat)
		}
		if cancelled.rest != subscriber.ErrOwnershipLost.Error() {
			t.Errorf("its context ended by %q", cancelled.rest)
		}
		// It acknowledges all the same: refused. And it neither steals the entry back nor
		// hands out what it had read ahead.
		awaitLine(t, client, topic, func(l logLine) bool { return l.event == "refused" })
		<-time.After(heartbeat * 3 / 2)
		for _, row := range pendingRows(t, client, topic) {
			if strings.HasPrefix(row.Consumer, "p") {
				t.Errorf("the thawed consumer has %+v", row)
			}
		}
		if err := msg.Context().Err(); err != nil {
			t.Errorf("the new owner's context ended: %v", context.Cause(msg.Context()))
		}
		for _, l := range readLog(t, client, topic) {
			if l.event == "start" && l.payload != "in flight" {
				t.Errorf("the thawed consumer started %q", l.payload)
			}
		}
		msg.Ack()
		receive(t, messages).Ack()
		wantPending(t, client, topic, "billing", 0)
	})
}

// A message that kills its process goes to the dead letters alone, after at
// most one hand-out more than allowed; its neighbours don't.
func TestProcessKillerConvictsOnlyItself(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70, testserver.Valkey91} {
		for _, limit := range []int{1, 3} {
			for _, inFlight := range []int{1, 16} {
				t.Run(fmt.Sprintf("%s/limit-%d/in-flight-%d", kind, limit, inFlight), func(t *testing.T) {
					if testing.Short() && kind != testserver.Redis86 {
						t.Skip("one server in short runs")
					}
					t.Parallel()
					s := testserver.Shared(t, kind)
					client, topic := s.Client(), testserver.Topic(t)
					payloads := numbered(40)
					payloads[20] = "killer"
					publish(t, client, topic, payloads...)
					spec := consumerSpec{
						Addr: s.Addr(), Topic: topic, MaxInFlight: inFlight, MinIdleMS: 300,
						MaxDeliver: limit, DieOn: "killer", HandlerMS: 5,
					}
					for deaths := 0; ; deaths++ {
						if deaths > limit+1 {
							t.Fatalf("%d deaths", deaths)
						}
						c := startConsumer(t, spec)
						done := make(chan struct{})
						go func() { c.wait(); close(done) }()
						finished := false
						for !finished {
							select {
							case <-done:
							case <-time.After(20 * time.Millisecond):
								groups, err := client.XInfoGroups(context.Background(), topic).Result()
								if err != nil {
									t.Fatal(err)
								}
								finished = groups[0].Pending == 0 && groups[0].Lag == 0 && len(deadLetters(t, client, topic)) > 0
								if !finished {
									continue
								}
								_ = c.cmd.Process.Kill()
								<-done
							}
							break
						}
						if finished {
							break
						}
					}
					lines := readLog(t, client, topic)
					letters := deadLetters(t, client, topic)
					for _, letter := range letters {
						if p := letter.Values["payload"]; p != "killer" {
							t.Errorf("%v is convicted: %v", p, story(lines, fmt.Sprint(p)))
						}
					}
					if len(letters) == 0 {
						t.Error("no dead letter")
					}
					starts, ended := 0, map[string]bool{}
					for _, l := range lines {
						if l.event == "start" && l.payload == "killer" {
							starts++
						}
						if l.event == "end" {
							ended[l.payload] = true
						}
					}
					if starts < limit || starts > limit+1 {
						t.Errorf("the killer was handed out %d times, %d are allowed", starts, limit)
					}
					if len(ended) != 39 {
						t.Errorf("%d of 39 neighbours were handled", len(ended))
					}
				})
			}
		}
	}
}

// TestFaultChaos is the long run: three consumer processes, of which one is killed,
// frozen or cut off at random every second.
func TestFaultChaos(t *testing.T) {
	during := time.Minute
	if testing.Short() {
		during = 15 * time.Second
	}
	s := testserver.Start(t, testserver.Redis86)
	client, topic := s.Client(), testserver.Topic(t)
	const minIdle = 1500
	type member struct {
		*consumer
		link *faultlink.Link
	}
	thawedAt := map[string][]time.Time{}
	start := func() member {
		link := faultlink.New(t, s.Addr())
		return member{startConsumer(t, consumerSpec{
			Addr: s.Addr(), Link: link.Addr(), Topic: topic, MaxInFlight: 4, MinIdleMS: minIdle,
			HandlerMS: 20, NackPercent: 3, ReadAhead: 16, Check: true,
		}), link}
	}
	members := []member{start(), start(), start()}
	published := map[string]bool{}
	end := time.Now().Add(during)
	for n := 0; time.Now().Before(end); {
		for range 100 {
			p := fmt.Sprint(n)
			publish(t, client, topic, p)
			published[p] = true
			n++
		}
		i := rand.IntN(len(members))
		m := members[i]
		switch rand.IntN(3) {
		case 0:
			m.kill()
			members[i] = start()
		case 1:
			m.signal(syscall.SIGSTOP)
			<-time.After(time.Duration(200+rand.IntN(2500)) * time.Millisecond)
			thawedAt[m.pid()] = append(thawedAt[m.pid()], time.Now())
			m.signal(syscall.SIGCONT)
		case 2:
			m.link.Stall(faultlink.Both)
			<-time.After(time.Duration(200+rand.IntN(2500)) * time.Millisecond)
			m.link.Heal()
		}
		<-time.After(time.Second / 2)
	}
	testserver.Eventually(t, time.Minute, func() error {
		p, err := client.XPending(context.Background(), topic, "billing").Result()
		if err != nil || p.Count != 0 {
			return unexpected(err, p)
		}
		if g := client.XInfoGroups(context.Background(), topic).Val(); g[0].Lag != 0 {
			return fmt.Errorf("lag %d", g[0].Lag)
		}
		return nil
	})
	lines := readLog(t, client, topic)
	ended := map[string]bool{}
	wrong, cancelled, refused := 0, 0, 0
	for i, l := range lines {
		switch l.event {
		case "end":
			ended[l.payload] = true
		case "cancelled":
			cancelled++
		case "refused":
			refused++
		case "start":
			// The log is written after the hand-out; a process that was frozen in between
			// shows another owner, and must be told so within a heartbeat. One that was slow
			// says so.
			if !strings.HasPrefix(l.rest, "p"+l.pid+"-") && l.rest != late && !wasThawed(thawedAt[l.pid], l.at) && !isCancelled(lines[i:], l) {
				wrong++
				t.Errorf("%s started %s (%s), which belongs to %s", l.pid, l.id, l.payload, l.rest)
			}
		}
	}
	for p := range published {
		if !ended[p] {
			t.Errorf("%s is lost: %q", p, story(lines, p))
		}
	}
	consumers, err := client.XInfoConsumers(context.Background(), topic, "billing").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(consumers) > 3+1+5 {
		t.Errorf("%d consumers", len(consumers))
	}
	t.Logf("%d messages, %d log lines, %d contexts ended, %d acknowledgements refused, %d consumers at the end",
		len(published), len(lines), cancelled, refused, len(consumers))
}

// story is what the log says of a message.
func story(lines []logLine, payload string) (events []string) {
	for _, l := range lines {
		if l.payload == payload {
			events = append(events, fmt.Sprintf("%s by %s at %s (%s)", l.event, l.pid, l.at.Format("05.000"), l.rest))
		}
	}
	return events
}

// wasThawed tells that the process was thawed just before.
func wasThawed(thaws []time.Time, at time.Time) bool {
	for _, thaw := range thaws {
		if d := at.Sub(thaw); d > -50*time.Millisecond && d < 400*time.Millisecond {
			return true
		}
	}
	return false
}

// isCancelled tells that the hand-out was ended.
func isCancelled(lines []logLine, start logLine) bool {
	for _, l := range lines {
		if l.event == "cancelled" && l.pid == start.pid && l.id == start.id {
			return true
		}
	}
	return false
}

// The reply of a takeover is lost: what it took is still suspected to have killed its
// consumer, so one entry at a time goes out.
func TestReplyOfTakeoverLostKeepsSuspicion(t *testing.T) {
	t.Parallel()
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		t.Parallel()
		client, topic, ctx := s.Client(), testserver.Topic(t), context.Background()
		if err := client.XGroupCreateMkStream(ctx, topic, "billing", "0").Err(); err != nil {
			t.Fatal(err)
		}
		publish(t, client, topic, numbered(8)...)
		if err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "billing", Consumer: "old", Streams: []string{topic, ">"}, Count: 10}).Err(); err != nil {
			t.Fatal(err)
		}
		link := faultlink.New(t, s.Addr())
		var lost atomic.Bool
		conf := func(c *subscriber.Config) { c.MinIdle, c.MaxDeliveries, c.MaxInFlight = 600*time.Millisecond, 1, 8 }
		idle := func() error {
			rows, err := client.XPendingExt(ctx, &redis.XPendingExtArgs{
				Stream: topic, Group: "billing", Start: "-", End: "+", Count: 10, Idle: 600 * time.Millisecond}).Result()
			if err != nil || len(rows) != 8 {
				return unexpected(err, rows)
			}
			return nil
		}
		testserver.Eventually(t, within, idle)
		link.Lose(func(c faultlink.Command) bool {
			return len(c.Args) > 1 && c.Args[len(c.Args)-1] == "all" && lost.CompareAndSwap(false, true)
		})
		messages, _ := subscribe(t, newSubscriber(t, link.Client(), conf), topic)
		first := receive(t, messages)
		wantNone(t, messages, 300*time.Millisecond)
		if !lost.Load() {
			t.Error("no reply was lost")
		}
		first.Ack()
		for range 7 {
			receive(t, messages).Ack()
		}
		wantPending(t, client, topic, "billing", 0)
	})
}
