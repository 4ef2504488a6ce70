// Package health_test checks the probes of a service whose servers go away.
package health_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/health"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/sqlstore/gate"
	"github.com/onceward/watermill-idempotent/tests/testdb"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // of servers that are away on purpose
	testdb.Main(m)
}

// ask asks as Kubernetes does, and gives the checks that failed.
func ask(t *testing.T, address string) (code int, failed []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	var answer health.Answer
	if err == nil {
		err = json.Unmarshal(body, &answer)
	}
	if err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	if strings.Contains(string(body), "hunter2") {
		t.Errorf("the password is in %s", body)
	}
	for _, c := range answer.Checks {
		if c.Status != health.StatusOK {
			failed = append(failed, c.Name)
			if c.Error == "" {
				t.Errorf("%s does not say why it failed", c.Name)
			}
		}
	}
	return res.StatusCode, failed
}

// Redis goes away, then the database, then it hangs: readiness says which, in time; liveness
// does not mind; and both are well when they are back.
func TestProbesOfAServiceWhoseServersGoAway(t *testing.T) {
	server := testserver.Start(t, testserver.Redis86)
	client := server.Client()
	// A database behind a gate, with a password that nobody may see.
	d := testdb.Postgres(t)
	u, err := url.Parse(d.DSN)
	if err != nil {
		t.Fatal(err)
	}
	g := gate.New(t, u.Host)
	u.Host, u.User = g.Addr(), url.UserPassword(u.User.Username(), "hunter2")
	db, err := sql.Open("pgx", u.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.Open()
		_ = db.Close()
	})
	pub, err := publisher.New(publisher.Config{Client: client, ProducerID: "billing"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pub.Close() })
	sub, err := subscriber.New(subscriber.Config{Client: client, Group: "billing"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = sub.Close() })
	if _, err := sub.Subscribe(t.Context(), "payments"); err != nil {
		t.Fatal(err)
	}
	records, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	store, err := sqlstore.New(sqlstore.Config{DB: db, Dialect: sqlstore.Postgres})
	if err == nil {
		err = store.Migrate(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })

	const timeout = 3 * time.Second // the machine is busy
	probes, err := health.New(health.Config{Timeout: timeout, CacheFor: time.Millisecond, Ready: []health.Check{
		health.Topics("publisher", pub.Check, "payments"),
		health.Topics("group", sub.Check, "payments"),
		health.State("subscriber", sub.Health),
		{Name: "records", Run: records.Check},
		{Name: "database", Run: store.Check},
	}})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/health/", probes)
	web := httptest.NewServer(mux)
	t.Cleanup(func() {
		http.DefaultClient.CloseIdleConnections()
		web.Close()
	})
	want := func(when string, code int, failed ...string) {
		t.Helper()
		testserver.Eventually(t, 30*time.Second, func() error {
			begin := time.Now()
			got, which := ask(t, web.URL+"/health/readyz")
			if took := time.Since(begin); took > timeout+10*time.Second {
				t.Errorf("%s: answered after %v", when, took)
			}
			if got != code || strings.Join(which, " ") != strings.Join(failed, " ") {
				return fmt.Errorf("%s: ready %d %q, want %d %q", when, got, which, code, failed)
			}
			return nil
		})
		if got, which := ask(t, web.URL+"/health/livez"); got != http.StatusOK {
			t.Errorf("%s: alive %d %q", when, got, which)
		}
	}
	want("all is well", http.StatusOK)
	server.Stop()
	want("Redis is away", http.StatusServiceUnavailable, "publisher", "group", "subscriber", "records")
	server.Restart()
	want("Redis is back", http.StatusOK)
	g.Cut()
	want("the database is away", http.StatusServiceUnavailable, "database")
	g.Back()
	want("the database is back", http.StatusOK)
	g.Shut()
	want("the database hangs", http.StatusServiceUnavailable, "database")
	g.Open()
	want("the database answers", http.StatusOK)
}
