package crash_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"

	"github.com/ThreeDotsLabs/watermill/message"
)

// outcome is what a point leads to. Everywhere the outputs are published once, nothing
// is pending, and the event is recorded.
type outcome struct{ runs, effects int }

// points are the list of docs/guarantees.md.
var points = []struct {
	name              string
	leased, inOneStep outcome // with a leased store, with a transactional one
}{
	{beforeClaim, outcome{1, 1}, outcome{1, 1}},
	{afterClaim, outcome{1, 1}, outcome{1, 1}},
	{afterEffect, outcome{2, 2}, outcome{2, 1}},
	{afterRecord, outcome{1, 1}, outcome{1, 1}},
	{afterOutput1, outcome{1, 1}, outcome{1, 1}},
	{afterOutputs, outcome{1, 1}, outcome{1, 1}},
	{afterAck, outcome{1, 1}, outcome{1, 1}},
	{beforeSettle, outcome{1, 1}, outcome{1, 1}},
}

func TestKilledBetweenTwoSteps(t *testing.T) {
	server := testserver.Start(t, testserver.Redis86)
	for _, store := range []string{"redis", "sqlite", "postgres", "mysql"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			for _, p := range points {
				t.Run(p.name, func(t *testing.T) {
					t.Parallel()
					want := p.inOneStep
					if store == "redis" {
						want = p.leased
					}
					crash(t, server.As(t), store, p.name, want)
				})
			}
		})
	}
}

// open makes topics, and a database where the store needs one.
func open(t *testing.T, server *testserver.Server, store string) (o order, db *sql.DB) {
	t.Helper()
	o = order{Addr: server.Addr(), In: testserver.Topic(t), Out: testserver.Topic(t), Store: store}
	switch store {
	case "sqlite":
		o.Driver, o.DSN = "sqlite", filepath.Join(t.TempDir(), "test.db")+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(5000)"
	case "postgres":
		o.Driver, o.DSN = "pgx", testdb.Postgres(t).DSN
	case "mysql":
		o.Driver, o.DSN = "mysql", testdb.MariaDB(t).DSN
	}
	if o.Driver != "" {
		var err error
		if db, err = sql.Open(o.Driver, o.DSN); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = db.Close() })
		if _, err := db.ExecContext(t.Context(), "CREATE TABLE ledger (amount INTEGER NOT NULL)"); err != nil {
			t.Fatal(err)
		}
	}
	publish(t, server.Client(), o.In)
	return o, db
}

func crash(t *testing.T, server *testserver.Server, store, point string, want outcome) {
	client := server.Client()
	o, db := open(t, server, store)
	o.Point = point
	err := run(t, o)
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("the first process was not killed: %v", err)
	}
	o.Point = withoutACrash
	if err := run(t, o); err != nil {
		t.Fatalf("the second process: %v", err)
	}

	check(t, client, db, o, want)
}

func check(t *testing.T, client *redis.Client, db *sql.DB, o order, want outcome) {
	t.Helper()
	if runs := number(t, client, o.In+":runs"); runs != want.runs {
		t.Errorf("%d runs, want %d", runs, want.runs)
	}
	effects := 0
	if db == nil {
		effects = number(t, client, o.In+":effects")
	} else if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM ledger").Scan(&effects); err != nil {
		t.Fatal(err)
	}
	if effects != want.effects {
		t.Errorf("%d effects, want %d", effects, want.effects)
	}
	if n := client.XLen(t.Context(), o.Out).Val(); n != 2 {
		t.Errorf("%d outputs published, want 2", n)
	}
	if !handled(t.Context(), client, o.In) {
		t.Error("something is pending")
	}
}

func publish(t *testing.T, client *redis.Client, topic string) {
	t.Helper()
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "orders"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
	msg := message.NewMessage("u1", []byte(`{"payment_id":"p1"}`))
	msg.Metadata.Set(eventkey.MetadataKey, "pay:1")
	if err := pub.Publish(topic, msg); err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, client *redis.Client, key string) int {
	t.Helper()
	n, err := client.Get(context.Background(), key).Int()
	if err != nil && !errors.Is(err, redis.Nil) {
		t.Fatal(err)
	}
	return n
}

// A process is frozen beyond its lease, between the effect and the record. With the
// Redis store another takes over, and the thawed one's record is refused. With a
// transactional store nobody does while the session lives; the thawed one commits.
func TestFrozenProcess(t *testing.T) {
	server := testserver.Start(t, testserver.Redis86)
	for _, store := range []string{"redis", "postgres", "mysql"} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			server := server.As(t)
			client := server.Client()
			o, db := open(t, server, store)
			o.Point = frozen
			first := command(t, o)
			if err := first.Start(); err != nil {
				t.Fatal(err)
			}
			testserver.Eventually(t, 30*time.Second, func() error {
				if number(t, client, o.In+":runs") == 0 || !isStopped(first.Process.Pid) {
					return errors.New("it is not frozen yet")
				}
				return nil
			})
			o.Point = withoutACrash
			var secondErr error
			second := make(chan struct{})
			go func() {
				defer close(second)
				secondErr = run(t, o)
			}()
			want := outcome{1, 1}
			if store == "redis" {
				want = outcome{2, 2}
				<-second
			} else {
				select {
				case <-second:
					t.Error("the second process has ended while the first one's session lives")
				case <-time.After(3 * lease):
				}
			}
			if err := first.Process.Signal(syscall.SIGCONT); err != nil {
				t.Fatal(err)
			}
			if err := first.Wait(); err != nil {
				t.Errorf("the first process: %v", err)
			}
			lost := number(t, client, o.In+":lost")
			if store == "redis" && lost != 1 {
				t.Errorf("%d lost claims told, want that of the frozen one", lost)
			}
			if <-second; secondErr != nil {
				t.Errorf("the second process: %v", secondErr)
			}
			check(t, client, db, o, want)
		})
	}
}

func isStopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, rest, _ := strings.Cut(string(stat), ") ")
	return err == nil && strings.HasPrefix(rest, "T")
}

// command makes one that runs this test's program as a consumer.
func command(t *testing.T, o order) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	return cmd
}

// run runs one to its end.
func run(t *testing.T, o order) error {
	t.Helper()
	out, err := command(t, o).CombinedOutput()
	if err != nil && len(out) > 0 {
		t.Logf("%s", out)
	}
	return err
}
