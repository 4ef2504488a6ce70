package health_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/health"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newHandler(t testing.TB, cfg health.Config) *health.Handler {
	t.Helper()
	h, err := health.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func probe(t testing.TB, h http.Handler) (int, health.Answer) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/readyz", nil))
	var answer health.Answer
	if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
		t.Fatalf("%q: %v", w.Body, err)
	}
	return w.Code, answer
}

func TestConfig(t *testing.T) {
	ok := health.State("ok", func() error { return nil })
	for want, cfg := range map[string]health.Config{
		"Ready is empty":             {Live: []health.Check{ok}},
		`two checks are called "ok"`: {Ready: []health.Check{ok, ok}},
		`Live[0].Name "a b"`:         {Ready: []health.Check{ok}, Live: []health.Check{{Name: "a b", Run: ok.Run}}},
		`"store" has nothing to run`: {Ready: []health.Check{{Name: "store"}}},
		`"sub" has nothing to run`:   {Ready: []health.Check{health.State("sub", nil)}},
		`"pub" has nothing to run`:   {Ready: []health.Check{health.Topics[int]("pub", nil)}},
		"Timeout -1s is negative":    {Ready: []health.Check{ok}, Timeout: -time.Second},
		"CacheFor -1s is negative":   {Ready: []health.Check{ok}, CacheFor: -time.Second},
		"CacheFor 2m0s is longer":    {Ready: []health.Check{ok}, CacheFor: 2 * time.Minute},
	} {
		if _, err := health.New(cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not say %q", err, want)
		}
	}
	_, err := health.New(health.Config{Timeout: -1, CacheFor: -1})
	if err == nil || strings.Count(err.Error(), "\n") != 3 {
		t.Errorf("%v, want three faults at once", err)
	}
}

// Redis is away: the process is not ready, and a restart would not help. The answer names
// what is wrong.
func TestRedisIsAway(t *testing.T) {
	var away atomic.Bool
	h := newHandler(t, health.Config{CacheFor: time.Nanosecond, Ready: []health.Check{
		health.Topics("publisher", func(_ context.Context, topics ...string) (int, error) {
			if len(topics) != 1 || topics[0] != "payments" {
				t.Errorf("topics %q", topics)
			}
			if away.Load() {
				return 0, errors.New("dial tcp 10.0.0.1:6379: connection refused")
			}
			return 1, nil
		}, "payments"),
		health.State("handlers", func() error { return nil }),
		{Name: "store", Run: func(context.Context) ([]string, error) { return []string{"the pool is small"}, nil }},
	}})
	if code, answer := probe(t, h.Ready()); code != http.StatusOK || answer.Status != health.StatusOK || len(answer.Checks) != 3 ||
		len(answer.Checks[2].Warnings) != 1 {
		t.Errorf("%d %+v", code, answer)
	}
	away.Store(true)
	code, answer := probe(t, h.Ready())
	if code != http.StatusServiceUnavailable || answer.Status != health.StatusFailed {
		t.Errorf("%d %+v", code, answer)
	}
	for i, want := range []string{"publisher failed dial tcp 10.0.0.1:6379: connection refused", "handlers ok ", "store ok "} {
		if c := answer.Checks[i]; c.Name+" "+c.Status+" "+c.Error != want {
			t.Errorf("%+v, want %q", c, want)
		}
	}
	if code, answer := probe(t, h.Live()); code != http.StatusOK || answer.Status != health.StatusOK {
		t.Errorf("liveness: %d %+v", code, answer)
	}
	away.Store(false)
	if code, _ := probe(t, h.Ready()); code != http.StatusOK {
		t.Errorf("%d after it is back", code)
	}
}

func TestLiveness(t *testing.T) {
	h := newHandler(t, health.Config{
		Ready: []health.Check{health.State("ok", func() error { return nil })},
		Live:  []health.Check{health.State("loop", func() error { return errors.New("it stands still") })},
	})
	if code, answer := probe(t, h.Live()); code != http.StatusServiceUnavailable || answer.Checks[0].Name != "loop" {
		t.Errorf("%d %+v", code, answer)
	}
	if code, _ := probe(t, h.Ready()); code != http.StatusOK {
		t.Errorf("readiness: %d", code)
	}
}

// However many ask at once, and however often: one run in CacheFor.
func TestProbesShareARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		h := newHandler(t, health.Config{Ready: []health.Check{{Name: "slow", Run: func(context.Context) ([]string, error) {
			runs.Add(1)
			<-time.After(time.Second)
			return nil, nil
		}}}})
		ask := func() {
			var all sync.WaitGroup
			for range 100 {
				all.Go(func() {
					if code, _ := probe(t, h.Ready()); code != http.StatusOK {
						t.Error(code)
					}
				})
			}
			all.Wait()
		}
		ask()
		<-time.After(health.DefaultCacheFor - time.Millisecond)
		ask()
		if n := runs.Load(); n != 1 {
			t.Errorf("%d runs for probes at once and within CacheFor", n)
		}
		<-time.After(time.Millisecond)
		ask()
		if n := runs.Load(); n != 2 {
			t.Errorf("%d runs after CacheFor, want 2", n)
		}
	})
}

