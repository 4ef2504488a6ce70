package bench_test

import (
	"context"
	"database/sql"
	_ "embed"
	"encoding/hex"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func rows() []row {
	redisstreamRouter := contender{"redisstream Router", router{reads: theirReader}.measure}
	oursRouter := contender{"our Router", router{reads: ourReader(64)}.measure}
	onceRedis := func(inFlight int) contender {
		return contender{"Once, Redis", router{reads: ourReader(inFlight), once: redisStore}.measure}
	}
	return []row{
		{name: "handle-once-redis", what: "Router, middleware, Redis store, 64 in flight", floor: 2.5, unit: "msg/s", n: 2000, ours: onceRedis(64), against: redisstreamRouter},
		{name: "handle-once-redis-1", what: "the same, 1 in flight, the default", floor: 0.45, unit: "msg/s", n: 1000, ours: onceRedis(1), against: redisstreamRouter},
		{
			name: "handle-once-outputs", what: "each message returns one, published by our publisher", floor: 3, unit: "msg/s", n: 1000,
			ours:    contender{"Once, Redis, our publisher", router{reads: ourReader(64), once: redisStore, publishes: ours(publisher.ModeIDMP)}.measure},
			against: contender{"redisstream Router, publisher", router{reads: theirReader, publishes: theirs}.measure},
		},
		{name: "handle-once-memory", what: "memory store, 64 in flight", floor: 0.4, unit: "msg/s", n: 5000, ours: contender{"Once, memory", router{reads: ourReader(64), once: memoryStore}.measure}, against: oursRouter},
		{name: "handle-once-sql", what: "PostgreSQL, a handler with one INSERT, 16 in flight", floor: 0.8, unit: "msg/s", n: 300, ours: contender{"Once, SQL", insertOnce}, against: contender{"own transaction", insertPlainly}},
		{name: "router-64", what: "Router, empty handler", floor: 6, unit: "msg/s", n: 5000, ours: oursRouter, against: redisstreamRouter},
		{
			name: "publish-batch", what: "calls of 1,000, IDMP, exact verdicts, default window", floor: 0.7, unit: "msg/s", n: 5000,
			ours: contender{"idmp", batches(ours(publisher.ModeIDMP), testserver.Redis86)}, against: contender{"raw, same commands", rawIDMP},
			beside: []contender{{"redisstream", batches(theirs, testserver.Redis86)}},
		},
		{
			name: "latch-batch", what: "the same on Redis 7.0, latch", floor: 0.8, unit: "msg/s", n: 3000,
			ours: contender{"latch", batches(ours(publisher.ModeLatch), testserver.Redis70)}, against: contender{"raw, same script", rawLatch},
			beside: []contender{{"redisstream", batches(theirs, testserver.Redis70)}},
		},
		{name: "publish-one", what: "one goroutine, one message a call", floor: 0.8, unit: "msg/s", n: 1000, ours: contender{"idmp", goroutines(ours(publisher.ModeIDMP), 1)}, against: contender{"redisstream", goroutines(theirs, 1)}},
		{name: "publish-64", what: "64 goroutines, one message a call", floor: 2, unit: "msg/s", n: 4000, ours: contender{"idmp", goroutines(ours(publisher.ModeIDMP), 64)}, against: contender{"redisstream", goroutines(theirs, 64)}},
		{name: "duplicates", what: "1,000 of 1,000 are duplicates, compared with their originals", floor: 0.4, unit: "msg/s", n: 3000, ours: contender{"all duplicates", duplicates}, against: contender{"all new", batches(ours(publisher.ModeIDMP), testserver.Redis86)}},
		{name: "subscribe-1", what: "receive and acknowledge, 1 in flight", floor: 0.7, unit: "msg/s", n: 10000, ours: contender{"ours", receives(ourReader(1))}, against: contender{"raw client", rawReads}, beside: []contender{{"redisstream", receives(theirReader)}}},
		{name: "subscribe-64", what: "receive and acknowledge, 64 in flight", floor: 0.7, unit: "msg/s", n: 10000, ours: contender{"ours", receives(ourReader(64))}, against: contender{"raw client", rawReads}},
		latency("latency-p50", "publish to the handler's start, 1,000 messages a second", time.Millisecond, 1000, 0.5),
		latency("latency-p99", "the same", time.Millisecond, 1000, 0.99),
		latency("latency-idle-p99", "one message on an idle topic", 20*time.Millisecond, 100, 0.99),
	}
}

// reads makes a subscriber.
type reads func(b *testing.B, client *redis.Client) message.Subscriber

func theirReader(b *testing.B, client *redis.Client) message.Subscriber {
	return handling{inFlight: 0}.subscriber(b, client)
}

func ourReader(inFlight int) reads {
	return func(b *testing.B, client *redis.Client) message.Subscriber {
		return handling{inFlight: inFlight}.subscriber(b, client)
	}
}

// router is a Router over messages that wait in the stream.
type router struct {
	reads     reads
	once      func(b *testing.B, client *redis.Client) dedupe.Store      // nil: without
	publishes func(b *testing.B, client *redis.Client) message.Publisher // nil: the handler returns nothing
	handle    message.HandlerFunc                                        // nil: does nothing
}

func (r router) measure(b *testing.B, n int) float64 {
	client, topic, done := stream(b, testserver.Redis86, n+1)
	defer done()
	var handled atomic.Int64
	warm, all := make(chan struct{}), make(chan struct{})
	handler := func(msg *message.Message) (produced []*message.Message, err error) {
		if r.handle != nil {
			if produced, err = r.handle(msg); err != nil {
				return nil, err
			}
		}
		if r.publishes != nil {
			produced = []*message.Message{message.NewMessage(watermill.NewUUID(), msg.Payload)}
		}
		switch handled.Add(1) {
		case 1:
			close(warm)
		case int64(n) + 1:
			close(all)
		}
		return produced, nil
	}
	if r.once != nil {
		once, err := middleware.New(middleware.Config{
			Store: r.once(b, client), Namespace: topic, Retention: time.Hour, Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}"),
		}, nil)
		if err != nil {
			b.Fatal(err)
		}
		defer func() { _ = once.Close(context.Background()) }()
		handler = once.Handler(handler)
	}
	routes, err := message.NewRouter(message.RouterConfig{}, watermill.NopLogger{})
	if err != nil {
		b.Fatal(err)
	}
	if r.publishes == nil {
		routes.AddConsumerHandler("charge", topic, r.reads(b, client), func(msg *message.Message) error {
			_, err := handler(msg)
			return err
		})
	} else {
		out := topic + "-out"
		defer client.Del(context.Background(), out)
		routes.AddHandler("charge", topic, r.reads(b, client), out, r.publishes(b, client), handler)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = routes.Run(context.Background())
	}()
	<-warm
	began := time.Now()
	<-all
	score := float64(n) / time.Since(began).Seconds()
	_ = routes.Close()
	<-ended
	return score
}

