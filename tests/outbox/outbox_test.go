package outbox_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	wsql "github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/components/forwarder"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

const (
	kills   = 100
	writers = 2
	pace    = 10 * time.Millisecond // between two transactions of a writer
)

// A service writes orders with their events, and rolls some back; its forwarder is killed a
// hundred times, every other time between a publish and its acknowledgement, otherwise at a
// moment that nobody knows. The stream has one entry for each order that was committed, and
// none for the others.
func TestForwarderKilledAHundredTimes(t *testing.T) {
	server, database := testserver.Start(t, testserver.Redis86), testdb.Postgres(t)
	db, topic := database.Open(t), testserver.Topic(t)
	createTables(t, db)
	stopWriting := write(t, db, topic)

	run := &forwarders{t: t, task: task{Addr: server.Addr(), DSN: database.DSN}}
	for n := range kills {
		if n%2 == 0 {
			run.untilItDies(1 + rand.IntN(10))
		} else {
			run.untilItIsKilled(rand.N(15 * time.Millisecond))
		}
	}
	committed, rolledBack := stopWriting()
	run.untilTheOutboxIsEmpty(db)

	orders := idsOf(t, db)
	entries := entriesOf(t, server.Client(), topic)
	t.Logf("committed=%d rolled_back=%d kills=%d entries=%d; published again: %d", committed, rolledBack, kills, len(entries), run.again)
	if len(orders) != committed {
		t.Errorf("%d orders are in the database, %d were committed", len(orders), committed)
	}
	if committed < kills || rolledBack < 10 {
		t.Errorf("%d committed and %d rolled back: too few to tell", committed, rolledBack)
	}
	seen := make(map[string]int)
	for _, id := range entries {
		seen[id]++
	}
	for id, n := range seen {
		switch {
		case !orders[id]:
			t.Errorf("order %s was rolled back, and has %d entries", id, n)
		case n > 1:
			t.Errorf("order %s has %d entries", id, n)
		}
	}
	for id := range orders {
		if seen[id] == 0 {
			t.Errorf("order %s has no entry", id)
		}
	}
	// Each that died between the two has left an event behind that was published already.
	if run.again < kills/2 {
		t.Errorf("%d events were published again, want at least %d: the forwarders did not die where they should", run.again, kills/2)
	}
}

