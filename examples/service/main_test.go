package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
)

const orderCount = 20

func body(n int) string {
	return fmt.Sprintf(`{"order_id":"%d","customer":"ann","amount":%d}`, 1000+n, 100+n)
}

// Orders are posted, each twice, while the service is stopped once and killed once. Each is in
// the stream once, and billed once.
func TestEachOrderIsBilledOnce(t *testing.T) {
	env := []string{
		"REDIS_ADDR=" + miniredis.RunT(t).Addr(),
		"TAKEOVER_AFTER=2s",
		"DATABASE_URL=sqlite:" + filepath.Join(t.TempDir(), "service.db"),
	}
	i := launch(t, env...)
	for n := range orderCount {
		for _, want := range []int{http.StatusCreated, http.StatusOK} {
			if code, text, _ := request(t, http.MethodPost, i.api+"/orders", "", body(n)); code != want {
				t.Fatalf("order %d: %d %s, want %d", n, code, text, want)
			}
		}
		switch n {
		case orderCount / 3:
			i.stop(t)
			i = launch(t, env...)
		case 2 * orderCount / 3:
			i.kill(t)
			i = launch(t, env...)
		}
	}
	for n := range orderCount {
		eventually(t, func() error {
			_, text, _ := request(t, http.MethodGet, fmt.Sprintf("%s/orders/%d", i.api, 1000+n), "", "")
			if !strings.Contains(text, `"bills":1}`) {
				return errors.New(text)
			}
			return nil
		})
	}
	i.wantMetric(t, `idempotent_stream_length{topic="orders"}`, fmt.Sprint(orderCount))
	i.wantMetric(t, "service_outbox_rows", "0")
	i.stop(t)
	for _, part := range []string{"api", "router", "admin", "backend", "store", "database", "redis client"} {
		before, after, found := strings.Cut(i.log.String(), fmt.Sprintf(`"msg":"closing","part":%q`, part))
		if !found || strings.Contains(before, `"msg":"stopped"`) {
			t.Errorf("%s was not closed in its turn", part)
		}
		i.log = bytes.NewBufferString(after)
	}
}

// What a new service has done is in its metrics.
func TestMetricsAndProbes(t *testing.T) {
	i := launch(t) // all of it embedded
	for _, path := range []string{"/livez", "/readyz", "/statusz"} {
		if code, text, _ := request(t, http.MethodGet, i.admin+path, "", ""); code != http.StatusOK || !strings.Contains(text, `"status":"ok"`) {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	for range 2 {
		for n := range orderCount {
			request(t, http.MethodPost, i.api+"/orders", "", body(n))
		}
	}
	for series, want := range map[string]int{
		`service_request_duration_seconds_count{code="201",method="post"}`:            orderCount,
		`service_request_duration_seconds_count{code="200",method="post"}`:            orderCount,
		`idempotent_publishes_total{mode="latch",topic="orders",verdict="added"}`:     orderCount,
		`idempotent_publishes_total{mode="latch",topic="orders",verdict="duplicate"}`: 0,
		`idempotent_messages_total{handler="bill",outcome="handled",topic="orders"}`:  orderCount,
		`idempotent_messages_total{handler="bill",outcome="failed",topic="orders"}`:   0,
		`idempotent_deliveries_total{group="shop",settlement="acked",topic="orders"}`: orderCount,
		`idempotent_store_steps_total{outcome="ok",step="commit",store="store"}`:      orderCount,
		`idempotent_stream_length{topic="orders"}`:                                    orderCount,
		`service_outbox_rows`: 0,
	} {
		i.wantMetric(t, series, fmt.Sprint(want))
	}
	i.stop(t)
}

func TestSaysWhatIsWrongWithTheSettings(t *testing.T) {
	for name, c := range map[string]struct {
		env  map[string]string
		want []string
	}{
		"all at once": {map[string]string{
			"HTTP_ADDR": "8080", "ADMIN_ADDR": "x", "REDIS_ADDR": "redis", "DATABASE_URL": "mysql://a", "LOG_LEVEL": "loud", "DRAIN_DELAY": "5", "STOP_TIMEOUT": "1ms", "TAKEOVER_AFTER": "0s",
		}, []string{
			`HTTP_ADDR: "8080" is not host:port`, `ADMIN_ADDR: "x"`, `REDIS_ADDR: "redis" is neither host:port`,
			"DATABASE_URL: it is neither postgres://… nor sqlite:FILE", "LOG_LEVEL: ", `DRAIN_DELAY: "5" is not a duration, such as 30s`, "STOP_TIMEOUT: 1ms is less than 1s", "TAKEOVER_AFTER: 0s is less than 1s",
		}},
		"no file":           {map[string]string{"DATABASE_URL": "sqlite:"}, []string{"no file name"}},
		"URL of Redis":      {map[string]string{"REDIS_ADDR": "redis://u:hunter2@h:x"}, []string{"REDIS_ADDR: "}},
		"URL of PostgreSQL": {map[string]string{"DATABASE_URL": "postgres://u:hunter2@h:x/db"}, []string{"DATABASE_URL: "}},
	} {
		t.Run(name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			code := run(t.Context(), func(name string) string { return c.env[name] }, &stdout, &stderr)
			if code != exitConfig || stdout.Len() > 0 {
				t.Errorf("exit code %d, %s", code, &stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr.String(), want) {
					t.Errorf("%q is not in: %s", want, &stderr)
				}
			}
			if strings.Contains(stderr.String(), "hunter2") {
				t.Errorf("the password is in: %s", &stderr)
			}
		})
	}
}

// A server that is not there, or a port that is taken, ends the service, which says so.
func TestSaysWhatIsMissing(t *testing.T) {
	i := launch(t)
	for name, c := range map[string]struct{ variable, value, want string }{
		"Redis":    {"REDIS_ADDR", "127.0.0.1:1", "127.0.0.1:1"},
		"database": {"DATABASE_URL", "postgres://u:hunter2@127.0.0.1:1/db", "database: make the tables: "},
		"port":     {"HTTP_ADDR", strings.TrimPrefix(i.api, "http://"), "api: listen"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // Redis is waited for
			defer cancel()
			var stdout, stderr bytes.Buffer
			code := run(ctx, func(name string) string {
				switch name {
				case c.variable:
					return c.value
				case "ADMIN_ADDR", "HTTP_ADDR":
					return "127.0.0.1:0"
				}
				return ""
			}, &stdout, &stderr)
			if code != exitFailed || !strings.Contains(stdout.String(), c.want) || strings.Contains(stdout.String(), "hunter2") {
				t.Errorf("exit code %d: %s", code, &stdout)
			}
		})
	}
}