// stream is a topic with so many messages.
func stream(b *testing.B, kind testserver.Kind, n int) (client *redis.Client, topic string, done func()) {
	client = redis.NewClient(&redis.Options{Addr: testserver.Shared(b, kind).Addr(), PoolSize: 64})
	topic = testserver.Topic(b)
	for chunk := range slices.Chunk(newMessages(n), 1000) {
		if err := (rawPublisher{client, false}).Publish(topic, chunk...); err != nil {
			b.Fatal(err)
		}
	}
	return client, topic, func() {
		client.Del(context.Background(), topic, "{"+topic+"}:idem:layout")
		_ = client.Close()
	}
}

// The database of the SQL rows, made by the first of them.
var database = struct {
	sync.Once
	db *sql.DB
}{}

func postgres(b *testing.B) *sql.DB {
	database.Do(func() {
		database.db = testdb.Postgres(b).Open(b)
		if _, err := database.db.ExecContext(b.Context(), "CREATE TABLE bookings (payload TEXT NOT NULL)"); err != nil {
			b.Fatal(err)
		}
	})
	return database.db
}

const insert = "INSERT INTO bookings (payload) VALUES ($1)"

func insertOnce(b *testing.B, n int) float64 {
	db := postgres(b)
	return router{
		reads: ourReader(16),
		once: func(b *testing.B, _ *redis.Client) dedupe.Store {
			store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Postgres, PurgeEvery: sqlstore.NoPurge})
			if err != nil {
				b.Fatal(err)
			}
			if err := store.Migrate(b.Context()); err != nil {
				b.Fatal(err)
			}
			return store
		},
		handle: sqlstore.WithTx(func(ctx context.Context, tx *sql.Tx, msg *message.Message) ([]*message.Message, error) {
			_, err := tx.ExecContext(ctx, insert, string(msg.Payload))
			return nil, err
		}),
	}.measure(b, n)
}

func insertPlainly(b *testing.B, n int) float64 {
	db := postgres(b)
	return router{reads: ourReader(16), handle: func(msg *message.Message) ([]*message.Message, error) {
		tx, err := db.BeginTx(msg.Context(), nil)
		if err != nil {
			return nil, err
		}
		if _, err := tx.ExecContext(msg.Context(), insert, string(msg.Payload)); err != nil {
			_ = tx.Rollback()
			return nil, err
		}
		return nil, tx.Commit()
	}}.measure(b, n)
}

