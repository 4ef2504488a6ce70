package publisher_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func minReplicas(n int) change {
	return func(c *publisher.Config) { c.MinReplicas = n }
}

// Scenario 15: the primary dies under publishers, the replica is promoted. What was
// acknowledged under MinReplicas is there, once.
func TestFailover(t *testing.T) {
	for _, c := range []setup{
		{"idmp", testserver.Redis86, publisher.IDMP},
		{"latch", testserver.Redis70, publisher.Latch},
	} {
		t.Run(c.name, func(t *testing.T) {
			sentinel := testserver.StartSentinel(t, c.kind)
			client, topic := sentinel.FailoverClient(), testserver.Topic(t)
			// After the failover there is no replica left to confirm anything.
			careful := newPublisher(t, client, mode(c.mode), minReplicas(1), func(c *publisher.Config) { c.ReplicaTimeout = 5 * time.Second })
			mustPublish(t, careful, topic, payments(0, 200)...)

			old := sentinel.KillPrimary()
			waiting := make(chan error, 1)
			p := newPublisher(t, client, mode(c.mode), func(c *publisher.Config) { c.RetryFor = 30 * time.Second })
			go func() { waiting <- p.Publish(topic, payments(200, 300)...) }()
			sentinel.WaitPromotion(old, 20*time.Second)
			if err := <-waiting; err != nil {
				t.Fatal(err)
			}
			for _, r := range mustPublish(t, p, topic, payments(0, 300)...) {
				wantVerdict(t, r, publisher.Duplicate)
			}
			wantEntries(t, client, topic, 300)
		})
	}
}

// A duplicate, too, is only confirmed when the replica has the original: WAIT counts
// what its own connection wrote, and a duplicate writes nothing by itself.
func TestDuplicateWaitsForReplicas(t *testing.T) {
	for _, c := range []setup{
		{"idmp", testserver.Redis86, publisher.IDMP},
		{"latch", testserver.Redis86, publisher.Latch}, // 7.0 waits for reads as well
	} {
		t.Run(c.name, func(t *testing.T) {
			sentinel := testserver.StartSentinel(t, c.kind, testserver.Set("repl-timeout", "60"))
			primary := sentinel.Primary()
			client, topic := primary.Client(), testserver.Topic(t)
			short := func(c *publisher.Config) { c.ReplicaTimeout = time.Second }
			p := newPublisher(t, client, mode(c.mode), minReplicas(1), short)
			mustPublish(t, p, topic, payment(0))
			var replica *testserver.Server
			for _, s := range sentinel.Servers() {
				if s.Addr() != primary.Addr() {
					replica = s
				}
			}
			replica.Freeze()
			// Each try over a connection of its own, which has written nothing before.
			for try, verdict := range []publisher.Verdict{publisher.Added, publisher.Duplicate, publisher.Duplicate} {
				msg := payment(1)
				err := newPublisher(t, primary.Client(), mode(c.mode), minReplicas(1), short).Publish(topic, msg)
				r, _ := publisher.ReceiptOf(msg)
				if !errors.Is(err, publisher.ErrNotReplicated) || publisher.IsPermanent(err) || r.Verdict != verdict || r.EntryID == "" {
					t.Errorf("try %d: %v, receipt %+v", try+1, err, r)
				}
			}
			replica.Thaw()
			testserver.Eventually(t, 10*time.Second, func() error { return p.Publish(topic, payment(1)) })
			wantEntries(t, client, topic, 2)
		})
	}
}

// MinReplicas on a cluster, where WAIT has no key to be routed by.
func TestMinReplicasOnACluster(t *testing.T) {
	client := testserver.StartCluster(t, testserver.Redis86).ClusterClient()
	p := newPublisher(t, client, minReplicas(1), func(c *publisher.Config) { c.ReplicaTimeout = 100 * time.Millisecond })
	for i := range 10 {
		msg := payment(i)
		if err := p.Publish(testserver.Topic(t), msg); !errors.Is(err, publisher.ErrNotReplicated) {
			t.Errorf("a cluster without replicas: %v", err)
		}
		if r, _ := publisher.ReceiptOf(msg); r.Verdict != publisher.Added {
			t.Errorf("receipt %+v", r)
		}
	}
}