// A check that hangs and heeds no context: the answer comes in time, the others have
// theirs, and no second one is started beside it.
func TestCheckHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var runs atomic.Int64
		release := make(chan struct{})
		h := newHandler(t, health.Config{CacheFor: time.Second, Ready: []health.Check{
			{Name: "hangs", Run: func(context.Context) ([]string, error) {
				if runs.Add(1) == 1 {
					<-release
				}
				return nil, nil
			}},
			health.State("other", func() error { return nil }),
		}})
		begin := time.Now()
		code, answer := probe(t, h.Ready())
		if took := time.Since(begin); took != health.DefaultTimeout {
			t.Errorf("took %v", took)
		}
		if code != http.StatusServiceUnavailable || !strings.Contains(answer.Checks[0].Error, "within 2s") || answer.Checks[1].Status != health.StatusOK {
			t.Errorf("%d %+v", code, answer)
		}
		for range 10 {
			<-time.After(2 * time.Second)
			if _, answer := probe(t, h.Ready()); !strings.Contains(answer.Checks[0].Error, "has not answered since") {
				t.Errorf("%+v", answer)
			}
		}
		if n := runs.Load(); n != 1 {
			t.Errorf("%d of it run", n)
		}
		close(release)
		<-time.After(2 * time.Second)
		if code, answer := probe(t, h.Ready()); code != http.StatusOK || runs.Load() != 2 {
			t.Errorf("once it ended: %d %+v", code, answer)
		}
	})
}

// A check that heeds its context gets the deadline.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, health.Config{Timeout: 100 * time.Millisecond, Ready: []health.Check{{Name: "waits", Run: func(ctx context.Context) ([]string, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}}}})
		begin := time.Now()
		if code, _ := probe(t, h.Ready()); code != http.StatusServiceUnavailable || time.Since(begin) != 100*time.Millisecond {
			t.Errorf("%d after %v", code, time.Since(begin))
		}
	})
}

// Who has begun a run goes away: the others still get its answer.
func TestProbeGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHandler(t, health.Config{Ready: []health.Check{{Name: "slow", Run: func(ctx context.Context) ([]string, error) {
			select {
			case <-time.After(time.Second):
				return nil, nil
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}}}})
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan int)
		go func() {
			w := httptest.NewRecorder()
			h.Ready().ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			gone <- w.Body.Len()
		}()
		synctest.Wait()
		cancel()
		if n := <-gone; n != 0 {
			t.Errorf("%d bytes for who has gone", n)
		}
		if code, answer := probe(t, h.Ready()); code != http.StatusOK {
			t.Errorf("%d %+v", code, answer)
		}
	})
}

func TestMethodsAndPaths(t *testing.T) {
	fine := newHandler(t, health.Config{Ready: []health.Check{health.State("x", func() error { return nil })}})
	bad := newHandler(t, health.Config{Ready: []health.Check{health.State("x", func() error { return errors.New("away") })}})
	for _, tt := range []struct {
		h            http.Handler
		method, path string
		code         int
		body         string
	}{
		{fine, http.MethodGet, "/health/readyz", 200, `"status":"ok"`},
		{fine, http.MethodGet, "/livez", 200, `"checks":[]`},
		{bad, http.MethodGet, "/readyz", 503, `"error":"away"`},
		{bad, http.MethodGet, "/health/livez/", 200, `"checks":[]`},
		{bad, http.MethodHead, "/readyz", 503, ""},
		{fine, http.MethodHead, "/readyz", 200, ""},
		{fine, http.MethodGet, "/", 404, "404"},
		{fine, http.MethodGet, "/readyz/x", 404, "404"},
		{fine, http.MethodPost, "/readyz", 405, "Not Allowed"},
		{fine.Live(), http.MethodPut, "/anything", 405, "Not Allowed"},
		{bad.Ready(), http.MethodGet, "/anything", 503, "away"},
	} {
		w := httptest.NewRecorder()
		tt.h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, nil))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), tt.body) || tt.body == "" && w.Body.Len() > 0 {
			t.Errorf("%s %s: %d %q, want %d %q", tt.method, tt.path, w.Code, w.Body, tt.code, tt.body)
		}
		if allow := w.Header().Get("Allow"); (allow == "GET, HEAD") != (tt.code == 405) {
			t.Errorf("%s %s: Allow %q", tt.method, tt.path, allow)
		}
		if w.Code != 404 && w.Header().Get("Cache-Control") != "no-store" {
			t.Errorf("%s %s may be kept by caches", tt.method, tt.path)
		}
		if kind := w.Header().Get("Content-Type"); w.Code < 400 && kind != "application/json" {
			t.Errorf("%s %s is %q", tt.method, tt.path, kind)
		}
	}
}