// published times calls of a publisher on a topic of its own.
func published(b *testing.B, with func(*testing.B, *redis.Client) message.Publisher, kind testserver.Kind, n int, calls func(p message.Publisher, topic string) time.Duration) float64 {
	client, topic, done := stream(b, kind, 0)
	defer done()
	p := with(b, client)
	defer func() { _ = p.Close() }()
	if err := p.Publish(topic, newMessage()); err != nil {
		b.Fatal(err)
	}
	return float64(n) / calls(p, topic).Seconds()
}

const perCall = 1000

func batches(with func(*testing.B, *redis.Client) message.Publisher, kind testserver.Kind) func(b *testing.B, n int) float64 {
	return func(b *testing.B, n int) float64 {
		return published(b, with, kind, n, func(p message.Publisher, topic string) time.Duration {
			return inCalls(b, p, topic, newMessages(n))
		})
	}
}

func inCalls(b *testing.B, p message.Publisher, topic string, msgs []*message.Message) time.Duration {
	began := time.Now()
	for call := range slices.Chunk(msgs, perCall) {
		if err := p.Publish(topic, call...); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(began)
}

// duplicates publishes the same messages again.
func duplicates(b *testing.B, n int) float64 {
	return published(b, ours(publisher.ModeIDMP), testserver.Redis86, n, func(p message.Publisher, topic string) time.Duration {
		msgs := newMessages(n)
		again := make([]*message.Message, n)
		for i, msg := range msgs {
			again[i] = message.NewMessage(watermill.NewUUID(), msg.Payload)
		}
		inCalls(b, p, topic, msgs)
		return inCalls(b, p, topic, again)
	})
}

func goroutines(with func(*testing.B, *redis.Client) message.Publisher, count int) func(b *testing.B, n int) float64 {
	return func(b *testing.B, n int) float64 {
		return published(b, with, testserver.Redis86, n, func(p message.Publisher, topic string) time.Duration {
			msgs := newMessages(n)
			var wg sync.WaitGroup
			began := time.Now()
			for mine := range slices.Chunk(msgs, (n+count-1)/count) {
				wg.Go(func() {
					for _, msg := range mine {
						if err := p.Publish(topic, msg); err != nil {
							b.Error(err)
						}
					}
				})
			}
			wg.Wait()
			return time.Since(began)
		})
	}
}

// rawPer is how many messages our publisher puts into a transaction.
const rawPer = 256

// rawIDMP sends what mode IDMP does, by the raw client: MULTI, XINFO STREAM, XCFGSET, XADD
// IDMP with the fields of an entry, EXEC, with the producer IDs and the window that it has by default.
func rawIDMP(b *testing.B, n int) float64 {
	client, topic, done := stream(b, testserver.Redis86, 0)
	defer done()
	const producers, seconds, ids = 11, 3600, 10000
	ctx := b.Context()
	client.XGroupCreateMkStream(ctx, topic, "make", "0")
	if err := client.Do(ctx, "xcfgset", topic, "idmp-duration", seconds, "idmp-maxsize", ids).Err(); err != nil {
		b.Fatal(err)
	}
	msgs := newMessages(n)
	began := time.Now()
	for batch := range slices.Chunk(msgs, rawPer) {
		_, err := client.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
			pipe.Do(ctx, "xinfo", "stream", topic)
			pipe.Do(ctx, "xcfgset", topic, "idmp-duration", seconds, "idmp-maxsize", ids)
			for i, msg := range batch {
				pipe.Do(ctx, "xadd", topic, "nomkstream", "idmp", "payment-service/"+strconv.Itoa(i%producers), msg.UUID, "*",
					redisstream.UUIDHeaderKey, msg.UUID, "metadata", rawMetadata, "payload", []byte(msg.Payload))
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(began).Seconds()
}

// rawMetadata is as long as the metadata that our publisher writes for these messages.
var rawMetadata = string(make([]byte, 3*16))

// rawLatch sends what mode Latch does: the same script by EVALSHA, in pipelines.
func rawLatch(b *testing.B, n int) float64 {
	client, topic, done := stream(b, testserver.Redis70, 0)
	defer done()
	ctx := b.Context()
	script, err := os.ReadFile("../../publisher/internal/appender/latch.lua")
	if err != nil {
		b.Fatal(err)
	}
	sha, err := client.ScriptLoad(ctx, string(script)).Result()
	if err != nil {
		b.Fatal(err)
	}
	layout := "{" + topic + "}:idem:layout"
	client.HSet(ctx, layout, "mode", "latch", "shards", 1, "hash", 1, "duration", 0)
	msgs := newMessages(n)
	fingerprint := hex.EncodeToString(make([]byte, 16))
	began := time.Now()
	for batch := range slices.Chunk(msgs, rawPer) {
		_, err := client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, msg := range batch {
				pipe.EvalSha(ctx, sha, []string{topic, "{" + topic + "}:idem:latch:payment-service:" + msg.UUID, layout}, 3600_000, fingerprint, "*",
					redisstream.UUIDHeaderKey, msg.UUID, "metadata", rawMetadata, "payload", []byte(msg.Payload))
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(began).Seconds()
}

// receives reads and acknowledges messages that wait in the stream, one after the other.
func receives(reads reads) func(b *testing.B, n int) float64 {
	return func(b *testing.B, n int) float64 {
		client, topic, done := stream(b, testserver.Redis86, n+1)
		defer done()
		ctx, cancel := context.WithCancel(context.Background())
		messages, err := reads(b, client).Subscribe(ctx, topic)
		if err != nil {
			b.Fatal(err)
		}
		(<-messages).Ack()
		began := time.Now()
		for range n {
			(<-messages).Ack()
		}
		score := float64(n) / time.Since(began).Seconds()
		cancel()
		for range messages { // until it is closed
		}
		return score
	}
}

// rawReads is XREADGROUP COUNT 256 and an XACK for what it gave.
func rawReads(b *testing.B, n int) float64 {
	client, topic, done := stream(b, testserver.Redis86, n)
	defer done()
	ctx := b.Context()
	if err := client.XGroupCreate(ctx, topic, "bench", "0").Err(); err != nil {
		b.Fatal(err)
	}
	began := time.Now()
	for got := 0; got < n; {
		streams, err := client.XReadGroup(ctx, &redis.XReadGroupArgs{
			Group: "bench", Consumer: "raw", Streams: []string{topic, ">"}, Count: 256, Block: -1,
		}).Result()
		if err != nil {
			b.Fatal(err)
		}
		ids := make([]string, len(streams[0].Messages))
		for i, m := range streams[0].Messages {
			ids[i] = m.ID
		}
		if err := client.XAck(ctx, topic, "bench", ids...).Err(); err != nil {
			b.Fatal(err)
		}
		got += len(ids)
	}
	return float64(n) / time.Since(began).Seconds()
}

// latency is a row of the time from publish to the handler's start, one message each so often.
func latency(name, what string, every time.Duration, n int, quantile float64) row {
	side := func(publish func(*testing.B, *redis.Client) message.Publisher, reads reads) func(*testing.B, int) float64 {
		return func(b *testing.B, _ int) float64 { return 1 / took(b, publish, reads, every, n, quantile).Seconds() }
	}
	return row{
		name: name, what: what, floor: 1, unit: "µs", n: n,
		ours:    contender{"ours", side(ours(publisher.ModeIDMP), ourReader(subscriber.DefaultMaxInFlight))},
		against: contender{"redisstream", side(theirs, theirReader)},
	}
}

func took(b *testing.B, publish func(*testing.B, *redis.Client) message.Publisher, reads reads, every time.Duration, n int, quantile float64) time.Duration {
	client, topic, done := stream(b, testserver.Redis86, 1)
	defer done()
	p := publish(b, client)
	defer func() { _ = p.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	messages, err := reads(b, client).Subscribe(ctx, topic)
	if err != nil {
		b.Fatal(err)
	}
	(<-messages).Ack()
	began := time.Now()
	all := make([]time.Duration, 0, n)
	var publishing sync.WaitGroup
	publishing.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for i := range n {
			<-tick.C
			msg := message.NewMessage(watermill.NewUUID(), fmt.Appendf(nil, `{"order_id":"%d","payment_id":"%d-%d"}`, i, time.Since(began), number.Add(1)))
			msg.Metadata.Set("sent", strconv.FormatInt(int64(time.Since(began)), 10))
			if err := p.Publish(topic, msg); err != nil {
				b.Error(err)
				return
			}
		}
	})
	defer publishing.Wait()
	for range n {
		msg := <-messages
		now := time.Since(began)
		sent, err := strconv.ParseInt(msg.Metadata.Get("sent"), 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, now-time.Duration(sent))
		msg.Ack()
	}
	cancel()
	for range messages { // until it is closed
	}
	slices.Sort(all)
	return all[min(int(float64(n)*quantile), n-1)]
}
