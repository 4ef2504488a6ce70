package publisher_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestCheck(t *testing.T) {
	testserver.Each(t, func(t *testing.T, s *testserver.Server) {
		client, topic := s.Client(), testserver.Topic(t)
		p := newPublisher(t, client, window(time.Hour, 50_000))
		before, err := p.Check(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := client.Exists(t.Context(), topic, "{"+topic+"}:idem:layout").Result(); err != nil || n != 0 {
			t.Errorf("Check has written something: %v", err)
		}
		mustPublish(t, p, topic, payment(1))
		after, err := p.Check(t.Context(), topic)
		if err != nil {
			t.Fatal(err)
		}
		b, a := before.Topics[0], after.Topics[0]
		if b.Exists || b.HasLayout || !a.Exists || !a.HasLayout || a.Layout != b.Layout || a.Window != b.Window || a.Memory != b.Memory {
			t.Errorf("before %+v\nafter  %+v", b, a)
		}
		if s.Kind().HasIDMP() {
			if a.Layout != (publisher.Layout{Mode: publisher.ModeIDMP, Shards: 6, Duration: time.Hour}) || a.Window.Entries < 50_000 {
				t.Errorf("%+v", a)
			}
			if d := after.TimeToOverflow(float64(a.Window.Entries) / 60); d != time.Minute {
				t.Errorf("lasts %v", d)
			}
		} else if a.Layout.Mode != publisher.ModeLatch || after.TimeToOverflow(1e9) != time.Hour {
			t.Errorf("%+v", a)
		}
		if after.TimeToOverflow(0.001) != time.Hour {
			t.Errorf("lasts %v at a low rate", after.TimeToOverflow(0.001))
		}
		if !strings.HasPrefix(string(s.Kind()), strings.Fields(after.Server)[0]) || after.MaxmemoryPolicy != "noeviction" || after.Persistence != "none" || after.Connections < 3 {
			t.Errorf("%+v", after)
		}
		if !strings.Contains(strings.Join(after.Warnings, "\n"), "append-only") {
			t.Errorf("no warning of missing persistence: %q", after.Warnings)
		}
	})
}

func TestCheckWarns(t *testing.T) {
	t.Parallel()
	s := testserver.Start(t, testserver.Redis86, testserver.Set("maxmemory-policy", "allkeys-lru"),
		testserver.Set("appendonly", "yes"), testserver.Set("save", "3600 1"))
	client, topic := s.Client(func(o *redis.Options) { o.PoolSize = 2 }), testserver.Topic(t)
	mustPublish(t, newPublisher(t, client), topic, payment(1))
	r, err := newPublisher(t, client, window(time.Minute, 5000), minReplicas(2)).Check(t.Context(), topic)
	if !errors.Is(err, publisher.ErrNotReplicated) {
		t.Errorf("error %v", err)
	}
	text := strings.Join(r.Warnings, "\n")
	for _, want := range []string{"allkeys-lru", "layout", "window", "pool has 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("no warning about %q in:\n%s", want, text)
		}
	}
	if r.Persistence != "append-only file and snapshots" || r.Topics[0].Window.Duration != time.Hour {
		t.Errorf("%+v", r)
	}
}

// Check by a user who may not even begin a transaction writes nothing, and the
// connections of the pool stay usable.
func TestCheckWritesNothingWithoutRights(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]setup{"idmp": {kind: testserver.Redis86}, "latch": {kind: testserver.Redis70}} {
		for _, right := range []string{"multi", "exec", "discard", "watch"} {
			t.Run(name+"/"+right, func(t *testing.T) {
				t.Parallel()
				s := testserver.Start(t, c.kind)
				client, topic := s.Client(), testserver.Topic(t)
				p := newPublisher(t, client)
				mustPublish(t, p, topic, payments(0, 10)...)
				if err := client.XGroupCreate(t.Context(), topic, "group", "0").Err(); err != nil {
					t.Fatal(err)
				}
				before := dump(t, client)
				poor := newPublisher(t, s.User("poor", "on", ">secret", "allkeys", "allcommands", "-"+right))
				report, err := poor.Check(t.Context(), topic)
				if right == "discard" { // publishing does without
					if err != nil || len(report.Topics[0].Missing) > 0 {
						t.Errorf("%+v, %v", report.Topics, err)
					}
				} else if err == nil || !slices.Contains(report.Topics[0].Missing, strings.ToUpper(right)) {
					t.Errorf("%s is not named: %+v, %v", right, report.Topics, err)
				}
				if after := dump(t, client); after != before {
					t.Errorf("Check has changed something:\n%s\n%s", before, after)
				}
				if right == "discard" {
					mustPublish(t, poor, topic, payments(0, 10)...)
				}
				for _, r := range mustPublish(t, p, topic, payments(0, 10)...) {
					wantVerdict(t, r, publisher.VerdictDuplicate)
				}
			})
		}
	}
}

// dump is everything on a server, as text.
func dump(t testing.TB, client *redis.Client) string {
	t.Helper()
	var all []string
	keys, err := client.Keys(t.Context(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(keys)
	for _, key := range keys {
		value, err := client.Dump(t.Context(), key).Result()
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%s %x", key, value))
	}
	return strings.Join(all, "\n")
}

// What Check's estimate of memory is made of.
func TestMemoryOfKeys(t *testing.T) {
	const keys = 50_000 // which fill a table of 65,536
	for _, c := range []setup{{"idmp", testserver.Redis86, publisher.ModeIDMP}, {"latch", testserver.Redis86, publisher.ModeLatch}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, c.kind, testserver.Set("io-threads", "1"))
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client, mode(c.mode), func(c *publisher.Config) { c.DefaultMaxlen = 1 })
			mustPublish(t, p, topic, payments(0, 200)...)
			before := usedMemory(t, client)
			publishAll(t, p, topic, inOrder(keys))
			perKey := (usedMemory(t, client) - before) / keys
			r, err := p.Check(t.Context(), topic)
			if err != nil {
				t.Fatal(err)
			}
			entries := r.Topics[0].Window.Entries
			if entries == 0 {
				entries = publisher.DefaultWindowEntries
			}
			estimate := int(r.Topics[0].Memory) / entries
			t.Logf("%d bytes a key, Check estimates %d", perKey, estimate)
			if perKey > estimate || perKey < estimate/2 {
				t.Errorf("%d bytes a key, Check estimates %d", perKey, estimate)
			}
		})
	}
}

func usedMemory(t testing.TB, client *redis.Client) int {
	t.Helper()
	info, err := client.Info(t.Context(), "memory").Result()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(info) {
		if value, ok := strings.CutPrefix(line, "used_memory:"); ok {
			n, err := strconv.Atoi(strings.TrimSpace(value))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatal(fmt.Errorf("no used_memory in %q", info))
	return 0
}
