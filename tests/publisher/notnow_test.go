package publisher_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// notNow are replies that say that another try may succeed, with those that send the client
// elsewhere, and those of proxies that have lost the server.
var notNow = append([]string{
	"MOVED 1 127.0.0.1:1",
	"ASK 1 127.0.0.1:1",
	"NOSCRIPT No matching script. Please use EVAL.",
	"upstream failure",                        // Envoy
	"ERR server connection close",             // predixy
	"ERR Connection reset by peer",            // twemproxy
	"ERR handle response, backend conn reset", // Codis
}, faultlink.NotNow...)

// step is a place where the server may refuse.
type step struct {
	names  []string // of its commands
	setUp  bool     // before the first event, else behind it
	inExec bool     // when EXEC runs it
	event  int      // 0 is a duplicate
	modes  []publisher.Mode
}

func steps() map[string]step {
	idmp, latch := []publisher.Mode{publisher.ModeIDMP}, []publisher.Mode{publisher.ModeLatch}
	return map[string]step{
		"probe":                {names: []string{"xadd"}, setUp: true, event: 1, modes: idmp},
		"version":              {names: []string{"info"}, setUp: true, event: 1},
		"clock":                {names: []string{"time"}, setUp: true, event: 1},
		"layout record":        {names: []string{"hgetall"}, setUp: true, event: 1},
		"layout record's EXEC": {names: []string{"exec"}, setUp: true, event: 1},
		"window":               {names: []string{"xinfo"}, setUp: true, event: 1},
		"WATCH":                {names: []string{"watch"}, setUp: true, event: 1},
		"stream":               {names: []string{"xgroup"}, setUp: true, event: 1},
		"layout":               {names: []string{"hset"}, setUp: true, event: 1},
		"layout in EXEC":       {names: []string{"hset"}, setUp: true, inExec: true, event: 1},
		"MULTI":                {names: []string{"multi"}, event: 1},
		"append":               {names: []string{"xadd"}, event: 1, modes: idmp},
		"append in EXEC":       {names: []string{"xadd"}, inExec: true, event: 1, modes: idmp},
		"baseline":             {names: []string{"xinfo"}, event: 1, modes: idmp},
		"baseline in EXEC":     {names: []string{"xinfo"}, inExec: true, event: 1, modes: idmp},
		"script":               {names: []string{"eval", "evalsha"}, event: 1, modes: latch},
		"script in EXEC":       {names: []string{"eval", "evalsha"}, inExec: true, event: 1, modes: latch},
		"EXEC":                 {names: []string{"exec"}, event: 1},
		"original":             {names: []string{"xrange"}, event: 0, modes: idmp},
		"original in EXEC":     {names: []string{"xrange"}, inExec: true, event: 0, modes: idmp},
	}
}

// Whatever says "not now", at whatever step of publishing: it is tried again, under the same
// ID, until it works.
func TestServerSaysNotNow(t *testing.T) {
	t.Parallel()
	for _, m := range []publisher.Mode{publisher.ModeIDMP, publisher.ModeLatch} {
		s := testserver.Start(t, testserver.Redis86)
		for name, st := range steps() {
			if st.modes != nil && st.modes[0] != m {
				continue
			}
			t.Run(m.String()+"/"+name, func(t *testing.T) {
				t.Parallel()
				for _, reply := range notNow {
					link, topic := faultlink.New(t, s.Addr()), testserver.Topic(t)
					p := newPublisher(t, link.Client(), mode(m), func(c *publisher.Config) { c.RetryFor = time.Minute })
					want := []int{0, 1}
					if !st.setUp {
						mustPublish(t, p, topic, payment(0))
						want = want[:1+st.event]
					} else {
						want = want[1:]
					}
					if st.inExec {
						link.AnswerInExec(reply, 3, st.names...)
					} else {
						link.Answer(reply, 3, st.names...)
					}
					verdict := map[int]publisher.Verdict{0: publisher.VerdictDuplicate, 1: publisher.VerdictAdded}[st.event]
					wantVerdict(t, mustPublish(t, p, topic, payment(st.event))[0], verdict)
					if n := link.Stats().Answered; n != 3 {
						t.Errorf("%.20s: answered %d times", reply, n)
					}
					wantEntries(t, s.Client(), topic, len(want))
				}
			})
		}
	}
}

