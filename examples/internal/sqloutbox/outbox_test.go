package sqloutbox_test

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	_ "modernc.org/sqlite"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/examples/internal/sqloutbox"
)

// journal is a publisher that notes what it gets, and fails where it is told to.
type journal struct {
	mu        sync.Mutex
	published []string
	refuse    string
}

func (j *journal) Publish(topic string, msgs ...*message.Message) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, msg := range msgs {
		if string(msg.Payload) == j.refuse {
			return errors.New("the server is away")
		}
		j.published = append(j.published, topic+" "+string(msg.Payload)+" "+msg.Metadata.Get("key"))
	}
	return nil
}

func (j *journal) Close() error { return nil }

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.published)
}

func open(t *testing.T) (*sql.DB, *sqloutbox.Outbox) {
	t.Helper()
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "test.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	outbox := sqloutbox.New(sqloutbox.Config{
		DB: db, Dialect: sqlstore.SQLite, Table: "outbox", PollInterval: 5 * time.Millisecond, AckDeadline: 50 * time.Millisecond, Logger: watermill.NopLogger{},
	})
	for range 2 { // it may be there
		if _, err := db.ExecContext(t.Context(), outbox.Schema()); err != nil {
			t.Fatal(err)
		}
	}
	return db, outbox
}

func publish(t *testing.T, db *sql.DB, outbox *sqloutbox.Outbox, commit bool, payloads ...string) {
	t.Helper()
	tx, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	var msgs []*message.Message
	for _, p := range payloads {
		msg := message.NewMessage(watermill.NewUUID(), []byte(p))
		msg.Metadata.Set("key", "key of "+p)
		msgs = append(msgs, msg)
	}
	if err := outbox.Publish(t.Context(), tx, "orders", msgs...); err != nil {
		t.Fatal(err)
	}
	if commit {
		err = tx.Commit()
	} else {
		err = tx.Rollback()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// start forwards to pub until the function that it returns is called.
func start(t *testing.T, outbox *sqloutbox.Outbox, pub message.Publisher) (stop func()) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: 10 * time.Second}, watermill.NopLogger{})
	if err != nil {
		t.Fatal(err)
	}
	if err := outbox.Forward(router, pub); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.Background()) }()
	stop = sync.OnceFunc(func() {
		if err := errors.Join(router.Close(), <-ended); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	<-router.Running()
	return stop
}

func waitFor(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); !done(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("not in 20 s: ", what)
		}
	}
}

func backlog(t *testing.T, outbox *sqloutbox.Outbox) int {
	t.Helper()
	rows, oldest, err := outbox.Backlog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if rows == 0 && oldest != 0 || oldest > time.Minute {
		t.Errorf("%d rows wait, the oldest for %v", rows, oldest)
	}
	return rows
}

func TestWhatIsCommittedIsForwardedInOrder(t *testing.T) {
	db, outbox := open(t)
	publish(t, db, outbox, true)
	publish(t, db, outbox, true, "1", "2")
	publish(t, db, outbox, false, "rolled back")
	pub := &journal{}
	start(t, outbox, pub)
	publish(t, db, outbox, true, "3")
	waitFor(t, "an empty outbox", func() bool { return backlog(t, outbox) == 0 })
	want := []string{"orders 1 key of 1", "orders 2 key of 2", "orders 3 key of 3"}
	if got := pub.all(); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An outage in the middle of what was read, longer than AckDeadline, leaves the rest in the
// outbox, and orders can be placed meanwhile.
func TestOutageLeavesWhatWasNotPublished(t *testing.T) {
	db, outbox := open(t)
	publish(t, db, outbox, true, "1", "2", "3", "4")
	pub := &journal{refuse: "3"}
	start(t, outbox, pub)
	waitFor(t, "an acknowledgement", func() bool { return backlog(t, outbox) <= 2 })
	if n := backlog(t, outbox); n != 2 {
		t.Fatalf("%d rows are left of 2 that were not published", n)
	}
	publish(t, db, outbox, true, "5")
	pub.mu.Lock()
	pub.refuse = ""
	pub.mu.Unlock()
	waitFor(t, "an empty outbox", func() bool { return backlog(t, outbox) == 0 })
	want := []string{"orders 1 key of 1", "orders 2 key of 2", "orders 3 key of 3", "orders 4 key of 4", "orders 5 key of 5"}
	// One that was published just as its deadline passed is published again.
	if got := slices.Compact(pub.all()); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An id is not used again after its row is gone.
func TestIdsAreNotUsedAgain(t *testing.T) {
	db, outbox := open(t)
	var before, after int
	for _, id := range []*int{&before, &after} {
		publish(t, db, outbox, true, "1")
		if err := db.QueryRowContext(t.Context(), "DELETE FROM outbox RETURNING id").Scan(id); err != nil {
			t.Fatal(err)
		}
	}
	if after <= before {
		t.Errorf("id %d after %d", after, before)
	}
}
