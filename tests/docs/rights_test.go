package docs_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// topicOfTheDocuments stands in their rights, so that each test has a server of its own.
const topicOfTheDocuments = "payments"

// The users whose lines stand in docs/operations.md can do what they are for, and no Check
// misses anything.
func TestUsersOfTheDocuments(t *testing.T) {
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			server := testserver.Start(t, kind)
			as := usersOfTheDocuments(t, server)
			producers := []string{"producer-latch"}
			if kind == testserver.Redis86 {
				producers = append(producers, "producer")
			}
			for _, name := range producers {
				if err := server.Client().FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				produce(t, as(name), name == "producer")
				handle(t, as("consumer"))
				scrape(t, as("scraper"))
			}
		})
	}
}

// usersOfTheDocuments makes them, but for those whose commands the server does not know.
func usersOfTheDocuments(t *testing.T, server *testserver.Server) (as func(name string) *redis.Client) {
	t.Helper()
	text, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	var made []string
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "ACL SETUSER ") {
			continue
		}
		var rule []any
		for _, word := range strings.Fields(line) {
			rule = append(rule, word)
		}
		err := server.Client().Do(t.Context(), rule...).Err()
		if err != nil && (rule[2] != "producer" || server.Kind() == testserver.Redis86) { // it has no XCFGSET
			t.Fatalf("%s: %v", line, err)
		}
		made = append(made, rule[2].(string))
	}
	return func(name string) *redis.Client {
		if !slices.Contains(made, name) {
			t.Fatalf("docs/operations.md has no line for the user %q", name)
		}
		return server.Client(func(o *redis.Options) { o.Username, o.Password = name, "secret" })
	}
}

func produce(t *testing.T, client *redis.Client, idmp bool) {
	t.Helper()
	mode := publisher.ModeLatch
	if idmp {
		mode = publisher.ModeIDMP
	}
	pub, err := publisher.New(publisher.Config{
		Client: client, ProducerID: "billing", Mode: mode, Key: eventkey.Template("{$.id}"),
	}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	defer pub.Close()
	for _, want := range []publisher.Verdict{publisher.VerdictAdded, publisher.VerdictDuplicate} {
		receipts, err := pub.Send(t.Context(), topicOfTheDocuments, message.NewMessage("", []byte(`{"id":"good"}`)))
		if err != nil || receipts[0].Verdict != want {
			t.Fatalf("%v, %v; want %v", receipts, err, want)
		}
	}
	if err := pub.Publish(topicOfTheDocuments, message.NewMessage("", []byte(`{"id":"bad"}`))); err != nil {
		t.Fatal(err)
	}
	report, err := pub.Check(t.Context(), topicOfTheDocuments)
	if err != nil {
		t.Error("publisher:", err)
	}
	namesNoRight(t, report.Warnings)
}

// handle runs a handler that succeeds for one message, and makes the other one a dead letter.
func handle(t *testing.T, client *redis.Client) {
	t.Helper()
	dead := make(chan struct{})
	sub, err := subscriber.New(subscriber.Config{
		Client: client, Group: "billing", MaxDeliveries: 2, RedeliverAfter: 5 * time.Millisecond, Block: 50 * time.Millisecond,
		Hooks: []subscriber.Hooks{{OnDeadLetter: func(subscriber.DeadLetterEvent) { close(dead) }}},
	}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	store, err := redisstore.New(redisstore.Config{Client: client})
	if err != nil {
		t.Fatal(err)
	}
	once, err := middleware.New(middleware.Config{Store: store, Retention: time.Hour}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	warnings, err := store.Check(t.Context())
	if err != nil {
		t.Error("store:", err)
	}
	namesNoRight(t, warnings)
	report, err := sub.Check(t.Context(), topicOfTheDocuments)
	if err != nil {
		t.Error("subscriber:", err)
	}
	namesNoRight(t, report.Warnings)

	router, err := message.NewRouter(message.RouterConfig{}, observe.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	handled := 0
	router.AddConsumerHandler("charge", topicOfTheDocuments, sub, once.Consumer(func(msg *message.Message) error {
		if string(msg.Payload) == `{"id":"bad"}` {
			return errors.New("cannot")
		}
		handled++
		return nil
	}))
	ended := make(chan error, 1)
	go func() { ended <- router.Run(context.WithoutCancel(t.Context())) }()
	select {
	case <-dead:
	case <-time.After(time.Minute):
		t.Error("no dead letter")
	}
	if err := errors.Join(router.Close(), <-ended, once.Close(context.WithoutCancel(t.Context()))); err != nil {
		t.Error(err)
	}
	if handled != 1 {
		t.Errorf("handled %d times, want once", handled)
	}
}

func scrape(t *testing.T, client *redis.Client) {
	t.Helper()
	streams, err := metrics.NewStreams(metrics.StreamsConfig{Client: client, Topics: []string{topicOfTheDocuments}})
	if err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(streams)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	if got["idempotent_stream_up"] != 1 || got["idempotent_stream_dead_letters"] != 1 || got["idempotent_stream_length"] != 2 {
		t.Errorf("scraped %v", got)
	}
}

func namesNoRight(t *testing.T, warnings []string) {
	t.Helper()
	for _, w := range warnings {
		if strings.Contains(w, "NOPERM") || strings.Contains(w, "right") || strings.Contains(w, "may not") {
			t.Errorf("warning: %s", w)
		}
	}
}
