package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/publisher"
)

const forwarderEnv = "OUTBOX_FORWARDER" // set in the processes that forward

// task says what a forwarder works on.
type task struct {
	Redis    string `json:"redis"`
	Database string `json:"database"`
	ID       string `json:"id"`
}

// event is what it says of an event that it has published, as a line of JSON.
type event struct {
	Key   string `json:"key"`
	Again bool   `json:"again"` // it was in the stream already
}

// forward publishes what is in the outbox, until stdin ends.
func forward(ctx context.Context, text string, stdin io.Reader, stdout io.Writer) (err error) {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	options, err := redisOptions(t.Redis)
	if err != nil {
		return err
	}
	client := redis.NewClient(options)
	defer func() { err = errors.Join(err, client.Close()) }()
	db, err := connect(t.Database, t.ID)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.db.Close()) }()

	lines := json.NewEncoder(stdout)
	pub, err := publisher.New(publisher.Config{
		Client: client, ProducerID: "shop", // the keys come with the messages
		Hooks: []publisher.Hooks{{OnPublish: func(r publisher.Receipt) {
			if r.Err == nil {
				_ = lines.Encode(event{Key: r.Key, Again: r.Verdict == publisher.VerdictDuplicate})
			}
		}}},
	}, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pub.Close()) }()

	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	if err := db.outbox().Forward(router, pub); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		stop()
	}()
	return router.Run(ctx)
}
