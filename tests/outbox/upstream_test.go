package outbox_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// refusing publishes all but one event.
type refusing struct {
	mu        sync.Mutex
	refuse    string
	published []string
}

func (r *refusing) Publish(_ string, msgs ...*message.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, msg := range msgs {
		if string(msg.Payload) == r.refuse {
			return errors.New("the server is away")
		}
		r.published = append(r.published, string(msg.Payload))
	}
	return nil
}

func (r *refusing) Close() error { return nil }

// What docs/recipes.md warns of: watermill-sql's queue adapter acknowledges a whole batch when an
// event in the middle of it can't be published within AckDeadline. If this fails, that is
// mended, and the warning can go.
func TestWatermillSQLsQueueAdapterLosesEvents(t *testing.T) {
	db := testdb.Postgres(t).Open(t)
	queue, deadline := wsql.PostgreSQLQueueSchema{}, 2*time.Second
	rows, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		SchemaAdapter: queue, OffsetsAdapter: wsql.PostgreSQLQueueOffsetsAdapter{DeleteOnAck: true},
		AckDeadline: &deadline, PollInterval: 5 * time.Millisecond, InitializeSchema: true,
	}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	if err := rows.SubscribeInitialize(outboxTopic); err != nil {
		t.Fatal(err)
	}
	pub, err := wsql.NewPublisher(wsql.BeginnerFromStdSQL(db), wsql.PublisherConfig{SchemaAdapter: queue}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	var msgs []*message.Message
	for _, payload := range strings.Fields("1 2 3 4") {
		msgs = append(msgs, message.NewMessage(watermill.NewUUID(), []byte(payload)))
	}
	if err := forwarder.NewPublisher(pub, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish("orders", msgs...); err != nil {
		t.Fatal(err)
	}
	out := &refusing{refuse: "3"}
	daemon, err := forwarder.NewForwarder(rows, out, watermill.NopLogger{}, forwarder.Config{ForwarderTopic: outboxTopic})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(context.Background()) }()
	<-daemon.Running()
	testserver.Eventually(t, 20*time.Second, func() error {
		var left int
		err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM watermill_outbox").Scan(&left)
		if err == nil && left > 0 {
			err = errors.New("rows are left: the events are kept")
		}
		return err
	})
	if err := errors.Join(daemon.Close(), <-ended); err != nil {
		t.Error(err)
	}
	if !slices.Equal(out.published, []string{"1", "2"}) {
		t.Errorf("published: %q", out.published)
	}
}
