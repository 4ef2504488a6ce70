package publisher_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// producerOfMessage has the producer ID of each message from its metadata.
func producerOfMessage(c *publisher.Config) {
	c.Producer = eventkey.Metadata(eventkey.MetadataProducer)
}

func billed(msgs []*message.Message) []*message.Message {
	for _, msg := range msgs {
		msg.Metadata.Set(eventkey.MetadataProducer, "billing")
	}
	return msgs
}

// moving is a topic whose slot is half moved.
type moving struct {
	client    *redis.ClusterClient
	migration *testserver.Migration
}

func beginMove(t *testing.T, cluster *testserver.Cluster, topic string) moving {
	t.Helper()
	number, from, err := cluster.Slot(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	m, err := cluster.BeginMigration(t.Context(), number, from, (from+1)%3)
	if err != nil {
		t.Fatal(err)
	}
	return moving{cluster.ClusterClient(), m}
}

func (m moving) moveAll(t *testing.T) {
	t.Helper()
	keys, err := m.migration.Keys(t.Context())
	if err == nil {
		err = m.migration.Move(t.Context(), keys...)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func (m moving) finish(t *testing.T) {
	t.Helper()
	if err := m.migration.Finish(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A process that starts while the slot of its topic is half moved adds nothing again, wherever
// the keys are, and publishes when the move is over.
func TestNewPublisherWhileTheSlotIsHalfMoved(t *testing.T) {
	t.Parallel()
	where := map[string]func(*testing.T, moving, string){
		"keys at the source": func(*testing.T, moving, string) {},
		"keys at the target": func(t *testing.T, m moving, _ string) { m.moveAll(t) },
		"stream at the target": func(t *testing.T, m moving, topic string) {
			if err := m.migration.Move(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
		},
		"layout at the target": func(t *testing.T, m moving, topic string) {
			if err := m.migration.Move(t.Context(), rediskey.LayoutKey(topic)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for _, c := range clusters() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := testserver.StartCluster(t, c.kind)
			for name, move := range where {
				for _, producer := range []string{"", " and producers"} {
					t.Run(name+producer, func(t *testing.T) {
						changes := []change{mode(c.mode), func(c *publisher.Config) { c.RetryFor = time.Second }}
						if producer != "" {
							changes = append(changes, producerOfMessage)
						}
						topic := testserver.Topic(t)
						old := billed(payments(0, 5))
						mustPublish(t, newPublisher(t, cluster.ClusterClient(), changes...), topic, old...)

						m := beginMove(t, cluster, topic)
						move(t, m, topic)
						p := newPublisher(t, m.client, changes...)
						retries := billed(payments(0, 5))
						if err := p.Publish(topic, retries...); err == nil {
							for i, r := range receiptsOf(t, retries) {
								wantVerdict(t, r, publisher.VerdictDuplicate)
								if want := receiptsOf(t, old)[i].ProducerID; r.ProducerID != want {
									t.Errorf("producer ID %q, want %q", r.ProducerID, want)
								}
							}
						} else if !errors.Is(err, publisher.ErrNotSent) {
							t.Errorf("while the slot is half moved: %v", err)
						}
						m.finish(t)
						for _, r := range mustPublish(t, p, topic, billed(payments(0, 5))...) {
							wantVerdict(t, r, publisher.VerdictDuplicate)
						}
						wantVerdict(t, mustPublish(t, p, topic, billed(payments(5, 6))...)[0], publisher.VerdictAdded)
						wantEntries(t, m.client, topic, 6)
					})
				}
			}
		})
	}
}

// A topic that is to be made while its slot is half moved waits for the move, says so when it
// gives up, and is made with one layout afterwards.
func TestNewTopicWhileItsSlotIsHalfMoved(t *testing.T) {
	t.Parallel()
	for _, c := range clusters() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			cluster := testserver.StartCluster(t, c.kind)
			topic := testserver.Topic(t)
			m := beginMove(t, cluster, topic)
			impatient := newPublisher(t, m.client, mode(c.mode), producerOfMessage, func(c *publisher.Config) { c.RetryFor = time.Second })
			err := impatient.Publish(topic, billed(payments(0, 5))...)
			if !errors.Is(err, publisher.ErrNotSent) || publisher.IsPermanent(err) || !strings.Contains(err.Error(), "slot") {
				t.Errorf("while the slot is half moved: %v", err)
			}
			tried := make(chan struct{}, 1)
			patient := newPublisher(t, m.client, mode(c.mode), producerOfMessage, func(c *publisher.Config) {
				c.RetryFor = time.Minute
				c.Hooks = []publisher.Hooks{{OnRetry: func(publisher.RetryEvent) {
					select {
					case tried <- struct{}{}:
					default:
					}
				}}}
			})
			done := make(chan error, 1)
			msgs := billed(payments(0, 5))
			go func() { done <- patient.Publish(topic, msgs...) }()
			select {
			case <-tried:
			case err := <-done:
				t.Fatalf("did not wait for the move: %v", err)
			}
			m.finish(t)
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			for i, want := range []publisher.Verdict{publisher.VerdictDuplicate, publisher.VerdictAdded} {
				for _, r := range mustPublish(t, impatient, topic, billed(payments(5*i, 5*i+5))...) {
					wantVerdict(t, r, want)
				}
			}
			wantEntries(t, m.client, topic, 10)
			record, err := m.client.HGetAll(t.Context(), rediskey.LayoutKey(topic)).Result()
			if err != nil || record["mode"] != fmt.Sprint(c.mode) {
				t.Errorf("layout record %v, %v", record, err)
			}
		})
	}
}
