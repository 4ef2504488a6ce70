package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
)

const (
	workerEnv = "PAYMENTS_WORKER" // set in the processes that consume
	group     = "billing"
	handler   = "bill"

	// idle is after which time a consumer without a sign of life is taken for dead:
	// short, so that nobody has to wait for the end of this program.
	idle = time.Second
)

// task says what a consuming process does.
type task struct {
	Addr     string `json:"addr"`
	Topic    string `json:"topic"`
	Consumer string `json:"consumer"`
	Plain    bool   `json:"plain"`
	DieAt    int    `json:"die_at"` // the message after whose work the process is killed
}

// report is what it says of a message, as a line of JSON.
type report struct {
	Key     string `json:"key"`
	Skipped bool   `json:"skipped"`
}

// record names what the store keeps of an event.
func record(topic, key string) dedupe.Key {
	return dedupe.Key{Namespace: group, Topic: topic, Handler: handler, Event: key}
}

// work consumes until stdin ends: then nobody is there who would read what it prints.
func work(ctx context.Context, text string, stdin io.Reader, stdout io.Writer) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	o, err := clientOptions(t.Addr)
	if err != nil {
		return err
	}
	client := redis.NewClient(o)
	defer func() { _ = client.Close() }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		stop()
	}()

	w := &worker{task: t, out: json.NewEncoder(stdout), logger: watermill.NewSlogLogger(
		slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))}
	run := w.consumeOnce
	if t.Plain {
		run = w.consumePlain
	}
	return run(ctx, client)
}

// worker has one message at a time.
type worker struct {
	task
	logger watermill.LoggerAdapter
	out    *json.Encoder
	said   int
}

// consumeOnce consumes with this library.
func (w *worker) consumeOnce(ctx context.Context, client *redis.Client) error {
	billing, err := idempotent.Open(ctx, idempotent.Config{
		Client: client, Service: group, Retention: time.Hour, Logger: w.logger,
		MaxDeliveries: 20, // then it is a dead letter, in {payments}.dead, with the error of its handler
		Subscriber:    subscriber.Config{Consumer: w.Consumer, MinIdle: idle},
		Once: middleware.Config{Hooks: []middleware.Hooks{{
			OnHandled: func(ev middleware.Event) { w.say(report{Key: ev.Key}) },
			OnSkipped: func(ev middleware.Event) { w.say(report{Key: ev.Key, Skipped: true}) },
		}}},
	})
	if err != nil {
		return err
	}
	err = w.route(ctx, client, billing.Subscriber(), billing.Once().Consumer(func(*message.Message) error { return nil })) // the work
	return errors.Join(err, billing.Close(context.WithoutCancel(ctx)))
}

// consumePlain consumes with watermill-redisstream.
func (w *worker) consumePlain(ctx context.Context, client *redis.Client) error {
	sub, err := redisstream.NewSubscriber(redisstream.SubscriberConfig{
		Client: client, ConsumerGroup: group, Consumer: w.Consumer,
		MaxIdleTime:   3 * idle, // its own as well, should this process stall
		ClaimInterval: idle / 4, BlockTime: idle / 4,
	}, w.logger)
	if err != nil {
		return err
	}
	return w.route(ctx, client, sub, func(msg *message.Message) error {
		key, err := payKey.Key(w.Topic, msg)
		w.say(report{Key: key})
		return err
	})
}

// route runs a Router with one handler.
func (w *worker) route(ctx context.Context, client *redis.Client, sub message.Subscriber, handle message.NoPublishHandlerFunc) error {
	router, err := message.NewRouter(message.RouterConfig{}, w.logger)
	if err != nil {
		return err
	}
	router.AddConsumerHandler(handler, w.Topic, sub, func(msg *message.Message) error {
		err := handle(msg)
		if w.said == w.DieAt {
			w.die(client, msg)
		}
		return err // nil acknowledges
	})
	return router.Run(ctx)
}

func (w *worker) say(r report) {
	_ = w.out.Encode(r)
	w.said++
}

// die kills this process, as kill -9 does, once the acknowledgements of the messages
// before are with the server. redisstream waits for each of its own.
func (w *worker) die(client *redis.Client, msg *message.Message) {
	d, ours := subscriber.DeliveryOf(msg)
	for ours {
		p, err := client.XPending(msg.Context(), w.Topic, group).Result()
		if err != nil {
			panic(err)
		}
		if p.Lower == d.EntryID() { // the oldest one
			break
		}
		<-time.After(idle / 100)
	}
	_, _ = fmt.Fprintf(os.Stderr, "consumer %s is killed now, which the log of the next one tells\n", w.Consumer)
	self, err := os.FindProcess(os.Getpid())
	if err == nil {
		err = self.Kill()
	}
	if err != nil {
		panic(err)
	}
	select {}
}
