// Package sqloutbox keeps events in a table until they are published: watermill-sql's publisher
// writes them in the transaction of what they are about, and Watermill's forwarder takes them
// from there to another publisher. The examples outbox and service use it; copy it along with
// them.
//
// A forwarder that dies or is stopped after it has published an event, and before the row is
// gone, publishes it again. So the publisher behind it must know the event again, by a key in
// its metadata (eventkey.MetadataKey), which the outbox keeps.
package sqloutbox

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
)

// Config configures an [Outbox].
type Config struct {
	DB      *sql.DB
	Dialect sqlstore.Dialect // Postgres or SQLite
	Table   string           // letters, digits and underscores
	// PollInterval is how often the forwarder looks for rows while there are none, so how late
	// an event may be.
	PollInterval time.Duration
	// AckDeadline is how long the forwarder tries to publish an event before it gives up its
	// transaction and reads again; longer than a publish takes (publisher.Config.RetryFor).
	AckDeadline time.Duration
	Logger      watermill.LoggerAdapter
}

// Outbox is a table of events that wait to be published.
type Outbox struct{ cfg Config }

// New makes an Outbox. The table is made by the statement of [Outbox.Schema].
func New(cfg Config) *Outbox { return &Outbox{cfg: cfg} }

// Schema is the statement that makes the table where it is missing.
func (o *Outbox) Schema() string { return o.table().schema(o.cfg.Table) }

func (o *Outbox) table() table { return table{postgres: o.cfg.Dialect == sqlstore.Postgres} }

// Publish writes messages for a topic into the outbox. They are published once tx is committed,
// and never if it is rolled back.
func (o *Outbox) Publish(ctx context.Context, tx *sql.Tx, topic string, msgs ...*message.Message) error {
	if len(msgs) == 0 {
		return nil
	}
	for _, msg := range msgs {
		msg.SetContext(ctx) // that of the statement
	}
	rows, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: o.table()}, o.cfg.Logger)
	if err != nil {
		return err
	}
	// The forwarder's own publisher wraps each message in an envelope with its topic.
	return forwarder.NewPublisher(rows, forwarder.PublisherConfig{ForwarderTopic: o.cfg.Table}).Publish(topic, msgs...)
}

// Forward adds a handler to the router that publishes what is in the outbox by pub, one event
// after the other, in the order of the rows. One that can't be published is tried again until it
// can, and those behind it wait.
func (o *Outbox) Forward(router *message.Router, pub message.Publisher) error {
	db := wsql.BeginnerFromStdSQL(o.cfg.DB)
	if o.cfg.Dialect == sqlstore.SQLite {
		db = withoutTx{db}
	}
	rows, err := wsql.NewSubscriber(db, wsql.SubscriberConfig{
		SchemaAdapter:  o.table(),
		OffsetsAdapter: acknowledge{},
		PollInterval:   o.cfg.PollInterval,
		AckDeadline:    &o.cfg.AckDeadline,
	}, o.cfg.Logger)
	if err != nil {
		return err
	}
	_, err = forwarder.NewForwarder(rows, pub, o.cfg.Logger, forwarder.Config{ForwarderTopic: o.cfg.Table, Router: router})
	return err
}

// Backlog says how many events wait, and for how long the oldest one has, by this machine's
// clock.
func (o *Outbox) Backlog(ctx context.Context) (rows int, oldest time.Duration, err error) {
	var since sql.NullInt64
	err = o.cfg.DB.QueryRowContext(ctx, fmt.Sprintf(`SELECT count(*), min(created_at) FROM %q`, o.cfg.Table)).Scan(&rows, &since)
	if since.Valid {
		oldest = max(time.Since(time.UnixMilli(since.Int64)), 0)
	}
	return rows, oldest, err
}
