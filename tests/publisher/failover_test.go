package publisher_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func minReplicas(n int) change {
	return func(c *publisher.Config) { c.MinReplicas = n }
}

// The primary dies under publishers, the replica is promoted. What was
// acknowledged under MinReplicas is there, once.
func TestFailover(t *testing.T) {
	t.Parallel()
	for _, c := range []setup{
		{"idmp", testserver.Redis86, publisher.ModeIDMP},
		{"latch", testserver.Redis70, publisher.ModeLatch},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sentinel := testserver.StartSentinel(t, c.kind)
			client, topic := sentinel.FailoverClient(), testserver.Topic(t)
			careful := newPublisher(t, client, mode(c.mode), minReplicas(1), func(c *publisher.Config) { c.ReplicaTimeout = 10 * time.Second })
			mustPublish(t, careful, topic, payments(0, 200)...)

			// From here on the replica takes nothing in: more than its connection can
			// hold is not acknowledged, and goes down with the primary.
			primary := sentinel.Primary()
			for _, s := range sentinel.Servers() {
				if s.Addr() != primary.Addr() {
					s.Freeze()
					defer s.Thaw()
				}
			}
			acknowledged := 0
			for n := range 12 {
				big := with(n, `{"order_id":"big","payment_id":"%d","fill":%q}`, n, strings.Repeat("x", 2<<20))
				if err := newPublisher(t, client, mode(c.mode), minReplicas(1), func(c *publisher.Config) {
					c.ReplicaTimeout = 50 * time.Millisecond
				}).Publish(topic, big); err == nil {
					acknowledged++
				} else if !errors.Is(err, publisher.ErrNotReplicated) {
					t.Error(err)
				}
			}
			old := sentinel.KillPrimary()
			for _, s := range sentinel.Servers() {
				if s.Addr() != old.Addr() {
					s.Thaw()
				}
			}
			waiting := make(chan error, 1)
			p := newPublisher(t, client, mode(c.mode), func(c *publisher.Config) { c.RetryFor = 30 * time.Second })
			go func() { waiting <- p.Publish(topic, payments(200, 300)...) }()
			sentinel.WaitPromotion(old, time.Minute)
			if err := <-waiting; err != nil {
				t.Fatal(err)
			}
			for _, r := range mustPublish(t, p, topic, payments(0, 300)...) {
				wantVerdict(t, r, publisher.VerdictDuplicate)
			}
			if big := entries(t, client, topic) - 300; big < acknowledged || big == 12 {
				t.Errorf("%d large ones were acknowledged, %d of 12 are there", acknowledged, big)
			}
		})
	}
}

// A duplicate, too, is only confirmed when the replica has the original: WAIT counts
// what its own connection wrote, and a duplicate writes nothing by itself.
func TestDuplicateWaitsForReplicas(t *testing.T) {
	t.Parallel()
	for _, c := range []setup{
		{"idmp", testserver.Redis86, publisher.ModeIDMP},
		{"latch", testserver.Redis86, publisher.ModeLatch}, // 7.0 waits for reads as well
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			sentinel := testserver.StartSentinel(t, c.kind, testserver.Set("repl-timeout", "60"))
			primary := sentinel.Primary()
			client, topic := primary.Client(), testserver.Topic(t)
			p := newPublisher(t, client, mode(c.mode), minReplicas(1), func(c *publisher.Config) { c.ReplicaTimeout = 10 * time.Second })
			short := func(c *publisher.Config) { c.ReplicaTimeout = 500 * time.Millisecond }
			mustPublish(t, p, topic, payment(0))
			var replica *testserver.Server
			for _, s := range sentinel.Servers() {
				if s.Addr() != primary.Addr() {
					replica = s
				}
			}
			replica.Freeze()
			// Each try over a connection of its own, which has written nothing before.
			for try, verdict := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate, publisher.VerdictDuplicate} {
				msg := payment(1)
				err := newPublisher(t, primary.Client(), mode(c.mode), minReplicas(1), short).Publish(topic, msg)
				r, _ := publisher.ReceiptOf(msg)
				if !errors.Is(err, publisher.ErrNotReplicated) || publisher.IsPermanent(err) || r.Verdict != verdict || r.EntryID == "" {
					t.Errorf("try %d: %v, receipt %+v", try+1, err, r)
				}
			}
			replica.Thaw()
			testserver.Eventually(t, 20*time.Second, func() error { return p.Publish(topic, payment(1)) })
			wantEntries(t, client, topic, 2)
		})
	}
}

// MinReplicas on a cluster, where WAIT has no key to be routed by.
func TestMinReplicasOnACluster(t *testing.T) {
	t.Parallel()
	client := testserver.StartCluster(t, testserver.Redis86).ClusterClient()
	p := newPublisher(t, client, minReplicas(1), func(c *publisher.Config) { c.ReplicaTimeout = 100 * time.Millisecond })
	for i := range 10 {
		msg := payment(i)
		if err := p.Publish(testserver.Topic(t), msg); !errors.Is(err, publisher.ErrNotReplicated) {
			t.Errorf("a cluster without replicas: %v", err)
		}
		if r, _ := publisher.ReceiptOf(msg); r.Verdict != publisher.VerdictAdded {
			t.Errorf("receipt %+v", r)
		}
	}
}

// One message that fails in a transaction does not take the confirmation from the
// others in it.
func TestMinReplicasOfTheOthersInATransaction(t *testing.T) {
	short := func(c *publisher.Config) { c.ReplicaTimeout = 100 * time.Millisecond }
	for _, c := range []setup{{"idmp", testserver.Redis86, publisher.ModeIDMP}, {"latch", testserver.Redis70, publisher.ModeLatch}} {
		t.Run(c.name, func(t *testing.T) {
			s := testserver.Shared(t, c.kind) // without any replica
			client, topic := s.Client(), testserver.Topic(t)
			p := newPublisher(t, client, mode(c.mode), minReplicas(1), short)
			if err := p.Publish(topic, payment(0)); !errors.Is(err, publisher.ErrNotReplicated) {
				t.Fatal(err)
			}
			if c.mode == publisher.ModeLatch {
				if err := client.Set(t.Context(), rediskey.LatchKey(topic, "payment-service", "pay:1000:p1"), "foreign", 0).Err(); err != nil {
					t.Fatal(err)
				}
			} else if err := client.Set(t.Context(), rediskey.LayoutKey(topic), "not a hash", 0).Err(); err != nil {
				t.Fatal(err) // the write that WAIT waits for fails
			}
			receipts, err := p.Send(t.Context(), topic, payment(2), payment(1), payment(3))
			if err == nil {
				t.Error("no replica at all, and no error")
			}
			for i, r := range receipts {
				if r.Err == nil || r.Verdict == publisher.VerdictAdded && !errors.Is(r.Err, publisher.ErrNotReplicated) {
					t.Errorf("message %d: %+v", i, r)
				}
			}
		})
	}
}
