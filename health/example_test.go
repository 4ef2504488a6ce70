package health_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/health"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// The database is away: the process is alive, and not ready.
func Example() {
	probes, err := health.New(health.Config{Ready: []health.Check{
		health.State("subscriber", func() error { return nil }),
		{Name: "store", Run: func(context.Context) ([]string, error) {
			return nil, errors.New("dial tcp 10.0.0.7:5432: connect: connection refused")
		}},
	}})
	if err != nil {
		panic(err)
	}
	for _, path := range []string{"/livez", "/readyz"} {
		w := httptest.NewRecorder()
		probes.ServeHTTP(w, httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /livez 200
	// /readyz 503
}

// The parts of a service that were made one by one.
func Example_parts() {
	_ = func(pub *publisher.Publisher, sub *subscriber.Subscriber, once *middleware.Once, store *sqlstore.Store, mux *http.ServeMux) error {
		probes, err := health.New(health.Config{Ready: []health.Check{
			health.Topics("publisher", pub.Check, "payments"),
			health.State("subscriber", sub.Health),
			health.State("handlers", once.Health),
			{Name: "store", Run: store.Check},
		}})
		if err != nil {
			return err
		}
		mux.Handle("/livez", probes.Live())
		mux.Handle("/readyz", probes.Ready())
		return nil
	}
}
