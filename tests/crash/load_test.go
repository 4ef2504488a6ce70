package crash_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

const loadEnv = "CRASH_TEST_LOAD"

// load is what one of several processes that deliver the same events is told.
type load struct {
	Store, DSN     string
	Number, Events int
	Loss           float64 // share of the store's replies that get lost
	Journal        string  // file for what it did
}

const (
	deliverers  = 4 // goroutines of a process
	deliverTime = 3 * time.Minute
)

// runLoad is such a process.
func runLoad() error {
	var l load
	if err := json.Unmarshal([]byte(os.Getenv(loadEnv)), &l); err != nil {
		return err
	}
	f, err := os.Create(l.Journal)
	if err != nil {
		return err
	}
	j := &journal{w: bufio.NewWriter(f)}
	link := &lossy{rate: l.Loss, random: rand.New(rand.NewPCG(uint64(l.Number), 1))}
	store, effect, err := l.open(link)
	if err != nil {
		return err
	}
	once, err := middleware.New(middleware.Config{
		Store: store, Namespace: "ledger", Retention: time.Hour, Wait: 20 * time.Millisecond, Delay: 5 * time.Millisecond,
		Hooks: []middleware.Hooks{{OnHandled: func(ev middleware.Event) { j.note("record", ev.Key[len("pay:"):]) }}},
	}, nil)
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	failures := make([]error, deliverers)
	for w := range deliverers {
		wg.Go(func() {
			d := deliverer{once, j, effect, rand.New(rand.NewPCG(uint64(l.Number), uint64(w)))}
			for e := w; e < l.Events && failures[w] == nil; e += deliverers {
				failures[w] = d.deliver(e)
			}
		})
	}
	wg.Wait()
	j.note("lost", link.lost())
	return errors.Join(errors.Join(failures...), once.Close(context.Background()), store.Close(), j.w.Flush(), f.Close())
}

type journal struct {
	mu sync.Mutex
	w  *bufio.Writer
}

func (j *journal) note(what string, values ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, _ = fmt.Fprintln(j.w, append([]any{what}, values...)...)
}

type deliverer struct {
	once    *middleware.Once
	journal *journal
	effect  func(ctx context.Context, e int) error // in the transaction of the claim; nil: none
	random  *rand.Rand
}

var errRandom = errors.New("fails at random")

// deliver delivers an event until it is acknowledged, as a subscriber would.
func (d deliverer) deliver(e int) error {
	for deadline := time.Now().Add(deliverTime); ; {
		msg := message.NewMessage("", fmt.Append(nil, e))
		msg.Metadata.Set(eventkey.MetadataKey, fmt.Sprint("pay:", e))
		out, err := d.once.Run(context.Background(), msg, "charge", func(ctx context.Context) ([]*message.Message, error) {
			return d.handle(ctx, e, msg)
		})
		switch {
		case err == nil:
			// It is published and acknowledged; a tenth of the time that fails.
			for _, m := range out {
				d.journal.note("message", e, m.UUID)
			}
			if d.random.IntN(10) > 0 {
				msg.Ack()
				return nil
			}
		case errors.Is(err, dedupe.ErrConflict) || errors.Is(err, dedupe.ErrCorrupt):
			return fmt.Errorf("event %d: %w", e, err)
		case time.Now().After(deadline):
			return fmt.Errorf("event %d is never handled: %w", e, err)
		}
		msg.Nack()
	}
}

func (d deliverer) handle(ctx context.Context, e int, msg *message.Message) ([]*message.Message, error) {
	begin := time.Now().UnixNano()
	if d.effect != nil {
		if err := d.effect(ctx, e); err != nil {
			// The connection is gone, and the claim with it: that another run has begun
			// is right. It is not noted.
			return nil, err
		}
	}
	what, err := "run", error(nil)
	switch d.random.IntN(10) {
	case 0:
		what, err = "failed", errRandom
	case 1:
		what, err = "failed", fmt.Errorf("later: %w", dedupe.ErrRetryLater)
	}
	d.journal.note(what, e, begin, time.Now().UnixNano())
	if err != nil {
		return nil, err
	}
	return []*message.Message{message.NewMessage("", msg.Payload)}, nil
}

func (l load) transactional() bool { return l.Store != "redis" }

func (l load) createLedger(ctx context.Context) error {
	if !l.transactional() {
		return nil
	}
	return l.query(func(db *sql.DB) error {
		_, err := db.ExecContext(ctx, "CREATE TABLE ledger (event VARCHAR(40) NOT NULL)")
		return err
	})
}

func (l load) effects(ctx context.Context) (rows, different int, err error) {
	err = l.query(func(db *sql.DB) error {
		return db.QueryRowContext(ctx, "SELECT count(*), count(DISTINCT event) FROM ledger").Scan(&rows, &different)
	})
	return rows, different, err
}

func (l load) query(do func(*sql.DB) error) error {
	db, err := l.openDB(nil)
	if err != nil {
		return err
	}
	return errors.Join(do(db), db.Close())
}
