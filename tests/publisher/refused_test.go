package publisher_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The user lacks one right: each that a mode needs is taken away alone.
func TestMissingRight(t *testing.T) {
	t.Parallel()
	type right struct {
		kind  testserver.Kind
		rules []string
		names string
	}
	cases := map[string]right{
		"EVAL on an old server": {testserver.Redis70, []string{"-@scripting"}, "EVAL"},
		"EVAL on Valkey":        {testserver.Valkey81, []string{"-@scripting"}, "EVAL"},
		"XADD":                  {testserver.Redis86, []string{"-xadd"}, "XADD"},
		"XCFGSET":               {testserver.Redis86, []string{"-xcfgset"}, "XCFGSET"},
		"XINFO":                 {testserver.Redis86, []string{"-xinfo"}, "XINFO"},
		"HSET":                  {testserver.Redis86, []string{"-hset"}, "HSET"},
		"XRANGE":                {testserver.Redis86, []string{"-xrange"}, "XRANGE"},
		"side keys":             {testserver.Redis86, []string{"resetkeys", "~TOPIC"}, "HSET"},
		"WATCH":                 {testserver.Redis86, []string{"-watch"}, "WATCH"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, c.kind)
			topic := testserver.Topic(t)
			rules := []string{"on", ">secret", "allkeys", "allchannels", "allcommands"}
			for _, rule := range c.rules {
				rules = append(rules, strings.ReplaceAll(rule, "TOPIC", topic))
			}
			p := newPublisher(t, s.User("shop", rules...))
			report, checkErr := p.Check(t.Context(), topic)
			if name != "XADD" && name != "side keys" { // there the probe of the server is refused already
				if len(report.Topics) != 1 || !strings.Contains(strings.Join(report.Topics[0].Missing, " "), c.names) {
					t.Errorf("Check does not name %s: %+v", c.names, report)
				}
			}
			if checkErr == nil || publisher.IsPermanent(checkErr) {
				t.Errorf("Check: %v", checkErr)
			}
			if name == "XRANGE" {
				return // is needed for duplicates only
			}
			err := p.Publish(topic, payment(1))
			if err == nil || !strings.Contains(strings.ToUpper(err.Error()), strings.ToUpper(strings.Fields(c.names)[0])) && name != "side keys" {
				t.Errorf("Publish does not name it: %v", err)
			}
			if publisher.IsPermanent(err) {
				t.Errorf("not permanent: %v", err)
			}
			t.Log(checkErr, "\n", err)
			wantEntries(t, s.Client(), topic, 0)
		})
	}
}

// A user without scripts publishes by IDMP all the same.
func TestIDMPWithoutScripts(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
	topic := testserver.Topic(t)
	p := newPublisher(t, s.User("shop", "on", ">secret", "allkeys", "allcommands", "-@scripting", "-info", "-time", "-command", "-config"))
	large := with(1, `{"order_id":"1","payment_id":"p","fill":%q}`, strings.Repeat("x", 100_000))
	wantVerdict(t, mustPublish(t, p, topic, large)[0], publisher.VerdictAdded)
	wantVerdict(t, mustPublish(t, p, topic, large)[0], publisher.VerdictDuplicate)
	report, err := p.Check(t.Context(), topic)
	if err != nil || report.MaxmemoryPolicy != "unknown" || report.Persistence != "unknown" {
		t.Errorf("%+v, %v", report, err)
	}
}

// A key of another type is the caller's to mend: at once, and nothing is written.
func TestTopicIsAKeyOfAnotherType(t *testing.T) {
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		client, topic := s.Client(), testserver.Topic(t)
		if err := client.Set(t.Context(), topic, "x", 0).Err(); err != nil {
			t.Fatal(err)
		}
		p := newPublisher(t, client, mode(m))
		err := p.Publish(topic, payment(1))
		if err == nil || !strings.Contains(err.Error(), "WRONGTYPE") || publisher.IsPermanent(err) {
			t.Errorf("error %v", err)
		}
		if keys, _ := client.Keys(t.Context(), "{"+topic+"*").Result(); len(keys) != 0 {
			t.Errorf("left behind: %v", keys)
		}
	})
}

// A full server refuses; a latch must not be left behind that claims the message.
func TestServerOutOfMemory(t *testing.T) {
	t.Parallel()
	for _, kind := range []testserver.Kind{testserver.Redis86, testserver.Redis70} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind)
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client, func(c *publisher.Config) { c.RetryFor = 2 * time.Second })
			mustPublish(t, p, topic, payment(0))
			if err := client.ConfigSet(t.Context(), "maxmemory", "1").Err(); err != nil {
				t.Fatal(err)
			}
			err := p.Publish(topic, payments(1, 4)...)
			if !errors.Is(err, publisher.ErrNotSent) || publisher.IsPermanent(err) || !strings.Contains(err.Error(), "OOM") {
				t.Errorf("error %v", err)
			}
			if err := client.ConfigSet(t.Context(), "maxmemory", "0").Err(); err != nil {
				t.Fatal(err)
			}
			for _, r := range mustPublish(t, p, topic, payments(1, 4)...) {
				wantVerdict(t, r, publisher.VerdictAdded)
			}
			wantEntries(t, client, topic, 4)
		})
	}
}

// A latch that can't be written takes its entry back: here since the user may not
// SET.
func TestLatchRefusedAfterTheAppend(t *testing.T) {
	s := testserver.Start(t, testserver.Redis70)
	topic := testserver.Topic(t)
	p := newPublisher(t, s.User("shop", "on", ">secret", "allkeys", "allcommands", "-set"))
	if err := p.Publish(topic, payment(1)); err == nil || !errors.Is(err, publisher.ErrModeUnsupported) {
		t.Errorf("error %v", err)
	}
	wantEntries(t, s.Client(), topic, 0)
	wantVerdict(t, mustPublish(t, newPublisher(t, s.Client()), topic, payment(1))[0], publisher.VerdictAdded)
}

// An append that the server refuses leaves no latch behind: here since the stream
// has no IDs left.
func TestRefusedAppendLeavesNoLatch(t *testing.T) {
	for _, kind := range []testserver.Kind{testserver.Redis70, testserver.Valkey91} {
		t.Run(string(kind), func(t *testing.T) {
			s := testserver.Shared(t, kind)
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client)
			last := &redis.XAddArgs{Stream: topic, ID: "18446744073709551615-18446744073709551615", Values: []string{"a", "b"}}
			if err := client.XAdd(t.Context(), last).Err(); err != nil {
				t.Fatal(err)
			}
			if err := p.Publish(topic, payment(1)); err == nil {
				t.Fatal("published without an error")
			}
			if keys, err := client.Keys(t.Context(), "*"+topic+"*latch*").Result(); err != nil || len(keys) != 0 {
				t.Errorf("latches %v, %v", keys, err)
			}
			wantEntries(t, client, topic, 1)
		})
	}
}
