package service_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

const (
	customers = 8
	each      = 40 // orders of a customer
)

// place sends an order to one of the instances until it is there, as a customer does who hears
// nothing, and then once more.
func place(ctx context.Context, instances []*instance, id string) error {
	body := fmt.Sprintf(`{"order_id":%q,"customer":"ann","amount":100}`, id)
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for sent := 0; sent < 2; {
		code, text, err := request(ctx, http.MethodPost, instances[rand.IntN(len(instances))].api+"/orders", body)
		switch {
		case ctx.Err() != nil && err != nil:
			return fmt.Errorf("order %s: %w (last: %d %s, %w)", id, context.Cause(ctx), code, text, err)
		case err != nil, code == http.StatusServiceUnavailable:
			<-pause.C
		case code == http.StatusCreated && sent == 0, code == http.StatusOK: // OK: a try without an answer had got through
			sent++
		default:
			return fmt.Errorf("order %s: %d %s", id, code, text)
		}
	}
	return nil
}

// orders has all customers place their orders, while work goes on.
func orders(t *testing.T, instances []*instance, prefix string, work func(placed <-chan struct{})) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	placed := make(chan struct{}, customers*each)
	var placing sync.WaitGroup
	for c := range customers {
		placing.Go(func() {
			for n := range each {
				if err := place(ctx, instances, fmt.Sprintf("%s-%d-%d", prefix, c, n)); err != nil {
					t.Error(err)
					return
				}
				placed <- struct{}{}
			}
		})
	}
	work(placed)
	placing.Wait()
}

// wait waits until so many more orders were placed.
func wait(t *testing.T, placed <-chan struct{}, n int) {
	t.Helper()
	for range n {
		select {
		case <-placed:
		case <-time.After(time.Minute):
			t.Fatal("no order was placed for a minute")
		}
	}
}

// billed waits until all orders are billed, and checks that none is twice.
func billed(t *testing.T, db *sql.DB, want int) {
	t.Helper()
	testserver.Eventually(t, time.Minute, func() error {
		var all, bills, waiting int
		err := db.QueryRowContext(t.Context(), `SELECT (SELECT count(*) FROM orders), (SELECT count(DISTINCT order_id) FROM bills), (SELECT count(*) FROM outbox)`).
			Scan(&all, &bills, &waiting)
		if err == nil && (all != want || bills != want || waiting > 0) {
			err = fmt.Errorf("%d orders are placed, %d are billed, %d events wait; want %d", all, bills, waiting, want)
		}
		return err
	})
	var bills int
	if err := db.QueryRowContext(t.Context(), "SELECT count(*) FROM bills").Scan(&bills); err != nil {
		t.Fatal(err)
	}
	if bills != want {
		t.Errorf("%d bills of %d orders", bills, want)
	}
}

// Two instances take orders, which are retried, while one or the other is stopped and killed:
// each order is in the stream once and billed once. Then Redis is away for a while, and orders
// are taken even so. At last the metrics say what was done.
func TestEachOrderIsBilledOnce(t *testing.T) {
	program, server, database := build(t), testserver.Start(t, testserver.Redis86), testdb.Postgres(t)
	db, client := database.Open(t), server.Client()
	env := []string{"REDIS_ADDR=" + server.Addr(), "DATABASE_URL=" + database.DSN, "TAKEOVER_AFTER=5s"}
	a, b := newInstance(t, program, env...), newInstance(t, program, env...)
	a.start()
	b.start()
	both := []*instance{a, b}
	orders(t, both, "restarts", func(placed <-chan struct{}) {
		wait(t, placed, 40)
		a.stop()
		wait(t, placed, 20)
		a.start()
		wait(t, placed, 20)
		b.kill()
		wait(t, placed, 20)
		b.start()
		for range 4 {
			wait(t, placed, 20)
			killWhileForwarding(t, client, both)
		}
	})
	want := customers * each
	billed(t, db, want)
	if n, err := client.XLen(t.Context(), "orders").Result(); err != nil || int(n) != want {
		t.Errorf("%d entries of %d orders, %v", n, want, err)
	}

	server.Kill()
	for _, i := range both {
		testserver.Eventually(t, 30*time.Second, func() error { return i.probe("/statusz", http.StatusServiceUnavailable) })
		for _, path := range []string{"/livez", "/readyz"} {
			if err := i.probe(path, http.StatusOK); err != nil {
				t.Errorf("while Redis is away: %v", err)
			}
		}
	}
	if err := place(t.Context(), both, "while-redis-is-away"); err != nil {
		t.Error(err)
	}
	if n := a.metric("service_outbox_rows"); n != 1 {
		t.Errorf("%v events wait in the outbox, want 1", n)
	}
	server.Restart()
	billed(t, db, want+1)
	for _, i := range both {
		testserver.Eventually(t, 30*time.Second, func() error { return i.probe("/statusz", http.StatusOK) })
	}
	checkMetrics(t, db, both, want+1)
	a.stop()
	b.stop()
}

// killWhileForwarding kills both when an event has just come into the stream, of several that
// one of them has taken from the outbox: before they are taken off it.
func killWhileForwarding(t *testing.T, client *redis.Client, both []*instance) {
	t.Helper()
	if err := client.XRead(t.Context(), &redis.XReadArgs{Streams: []string{"orders", "$"}, Block: time.Minute}).Err(); err != nil {
		t.Fatal(err)
	}
	for _, i := range both {
		i.kill()
	}
	for _, i := range both {
		i.start()
	}
}

// checkMetrics has more orders placed, and looks what the metrics say of them.
func checkMetrics(t *testing.T, db *sql.DB, both []*instance, before int) {
	t.Helper()
	sum := func(series string) (n float64) {
		for _, i := range both {
			n += i.metric(series)
		}
		return n
	}
	more := float64(customers * each)
	series := map[string]float64{
		`service_request_duration_seconds_count{code="201",method="post"}`:            more,
		`service_request_duration_seconds_count{code="200",method="post"}`:            more,
		`idempotent_publishes_total{mode="idmp",topic="orders",verdict="added"}`:      more,
		`idempotent_publishes_total{mode="idmp",topic="orders",verdict="duplicate"}`:  0,
		`idempotent_messages_total{handler="bill",outcome="handled",topic="orders"}`:  more,
		`idempotent_messages_total{handler="bill",outcome="skipped",topic="orders"}`:  0,
		`idempotent_deliveries_total{group="shop",settlement="acked",topic="orders"}`: more,
		`idempotent_store_steps_total{outcome="ok",step="commit",store="store"}`:      more,
		`idempotent_stream_length{topic="orders"}`:                                    2 * more, // both ask the server
	}
	was := make(map[string]float64)
	for s := range series {
		was[s] = sum(s)
	}
	orders(t, both, "metrics", func(<-chan struct{}) {})
	billed(t, db, before+int(more))
	for s, want := range series {
		testserver.Eventually(t, 10*time.Second, func() error {
			if got := sum(s) - was[s]; got != want {
				return fmt.Errorf("%s: %v, want %v", s, got, want)
			}
			return nil
		})
	}
}