// What clients and drivers say may have the address that they were given, password and all.
func TestNoSecrets(t *testing.T) {
	for text, want := range map[string]string{
		`parse "redis://app:hunter2@10.0.0.1:6379/0": bad`:               `parse "redis://***@10.0.0.1:6379/0": bad`,
		`dial rediss://:hunter2@h:6379: refused`:                         `dial rediss://***@h:6379: refused`,
		`cannot parse "postgres://app:hun ter2/@h/db?x=1": invalid`:      `cannot parse "postgres://***@h/db?x=1": invalid`,
		`dsn app:hunter2@tcp(10.0.0.1:3306)/shop: refused`:               `dsn ***@tcp(10.0.0.1:3306)/shop: refused`,
		`host=h user=app password=hunter2 dbname=shop: refused`:          `host=h user=app password=*** dbname=shop: refused`,
		`host=h password='hunter2 and more' sslmode=on`:                  `host=h password=*** sslmode=on`,
		`h/db?sslpassword=hunter2&x=1`:                                   `h/db?sslpassword=***&x=1`,
		`Secret_Key: hunter2`:                                            `Secret_Key: ***`,
		`WRONGPASS invalid username-password pair or user is disabled.`:  `WRONGPASS invalid username-password pair or user is disabled.`,
		`password authentication failed for user "app" (SQLSTATE 28P01)`: `password authentication failed for user "app" (SQLSTATE 28P01)`,
		`dial tcp 10.0.0.1:6379: connect: connection refused`:            `dial tcp 10.0.0.1:6379: connect: connection refused`,
		"not UTF-8: \xff":                    "not UTF-8: \uFFFD",
		strings.Repeat("x", 999) + "ü" + "x": strings.Repeat("x", 999) + " …",
	} {
		h := newHandler(t, health.Config{Ready: []health.Check{{Name: "x", Run: func(context.Context) ([]string, error) {
			return []string{text}, errors.New(text)
		}}}})
		_, answer := probe(t, h.Ready())
		if c := answer.Checks[0]; c.Error != want || c.Warnings[0] != want {
			t.Errorf("%q is shown as %q and %q", text, c.Error, c.Warnings)
		}
	}
	h := newHandler(t, health.Config{HideErrors: true, Ready: []health.Check{{Name: "x", Run: func(context.Context) ([]string, error) {
		return []string{"w"}, errors.New("10.0.0.1")
	}}}})
	if code, answer := probe(t, h.Ready()); code != 503 || answer.Checks[0].Error != "" || answer.Checks[0].Warnings != nil || answer.Checks[0].Status != health.StatusFailed {
		t.Errorf("hidden: %+v", answer)
	}
}

// A check that panics has failed; the process goes on, and so does the check.
func TestCheckPanics(t *testing.T) {
	n := 0
	h := newHandler(t, health.Config{CacheFor: time.Nanosecond, Ready: []health.Check{health.State("x", func() error {
		if n++; n == 1 {
			panic("nil map")
		}
		return nil
	})}})
	if code, answer := probe(t, h.Ready()); code != 503 || !strings.Contains(answer.Checks[0].Error, "panicked: nil map") {
		t.Errorf("%d %+v", code, answer)
	}
	if code, answer := probe(t, h.Ready()); code != 200 {
		t.Errorf("%d %+v", code, answer)
	}
}

// The log hears of changes, and of nothing else.
func TestOnChange(t *testing.T) {
	var now error
	var heard []string
	h := newHandler(t, health.Config{CacheFor: time.Nanosecond,
		Ready: []health.Check{health.State("x", func() error { return now })},
		OnChange: func(name string, err error) {
			heard = append(heard, name+" "+map[bool]string{true: "works", false: "fails"}[err == nil])
		},
	})
	for _, now = range []error{nil, nil, errors.New("a"), errors.New("b"), nil, nil, errors.New("c")} {
		probe(t, h.Ready())
	}
	if got := strings.Join(heard, ", "); got != "x fails, x works, x fails" {
		t.Error(got)
	}
}

func TestOnChangePanics(t *testing.T) {
	h := newHandler(t, health.Config{
		Ready:    []health.Check{health.State("x", func() error { return errors.New("away") })},
		OnChange: func(string, error) { panic("nil logger") },
	})
	if code, answer := probe(t, h.Ready()); code != 503 || len(answer.Checks[0].Warnings) != 1 || answer.Checks[0].Warnings[0] != "OnChange panicked: nil logger" {
		t.Errorf("%d %+v", code, answer)
	}
}
