package metrics_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// plant is a service under metrics, at which something goes wrong.
type plant struct {
	*idempotent.PubSub
	t           *testing.T
	metrics     *metrics.Metrics
	registry    *prometheus.Registry
	link        *faultlink.Link
	client      *redis.Client // beside the link
	topic, idle string        // idle is a topic that nobody of the service uses
	cfg         idempotent.Config
	handle      atomic.Pointer[func(*message.Message) error] // nil: it succeeds
	number      int
}

// newPlant starts one.
func newPlant(t *testing.T, f fault) *plant {
	t.Helper()
	s := testserver.Shared(t, testserver.Redis86)
	p := &plant{t: t, registry: prometheus.NewPedanticRegistry(), link: faultlink.New(t, s.Addr()), client: s.Client(), topic: testserver.Topic(t), idle: testserver.Topic(t)}
	var err error
	if p.metrics, err = metrics.New(f.metrics); err != nil {
		t.Fatal(err)
	}
	p.registry.MustRegister(p.metrics)
	client := p.link.Client()
	p.cfg = idempotent.Config{
		Client: client, Service: "billing", Key: eventkey.Template("pay:{$.id}"), Retention: 24 * time.Hour, MaxDeliveries: 3,
		Logger:    observe.NewLogger(t),
		Publisher: publisher.Config{RetryFor: 5 * time.Second}, // the machine may be busy
		Subscriber: subscriber.Config{
			MinIdle: 2 * time.Second, Block: 50 * time.Millisecond, RedeliverAfter: 5 * time.Millisecond, RedeliverMax: 50 * time.Millisecond,
		},
		Once: middleware.Config{Delay: 20 * time.Millisecond},
	}
	if f.config != nil {
		f.config(p)
	}
	if p.PubSub, err = idempotent.Open(t.Context(), p.metrics.Instrument(p.cfg)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	addStreams(t, p.registry, metrics.StreamsConfig{Client: client, Topics: []string{p.topic, p.idle}})
	route(t, func(r *message.Router) {
		r.AddConsumerHandler("charge", p.topic, p.Subscriber(), p.Once().Consumer(func(msg *message.Message) error {
			if h := p.handle.Load(); h != nil {
				return (*h)(msg)
			}
			return nil
		}))
	})
	return p
}

// event is one that nobody has published.
func (p *plant) event() string {
	p.number++
	return fmt.Sprintf(`{"id":"e%d"}`, p.number)
}

func (p *plant) publish(payload string) error {
	return p.Publisher().Publish(p.topic, message.NewMessage(watermill.NewUUID(), []byte(payload)))
}

func (p *plant) mustPublish(payload string) {
	p.t.Helper()
	if err := p.publish(payload); err != nil {
		p.t.Fatal(err)
	}
}

// last is the newest entry of the topic.
func (p *plant) last() redis.XMessage {
	p.t.Helper()
	list, err := p.client.XRevRangeN(p.t.Context(), p.topic, "+", "-", 1).Result()
	if err != nil || len(list) != 1 {
		p.t.Fatal(list, err)
	}
	return list[0]
}

// append adds an entry as a producer without idempotency does.
func (p *plant) append(values map[string]any) {
	p.t.Helper()
	if err := p.client.XAdd(p.t.Context(), &redis.XAddArgs{Stream: p.topic, Values: values}).Err(); err != nil {
		p.t.Fatal(err)
	}
}

// do has the handler do something else.
func (p *plant) do(h func(*message.Message) error) { p.handle.Store(&h) }

// counts returns the value of a metric with all its labels.
func (p *plant) value(metric string, labels ...string) (v float64) {
	for name, series := range gather(p.t, p.registry) {
		if series.of.Get("__name__") == "idempotent_"+metric && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(name, l) }) {
			v += series.v
		}
	}
	return v
}

// reach waits until a metric has a value, or more.
func (p *plant) reach(want float64, metric string, labels ...string) {
	p.t.Helper()
	testserver.Eventually(p.t, within, func() error {
		if got := p.value(metric, labels...); got < want {
			return fmt.Errorf("%s%v is %v, want %v", metric, labels, got, want)
		}
		return nil
	})
}

// healthy is what always happens: two events, one of them published twice, and one more entry of
// it by a producer without idempotency.
func (p *plant) healthy() {
	p.t.Helper()
	handled, skipped := p.value("messages_total", `outcome="handled"`), p.value("messages_total", `outcome="skipped"`)
	first := p.event()
	p.mustPublish(p.event())
	p.mustPublish(first)
	p.mustPublish(first)
	p.reach(handled+2, "messages_total", `outcome="handled"`)
	p.append(p.last().Values)
	p.reach(skipped+1, "messages_total", `outcome="skipped"`)
	p.reach(p.value("messages_total"), "deliveries_total") // also those that were acknowledged last
}

// made has the topic made by a publisher with other settings.
func (p *plant) made(cfg publisher.Config) {
	p.t.Helper()
	cfg.Client, cfg.ProducerID, cfg.Key = p.client, "billing", p.cfg.Key
	pub, err := publisher.New(cfg, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = pub.Close() }()
	if err := pub.Publish(p.topic, message.NewMessage("u", []byte(`{"id":"before"}`))); err != nil {
		p.t.Fatal(err)
	}
}

// steal claims an entry for a consumer that does nothing with it.
func (p *plant) steal(id string) {
	args := &redis.XClaimArgs{Stream: p.topic, Group: "billing", Consumer: "thief", Messages: []string{id}}
	if err := p.client.XClaim(p.t.Context(), args).Err(); err != nil {
		p.t.Error(err)
	}
}

// group makes a group of the topic that nobody uses, with entries of a time.
func (p *plant) group(at time.Time, entries int) {
	p.t.Helper()
	for i := range entries {
		add(p.t, p.client, p.idle, fmt.Sprintf("%d-%d", at.UnixMilli(), i+1))
	}
	if err := p.client.XGroupCreate(p.t.Context(), p.idle, "slow", "0").Err(); err != nil {
		p.t.Fatal(err)
	}
}

// storeDown and storeSlow have the topics whose store is.
var storeDown, storeSlow sync.Map

// faultyStore is one that can be away, or slow.
type faultyStore struct {
	dedupe.Store
	topic string
}

func (p *plant) wrapStore(s dedupe.Store) dedupe.Store { return &faultyStore{s, p.topic} }

func (s *faultyStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if _, down := storeDown.Load(s.topic); down {
		return nil, errors.New("no route to the store")
	}
	c, err := s.Store.Claim(ctx, k, o)
	if _, slow := storeSlow.Load(s.topic); slow && err == nil {
		c = slowClaim{c}
	}
	return c, err
}

type slowClaim struct{ dedupe.Claim }

func (c slowClaim) Commit(ctx context.Context, outputs [][]byte) error {
	timer := time.NewTimer(700 * time.Millisecond)
	defer timer.Stop()
	<-timer.C
	return c.Claim.Commit(ctx, outputs)
}