// A server that goes on to refuse is given up after RetryFor, with its words, and nothing was
// sent; and a later publish works.
func TestServerGoesOnToSayNotNow(t *testing.T) {
	t.Parallel()
	eachMode(t, func(t *testing.T, s *testserver.Server, m publisher.Mode) {
		t.Parallel()
		link, topic := faultlink.New(t, s.Addr()), testserver.Topic(t)
		p := newPublisher(t, link.Client(), mode(m), func(c *publisher.Config) { c.RetryFor = time.Second })
		mustPublish(t, p, topic, payment(0))
		for _, reply := range []string{"MISCONF Redis is configured to save RDB snapshots", "OOM command not allowed", "no upstream host"} {
			link.Answer(reply, -1, "exec")
			err := p.Publish(topic, payments(1, 4)...)
			if !errors.Is(err, publisher.ErrNotSent) || publisher.IsPermanent(err) || !strings.Contains(err.Error(), reply) {
				t.Errorf("error %v", err)
			}
			link.Heal()
		}
		mustPublish(t, p, topic, payment(0)) // sets up again, if that was forgotten
		// A proxy that lost its server may have handed it over before.
		link.Answer("upstream failure", -1, "exec")
		if err := p.Publish(topic, payments(1, 4)...); !errors.Is(err, publisher.ErrOutcomeUnknown) {
			t.Errorf("error %v", err)
		}
		link.Heal()
		for _, r := range mustPublish(t, p, topic, payments(1, 4)...) {
			wantVerdict(t, r, publisher.VerdictAdded)
		}
		wantEntries(t, s.Client(), topic, 4)
	})
}

// WAIT that is refused leaves the entry where it is, and unconfirmed.
func TestWaitIsRefused(t *testing.T) {
	link, topic := faultlink.New(t, testserver.Shared(t, testserver.Redis86).Addr()), testserver.Topic(t)
	p := newPublisher(t, link.Client(), minReplicas(1), func(c *publisher.Config) { c.ReplicaTimeout = 50 * time.Millisecond })
	for n, reply := range notNow {
		link.Answer(reply, 1, "wait")
		receipts, err := p.Send(t.Context(), topic, payment(n))
		if !errors.Is(err, publisher.ErrNotReplicated) || receipts[0].Verdict != publisher.VerdictAdded {
			t.Errorf("%.20s: %+v, %v", reply, receipts, err)
		}
	}
}

// The same by servers that mean it: no disk for a snapshot, no replica, no memory.
func TestRealServerSaysNotNow(t *testing.T) {
	t.Parallel()
	for _, c := range []setup{
		{"idmp", testserver.Redis86, publisher.ModeIDMP}, {"latch", testserver.Redis86, publisher.ModeLatch},
		{"latch-7.0", testserver.Redis70, publisher.ModeLatch}, {"latch-valkey", testserver.Valkey91, publisher.ModeLatch},
	} {
		for name, setting := range map[string][3]string{
			"NOREPLICAS": {"min-replicas-to-write", "1", "0"}, "OOM": {"maxmemory", "1", "0"},
		} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				s := testserver.Start(t, c.kind)
				client, topic := s.Client(), testserver.Topic(t)
				retried := make(chan string, 1000)
				p := newPublisher(t, client, mode(c.mode), func(c *publisher.Config) {
					c.RetryFor = time.Minute
					c.Hooks = []publisher.Hooks{{OnRetry: func(e publisher.RetryEvent) {
						select {
						case retried <- e.Err.Error():
						default:
						}
					}}}
				})
				set := func(value string) {
					if err := client.ConfigSet(t.Context(), setting[0], value).Err(); err != nil {
						t.Fatal(err)
					}
				}
				for n := range 2 { // the set-up, then an append
					set(setting[1])
					done := make(chan error, 1)
					msg := payment(n)
					go func() { done <- p.Publish(topic, msg) }()
					select {
					case reason := <-retried:
						if !strings.Contains(reason, name+" ") {
							t.Errorf("retried for %s", reason)
						}
					case err := <-done:
						t.Fatalf("not tried again: %v", err)
					}
					set(setting[2])
					if err := <-done; err != nil {
						t.Fatal(err)
					}
					wantVerdict(t, receiptsOf(t, append(payments(0, 0), msg))[0], publisher.VerdictAdded)
					for range len(retried) {
						select {
						case <-retried:
						default:
						}
					}
				}
				wantEntries(t, client, topic, 2)
			})
		}
	}
}
