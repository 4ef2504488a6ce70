// Package bench measures this library beside watermill-redisstream and the raw
// client, in one run. Only ratios mean anything on a shared machine.
package bench_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) { testserver.Main(m) }

var (
	number atomic.Int64
	filler = fmt.Sprintf("%0*d", 140, 0)
)

// newMessage makes a payment of about 200 bytes that nobody has published, with three fields
// of metadata.
func newMessage() *message.Message {
	n := number.Add(1)
	msg := message.NewMessage(uuid.NewString(), fmt.Appendf(nil, `{"order_id":"%d","payment_id":"p%d","note":"%s"}`, n/2, n, filler))
	msg.Metadata.Set("tenant", "acme")
	msg.Metadata.Set("event", "PaymentReceived")
	msg.Metadata.Set("correlation_id", strconv.FormatInt(n, 16))
	return msg
}

func newMessages(n int) []*message.Message {
	msgs := make([]*message.Message, n)
	for i := range msgs {
		msgs[i] = newMessage()
	}
	return msgs
}

// subject is one way to publish.
type subject struct {
	name    string
	kind    testserver.Kind
	publish func(b *testing.B, client *redis.Client) message.Publisher
}

func ours(mode publisher.Mode) func(*testing.B, *redis.Client) message.Publisher {
	return func(b *testing.B, client *redis.Client) message.Publisher {
		p, err := publisher.New(publisher.Config{
			Client: client, ProducerID: "payment-service", Mode: mode,
			Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}"),
		}, nil)
		if err != nil {
			b.Fatal(err)
		}
		return p
	}
}

func theirs(b *testing.B, client *redis.Client) message.Publisher {
	p, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: client}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// rawPublisher is the client without any library: one pipeline a call.
type rawPublisher struct {
	client *redis.Client
	idmp   bool
}

func (p rawPublisher) Publish(topic string, msgs ...*message.Message) error {
	_, err := p.client.Pipelined(context.Background(), func(pipe redis.Pipeliner) error {
		for _, msg := range msgs {
			args := &redis.XAddArgs{Stream: topic, Values: []any{
				redisstream.UUIDHeaderKey, msg.UUID, "metadata", "", "payload", []byte(msg.Payload),
			}}
			if p.idmp {
				args.ProducerID, args.IdempotentID = "payment-service", msg.UUID
			}
			pipe.XAdd(context.Background(), args)
		}
		return nil
	})
	return err
}

func (rawPublisher) Close() error { return nil }

func subjects() []subject {
	return []subject{
		{"watermill-redisstream", testserver.Redis86, theirs},
		{"raw-xadd", testserver.Redis86, func(_ *testing.B, c *redis.Client) message.Publisher { return rawPublisher{c, false} }},
		{"raw-xadd-idmp", testserver.Redis86, func(_ *testing.B, c *redis.Client) message.Publisher { return rawPublisher{c, true} }},
		{"idmp", testserver.Redis86, ours(publisher.ModeIDMP)},
		{"latch", testserver.Redis86, ours(publisher.ModeLatch)},
	}
}

// BenchmarkPublish publishes 1,000 messages in one call, one message a call from
// one goroutine, and one a call from 64.
func BenchmarkPublish(b *testing.B) {
	for _, s := range subjects() {
		b.Run("call-of-1000/"+s.name, func(b *testing.B) { callsOf1000(b, s, direct(b, s), 20) })
	}
	for _, s := range subjects() {
		b.Run("one-by-one/"+s.name, func(b *testing.B) {
			run(b, s, direct(b, s), 1, func(b *testing.B, p message.Publisher, topic string) {
				for b.Loop() {
					if err := p.Publish(topic, newMessage()); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
	for _, s := range subjects() {
		b.Run("64-goroutines/"+s.name, func(b *testing.B) {
			const goroutines, each = 64, 500
			run(b, s, direct(b, s), goroutines*each, func(b *testing.B, p message.Publisher, topic string) {
				for b.Loop() {
					b.StopTimer()
					msgs := newMessages(goroutines * each)
					b.StartTimer()
					var wg sync.WaitGroup
					for mine := range slices.Chunk(msgs, each) {
						wg.Go(func() {
							for _, msg := range mine {
								if err := p.Publish(topic, msg); err != nil {
									b.Error(err)
								}
							}
						})
					}
					wg.Wait()
				}
			})
		})
	}
}

// BenchmarkPublishOverALink publishes 1,000 messages in one call over a link whose round
// trip takes a millisecond or, by the machine's timers, two: what waits for each reply
// pays it for each message.
func BenchmarkPublishOverALink(b *testing.B) {
	for _, s := range subjects() {
		b.Run("call-of-1000/"+s.name, func(b *testing.B) {
			link := faultlink.New(b, testserver.Shared(b, s.kind).Addr())
			link.Slow(500*time.Microsecond, 500*time.Microsecond)
			callsOf1000(b, s, link.Client(), 1)
		})
	}
}

func callsOf1000(b *testing.B, s subject, client *redis.Client, calls int) {
	const each = 1000
	run(b, s, client, calls*each, func(b *testing.B, p message.Publisher, topic string) {
		for b.Loop() {
			b.StopTimer()
			msgs := newMessages(calls * each)
			b.StartTimer()
			for call := range slices.Chunk(msgs, each) {
				if err := p.Publish(topic, call...); err != nil {
					b.Fatal(err)
				}
			}
		}
	})
}

func direct(b *testing.B, s subject) *redis.Client {
	return testserver.Shared(b, s.kind).Client(func(o *redis.Options) { o.PoolSize = 64 })
}

func run(b *testing.B, s subject, client *redis.Client, perLoop int, loop func(*testing.B, message.Publisher, string)) {
	topic := testserver.Topic(b)
	p := s.publish(b, client)
	defer func() { _ = p.Close() }()
	if err := p.Publish(topic, newMessage()); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	b.ResetTimer()
	loop(b, p, topic)
	b.StopTimer()
	b.ReportMetric(float64(b.N*perLoop)/b.Elapsed().Seconds(), "msg/s")
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*perLoop), "ns/msg")
	testserver.Shared(b, s.kind).Client().Del(context.Background(), topic)
}
