package crash_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// TestFaultThreeAtOnce delivers each of 10,000 events three times at once, to three
// consumers with connections of their own, while handlers fail and, of Redis, replies
// of the store get lost. Every event has one effect and one message.
func TestFaultThreeAtOnce(t *testing.T) {
	events := 10_000
	if testing.Short() {
		events = 500
	}
	t.Run("redis", func(t *testing.T) {
		server := testserver.Start(t, testserver.Redis86)
		var links []*faultlink.Link
		threeAtOnce(t, events, nil, func(t *testing.T, n int) dedupe.Store {
			link := faultlink.New(t, server.Addr())
			link.LoseRate(0.01, uint64(n), "SET", "EVALSHA", "EVAL")
			links = append(links, link)
			s, err := redisstore.New(redisstore.Config{Client: link.Client()})
			if err != nil {
				t.Fatal(err)
			}
			return s
		})
		lost := 0
		for _, link := range links {
			lost += link.Stats().Lost
		}
		t.Logf("%d replies lost", lost)
	})
	for name, database := range map[string]func(testing.TB) *testdb.Database{"postgres": testdb.Postgres, "mysql": testdb.MariaDB} {
		t.Run(name, func(t *testing.T) {
			d := database(t)
			db := d.Open(t)
			if _, err := db.ExecContext(t.Context(), "CREATE TABLE ledger (event VARCHAR(40) NOT NULL)"); err != nil {
				t.Fatal(err)
			}
			threeAtOnce(t, events, db, func(t *testing.T, _ int) dedupe.Store {
				s, err := sqlstore.New(sqlstore.Config{DB: d.Open(t), Dialect: sqlstore.Dialect(name)})
				if err == nil {
					err = s.Migrate(t.Context())
				}
				if err != nil {
					t.Fatal(err)
				}
				return s
			})
		})
	}
}

// tally is what is known of one event.
type tally struct {
	inside, successes, overlaps atomic.Int64
	mu                          sync.Mutex
	messages                    map[string]bool
}

func threeAtOnce(t *testing.T, events int, db *sql.DB, open func(*testing.T, int) dedupe.Store) {
	const consumers, workers = 3, 4
	all := make([]tally, events)
	var handled atomic.Int64
	var wg sync.WaitGroup
	for n := range consumers {
		store := open(t, n)
		once, err := middleware.New(middleware.Config{
			Store: store, Namespace: "ledger", Retention: time.Hour, Wait: 20 * time.Millisecond, Delay: 5 * time.Millisecond,
			Hooks: []middleware.Hooks{{OnHandled: func(middleware.Event) { handled.Add(1) }}},
		}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := errors.Join(once.Close(context.Background()), store.Close()); err != nil {
				t.Error(err)
			}
		})
		for w := range workers {
			wg.Go(func() {
				random := rand.New(rand.NewPCG(uint64(n), uint64(w)))
				for e := w; e < events; e += workers {
					deliver(t, once, &all[e], e, random, db != nil)
				}
			})
		}
	}
	wg.Wait()
	for e := range all {
		if got := &all[e]; got.successes.Load() != 1 || got.overlaps.Load() != 0 || len(got.messages) != 1 {
			t.Errorf("event %d: %d successes, %d runs began beside another, %d different messages", e, got.successes.Load(), got.overlaps.Load(), len(got.messages))
		}
		if t.Failed() {
			break
		}
	}
	if n := handled.Load(); n != int64(events) {
		t.Errorf("%d records for %d events", n, events)
	}
	if db != nil {
		var rows, different int
		if err := db.QueryRowContext(t.Context(), "SELECT count(*), count(DISTINCT event) FROM ledger").Scan(&rows, &different); err != nil {
			t.Fatal(err)
		}
		if rows != events || different != events {
			t.Errorf("%d effects of %d events, want %d", rows, different, events)
		}
	}
}

var errRandom = errors.New("fails at random")

// deliver delivers an event until it is acknowledged, as a subscriber would.
func deliver(t *testing.T, once *middleware.Once, got *tally, e int, random *rand.Rand, transactional bool) {
	for deadline := time.Now().Add(2 * time.Minute); ; {
		msg := message.NewMessage("", fmt.Append(nil, e))
		msg.Metadata.Set(eventkey.MetadataKey, fmt.Sprint("pay:", e))
		out, err := once.Run(context.Background(), msg, "charge", func(ctx context.Context) ([]*message.Message, error) {
			if got.inside.Add(1) > 1 {
				got.overlaps.Add(1)
			}
			defer got.inside.Add(-1)
			if transactional {
				tx, ok := sqlstore.TxFrom(ctx)
				if !ok {
					return nil, sqlstore.ErrNoTx
				}
				if _, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO ledger VALUES ('%d')", e)); err != nil {
					return nil, err
				}
			}
			switch random.IntN(10) {
			case 0:
				return nil, errRandom
			case 1:
				return nil, fmt.Errorf("later: %w", dedupe.ErrRetryLater)
			}
			got.successes.Add(1)
			return []*message.Message{message.NewMessage("", msg.Payload)}, nil
		})
		if err == nil {
			// It is published and acknowledged; a tenth of the time that fails.
			got.mu.Lock()
			if got.messages == nil {
				got.messages = make(map[string]bool)
			}
			for _, m := range out {
				got.messages[m.UUID] = true
			}
			got.mu.Unlock()
			if random.IntN(10) > 0 {
				msg.Ack()
				return
			}
			msg.Nack()
			continue
		}
		msg.Nack()
		if !errors.Is(err, errRandom) && !errors.Is(err, dedupe.ErrRetryLater) {
			t.Errorf("event %d: %v", e, err)
			return
		}
		if time.Now().After(deadline) {
			t.Errorf("event %d is never handled: %v", e, err)
			return
		}
	}
}
