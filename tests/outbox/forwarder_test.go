package outbox_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/redis/go-redis/v9"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/publisher"
)

// task is what a forwarder is told.
type task struct {
	Addr, DSN string
	// DieAfter is the publish after which it kills itself, before the acknowledgement; 0: never.
	DieAfter int
}

const outboxTopic = "outbox"

// schema is watermill-sql's own, with small batches: a batch is acknowledged as a whole, and
// forwarders that never live as long as that would get nowhere.
var schema = wsql.DefaultPostgreSQLSchema{SubscribeBatchSize: 5}

// forward is a forwarder process: it publishes until stdin ends, and says of each event
// whether the stream had it already.
func forward(text string) error {
	var t task
	if err := json.Unmarshal([]byte(text), &t); err != nil {
		return err
	}
	client := redis.NewClient(&redis.Options{Addr: t.Addr})
	defer client.Close()
	db, err := sql.Open("pgx", t.DSN)
	if err != nil {
		return err
	}
	defer db.Close()
	rows, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
		PollInterval: 5 * time.Millisecond, RetryInterval: 5 * time.Millisecond,
	}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	pub, err := publisher.New(publisher.Config{
		Client: client, ProducerID: "shop",
		Hooks: []publisher.Hooks{{OnPublish: func(r publisher.Receipt) { fmt.Println(r.Verdict) }}},
	}, nil)
	if err != nil {
		return err
	}
	defer pub.Close()
	daemon, err := forwarder.NewForwarder(rows, &dying{Publisher: pub, left: t.DieAfter}, watermill.NopLogger{},
		forwarder.Config{ForwarderTopic: outboxTopic, CloseTimeout: 10 * time.Second})
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return daemon.Run(ctx)
}

// dying dies between a publish and its acknowledgement.
type dying struct {
	message.Publisher
	left int // publishes, by one goroutine
}

func (d *dying) Publish(topic string, msgs ...*message.Message) error {
	if err := d.Publisher.Publish(topic, msgs...); err != nil {
		return err
	}
	if d.left--; d.left == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
	return nil
}