func createTables(t *testing.T, db *sql.DB) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), "CREATE TABLE orders (id TEXT PRIMARY KEY)"); err != nil {
		t.Fatal(err)
	}
	rows, err := wsql.NewSubscriber(wsql.BeginnerFromStdSQL(db), wsql.SubscriberConfig{
		SchemaAdapter: schema, OffsetsAdapter: wsql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NopLogger{})
	if err == nil {
		err = rows.SubscribeInitialize(outboxTopic)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// write has orders written until the function that it returns is called.
func write(t *testing.T, db *sql.DB, topic string) (stop func() (committed, rolledBack int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var next, done, undone atomic.Int64
	var running sync.WaitGroup
	for range writers {
		running.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for ctx.Err() == nil {
				counter := &done
				commit := rand.IntN(5) > 0
				if !commit {
					counter = &undone
				}
				if err := order(db, topic, strconv.FormatInt(next.Add(1), 10), commit); err != nil {
					t.Errorf("order: %v", err)
					return
				}
				counter.Add(1)
				<-tick.C
			}
		})
	}
	end := sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(end)
	return func() (int, int) {
		end()
		return int(done.Load()), int(undone.Load())
	}
}

// order writes an order and its event in one transaction.
func order(db *sql.DB, topic, id string, commit bool) error {
	tx, err := db.BeginTx(context.Background(), nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }()
	if _, err := tx.ExecContext(context.Background(), "INSERT INTO orders (id) VALUES ($1)", id); err != nil {
		return err
	}
	rows, err := wsql.NewPublisher(wsql.TxFromStdSQL(tx), wsql.PublisherConfig{SchemaAdapter: schema}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	msg := message.NewMessage(watermill.NewUUID(), []byte(id))
	msg.Metadata.Set(eventkey.MetadataKey, eventkey.Join("order-placed", id))
	if err := forwarder.NewPublisher(rows, forwarder.PublisherConfig{ForwarderTopic: outboxTopic}).Publish(topic, msg); err != nil {
		return err
	}
	if !commit {
		return tx.Rollback()
	}
	return tx.Commit()
}

// forwarders are run one after the other.
type forwarders struct {
	t     *testing.T
	task  task
	again int // events that were in the stream already
}

// process is a running one. lines has what it says of each event, and is closed at its end.
type process struct {
	cmd   *exec.Cmd
	end   func() // closes its stdin
	lines chan string
}

func (f *forwarders) start(t task) *process {
	f.t.Helper()
	text, err := json.Marshal(t)
	if err != nil {
		f.t.Fatal(err)
	}
	cmd := exec.CommandContext(f.t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		f.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		f.t.Fatal(err)
	}
	p := &process{cmd: cmd, end: func() { _ = stdin.Close() }, lines: make(chan string)}
	go func() {
		defer close(p.lines)
		for scan := bufio.NewScanner(stdout); scan.Scan(); {
			select {
			case p.lines <- scan.Text():
			case <-f.t.Context().Done():
				return
			}
		}
	}()
	return p
}

func (f *forwarders) note(verdict string) {
	if verdict == publisher.VerdictDuplicate.String() {
		f.again++
	}
}

// wasKilled reads the rest, and fails the test if the process has ended otherwise.
func (f *forwarders) wasKilled(p *process) {
	f.t.Helper()
	for line := range p.lines {
		f.note(line)
	}
	var exit *exec.ExitError
	if err := p.cmd.Wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		f.t.Fatalf("the forwarder was not killed: %v", err)
	}
}

// untilItDies runs one that kills itself after so many publishes, before the acknowledgement.
func (f *forwarders) untilItDies(after int) {
	f.t.Helper()
	t := f.task
	t.DieAfter = after
	f.wasKilled(f.start(t))
}

// untilItIsKilled runs one that is killed a while after its first publish.
func (f *forwarders) untilItIsKilled(later time.Duration) {
	f.t.Helper()
	p := f.start(f.task)
	f.note(<-p.lines)
	when := time.NewTimer(later)
	defer when.Stop()
	for {
		select {
		case line, ok := <-p.lines:
			if !ok {
				f.t.Fatalf("the forwarder has ended by itself: %v", p.cmd.Wait())
			}
			f.note(line)
		case <-when.C:
			if err := p.cmd.Process.Kill(); err != nil {
				f.t.Fatal(err)
			}
			f.wasKilled(p)
			return
		}
	}
}

// untilTheOutboxIsEmpty runs one until everything is acknowledged, and ends it in order.
func (f *forwarders) untilTheOutboxIsEmpty(db *sql.DB) {
	f.t.Helper()
	p := f.start(f.task)
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	deadline := time.Now().Add(time.Minute)
	for open := true; open; {
		var line string
		select {
		case line, open = <-p.lines:
			f.note(line)
		case <-look.C:
			err := waiting(f.t.Context(), db)
			if err == nil {
				p.end()
			} else if time.Now().After(deadline) {
				f.t.Fatal(err)
			}
		}
	}
	if err := p.cmd.Wait(); err != nil {
		f.t.Fatalf("the last forwarder: %v", err)
	}
}

// waiting is an error while there are events that were not acknowledged.
func waiting(ctx context.Context, db *sql.DB) error {
	var rows int
	err := db.QueryRowContext(ctx, `SELECT count(*) FROM watermill_outbox m, watermill_offsets_outbox o
		WHERE (m.transaction_id, m."offset") > (o.last_processed_transaction_id, o.offset_acked)`).Scan(&rows)
	if err == nil && rows > 0 {
		err = fmt.Errorf("%d events wait", rows)
	}
	return err
}

func idsOf(t *testing.T, db *sql.DB) map[string]bool {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT id FROM orders")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	all := make(map[string]bool)
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
		all[id] = true
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

func entriesOf(t *testing.T, client *redis.Client, topic string) (ids []string) {
	t.Helper()
	entries, err := client.XRange(t.Context(), topic, "-", "+").Result()
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		ids = append(ids, fmt.Sprint(entry.Values["payload"]))
	}
	return ids
}
