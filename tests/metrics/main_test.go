// Package metrics_test compares metrics with what was done, on real servers.
package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{}) // of servers that are away on purpose
	testserver.Main(m)
}

type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

// within is how long a test waits for what should happen soon.
const within = 20 * time.Second

// service is one with metrics, also of the store that Open makes.
type service struct {
	*idempotent.PubSub
	registry *prometheus.Registry
}

func newService(t testing.TB, client redis.UniversalClient) service {
	t.Helper()
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		t.Fatal(err)
	}
	s := service{registry: prometheus.NewPedanticRegistry()}
	s.registry.MustRegister(m)
	s.PubSub, err = idempotent.Open(t.Context(), m.Instrument(idempotent.Config{
		Client: client, Service: "billing", Key: eventkey.Template("pay:{$.id}"), Retention: 24 * time.Hour, MaxDeliveries: 3,
		Logger: observe.NewLogger(t),
		Subscriber: subscriber.Config{
			MinIdle: 8 * time.Second, Block: 50 * time.Millisecond,
			RedeliverAfter: 5 * time.Millisecond, RedeliverMax: 50 * time.Millisecond,
		},
	}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// addStreams has the registry look at topics as well.
func addStreams(t testing.TB, registry *prometheus.Registry, cfg metrics.StreamsConfig) {
	t.Helper()
	cfg.Timeout = 5 * time.Second // the machine may be busy
	streams, err := metrics.NewStreams(cfg)
	if err != nil {
		t.Fatal(err)
	}
	registry.MustRegister(streams)
}

// route runs a Router until the test ends.
func route(t testing.TB, add func(*message.Router)) {
	t.Helper()
	router, err := message.NewRouter(message.RouterConfig{}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	add(router)
	done := make(chan error, 1)
	go func() { done <- router.Run(context.Background()) }()
	t.Cleanup(func() {
		if err := errors.Join(router.Close(), <-done); err != nil {
			t.Errorf("the Router: %v", err)
		}
	})
	select {
	case <-router.Running():
	case <-time.After(within):
		t.Fatal("the Router does not run")
	}
}

// scraped are series by name and labels, without the prefix.
type scraped map[string]float64

func scrape(registry prometheus.Gatherer) (scraped, error) {
	families, err := registry.Gather()
	all := make(scraped)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			series, inBraces := strings.TrimPrefix(f.GetName(), "idempotent_"), "{"+strings.Join(labels, ",")+"}"
			switch {
			case m.Histogram != nil:
				all[series+"_count"+inBraces] = float64(m.Histogram.GetSampleCount())
				all[series+"_sum"+inBraces] = m.Histogram.GetSampleSum()
			case m.Counter != nil:
				all[series+inBraces] = m.Counter.GetValue()
			default:
				all[series+inBraces] = m.Gauge.GetValue()
			}
		}
	}
	return all, err
}

// differences of what was scraped from what is wanted. Of a series that ends with "…}" all that
// begin so and are not named must be 0.
func (s scraped) differences(want scraped) error {
	var list []string
	for series, value := range want {
		if begin, isAll := strings.CutSuffix(series, "…}"); isAll {
			for other, got := range s {
				if _, named := want[other]; strings.HasPrefix(other, begin) && !named && got != 0 {
					list = append(list, fmt.Sprintf("%s is %v, want 0", other, got))
				}
			}
		} else if got, ok := s[series]; !ok || got != value {
			list = append(list, fmt.Sprintf("%s is %v (there: %v), want %v", series, got, ok, value))
		}
	}
	if len(list) == 0 {
		return nil
	}
	slices.Sort(list)
	return errors.New(strings.Join(list, "\n"))
}

// wantSoon waits until the scrape has these figures.
func wantSoon(t testing.TB, registry prometheus.Gatherer, want scraped) scraped {
	t.Helper()
	var last scraped
	testserver.Eventually(t, within, func() (err error) {
		if last, err = scrape(registry); err != nil {
			return err
		}
		return last.differences(want)
	})
	return last
}
