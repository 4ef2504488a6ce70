package idempotent

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

func newClient(t testing.TB) redis.UniversalClient {
	c := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // nobody dials it
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func newMemory(t testing.TB) *dedupe.Memory {
	m, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// Each wrong set-up is an error that has these words; those of a contradiction name both.
func TestWrongSetUps(t *testing.T) {
	t.Parallel()
	client, other := newClient(t), newClient(t)
	for name, c := range map[string]struct {
		change func(*Config)
		want   []string
	}{
		"no client":             {func(c *Config) { c.Client = nil }, []string{"Client is nil", "Publisher.Client", "Subscriber.Client", "Store"}},
		"a nil *redis.Client":   {func(c *Config) { c.Client = (*redis.Client)(nil) }, []string{"Client is nil"}},
		"a ring":                {func(c *Config) { c.Client = redis.NewRing(&redis.RingOptions{}) }, []string{"*redis.Ring"}},
		"two clients":           {func(c *Config) { c.Publisher.Client = other }, []string{"Client and Publisher.Client are two different clients"}},
		"two clients to read":   {func(c *Config) { c.Subscriber.Client = other }, []string{"Client and Subscriber.Client are two different clients"}},
		"no service":            {func(c *Config) { c.Service = "" }, []string{"Service is empty", "Publisher.ProducerID, Subscriber.Group, Once.Namespace"}},
		"one name of three":     {func(c *Config) { c.Service, c.Subscriber.Group = "", "b" }, []string{"Service is empty", "for Publisher.ProducerID, Once.Namespace"}},
		"a slash":               {func(c *Config) { c.Service = "a/b" }, []string{`Service "a/b" has a slash`, "producer ID"}},
		"a long name":           {func(c *Config) { c.Service = strings.Repeat("a", 257) }, []string{"Service", "longer than 256 bytes"}},
		"no UTF-8":              {func(c *Config) { c.Service = "a\xff" }, []string{"Service", "not UTF-8"}},
		"another group":         {func(c *Config) { c.Subscriber.Group = "pay" }, []string{`Service "billing" and Subscriber.Group "pay" differ`}},
		"another producer":      {func(c *Config) { c.Publisher.ProducerID = "pay" }, []string{`Service "billing" and Publisher.ProducerID "pay" differ`}},
		"another namespace":     {func(c *Config) { c.Once.Namespace = "pay" }, []string{`Service "billing" and Once.Namespace "pay" differ`}},
		"no retention":          {func(c *Config) { c.Retention = 0 }, []string{"Retention is 0", "decides the memory"}},
		"two retentions":        {func(c *Config) { c.Once.Retention = time.Hour }, []string{"Retention 24h0m0s and Once.Retention 1h0m0s differ"}},
		"two limits":            {func(c *Config) { c.MaxDeliveries, c.Subscriber.MaxDeliveries = 3, 4 }, []string{"MaxDeliveries 3 and Subscriber.MaxDeliveries 4 differ"}},
		"negative limit":        {func(c *Config) { c.MaxDeliveries = -1 }, []string{"subscriber", "MaxDeliveries -1 is negative"}},
		"two stores":            {func(c *Config) { c.Store, c.Once.Store = newMemory(t), newMemory(t) }, []string{"Store and Once.Store are two different stores"}},
		"fan-out, shared store": {func(c *Config) { c.Subscriber.FanOut = true }, []string{"Subscriber.FanOut", "dedupe.Memory", "Once.ShareAcrossFanOut"}},
		"fan-out and a group":   {func(c *Config) { c.Subscriber.FanOut, c.Subscriber.Group, c.Store = true, "billing", newMemory(t) }, []string{`Group "billing" and FanOut exclude each other`}},
		"order by nothing":      {func(c *Config) { c.Subscriber.Order = subscriber.OrderKey }, []string{"OrderBy must say by which"}},
		"empty topic":           {func(c *Config) { c.PublishTopics = []string{"a", ""} }, []string{"PublishTopics[1] is empty"}},
		"topic twice":           {func(c *Config) { c.SubscribeTopics = []string{"a", "a"} }, []string{`SubscribeTopics has "a" twice`}},
		"topics, no check":      {func(c *Config) { c.SkipCheck, c.PublishTopics = true, []string{"a"} }, []string{"SkipCheck and PublishTopics exclude each other"}},
		"several of Open's own": {func(c *Config) { c.Client, c.Service, c.Retention = nil, "", 0 }, []string{"Client is nil", "Service is empty", "Retention is 0"}},
		"one of each part": {func(c *Config) { c.Publisher.MaxPayload, c.Subscriber.MaxInFlight, c.Once.Lease = -1, -1, -1 },
			[]string{"publisher: invalid config", "MaxPayload -1", "subscriber: invalid config", "MaxInFlight -1", "middleware: invalid config", "Lease -1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := Config{Client: client, Service: "billing", Retention: 24 * time.Hour}
			c.change(&cfg)
			p, err := Open(context.Background(), cfg)
			if err == nil || p != nil {
				t.Fatal("no error")
			}
			for _, want := range c.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in:\n%v", want, err)
				}
			}
		})
	}
}

// What is common reaches the parts, and what a part has to itself goes before it.
func TestCommonSettingsReachTheParts(t *testing.T) {
	t.Parallel()
	client, key := newClient(t), eventkey.Metadata("event")
	cfg, err := Config{Client: client, Service: "billing", Key: key, Retention: time.Hour}.resolve()
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(cfg.Publisher.ProducerID, cfg.Subscriber.Group, cfg.Once.Namespace, cfg.Once.Retention, cfg.Subscriber.MaxDeliveries)
	if want := fmt.Sprint("billing", "billing", "billing", time.Hour, DefaultMaxDeliveries); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if cfg.Publisher.Client != client || cfg.Subscriber.Client != client {
		t.Error("the client does not reach publisher and subscriber")
	}
	if cfg.Publisher.Key == nil || cfg.Once.Key == nil {
		t.Error("the key does not reach publisher and middleware")
	}
	for name, c := range map[string]Config{
		"equal values": {Client: client, Service: "billing", Retention: time.Hour, MaxDeliveries: 3,
			Publisher:  publisher.Config{Client: client, ProducerID: "billing"},
			Subscriber: subscriber.Config{Client: client, Group: "billing", MaxDeliveries: 3},
			Once:       middleware.Config{Namespace: "billing", Retention: time.Hour}},
		"all in the parts": {
			Publisher:  publisher.Config{Client: client, ProducerID: "orders", Key: key},
			Subscriber: subscriber.Config{Client: newClient(t), Group: "billing-v1", MaxDeliveries: 3},
			Once:       middleware.Config{Namespace: "billing", Retention: time.Hour, Store: newMemory(t)}},
		"fan-out": {Client: client, Service: "billing", Retention: time.Hour, Store: newMemory(t), MaxDeliveries: 3,
			Subscriber: subscriber.Config{FanOut: true}},
	} {
		resolved, err := c.resolve()
		if err != nil || resolved.Subscriber.MaxDeliveries != 3 {
			t.Errorf("%s: %d deliveries, %v", name, resolved.Subscriber.MaxDeliveries, err)
		}
	}
	fanOut := Config{Client: client, Service: "billing", Retention: time.Hour, Store: newMemory(t), Subscriber: subscriber.Config{FanOut: true}}
	if cfg, err := fanOut.resolve(); err != nil || cfg.Subscriber.MaxDeliveries != 0 || cfg.Subscriber.Group != "" {
		t.Errorf("fan-out drops its dead letters, but has %d deliveries; group %q, %v", cfg.Subscriber.MaxDeliveries, cfg.Subscriber.Group, err)
	}
	own, err := Config{Client: client, Service: "billing", Key: key, Retention: time.Hour,
		Publisher: publisher.Config{Key: eventkey.MessageUUID()}, Once: middleware.Config{Key: eventkey.MessageUUID()}}.resolve()
	if err != nil || own.Publisher.Key != eventkey.MessageUUID() || own.Once.Key != eventkey.MessageUUID() {
		t.Errorf("Key replaces a part's own: %v", err)
	}
}

func TestRetentionShorterThanTheWindow(t *testing.T) {
	t.Parallel()
	for retention, want := range map[time.Duration]int{30 * time.Minute: 1, 2 * time.Hour: 1, 3 * time.Hour: 0} {
		cfg, err := Config{Client: newClient(t), Service: "billing", Retention: retention,
			Publisher: publisher.Config{Topics: map[string]publisher.TopicConfig{"a": {Window: publisher.Window{Duration: 3 * time.Hour}}}},
		}.resolve()
		if got := cfg.warnings(); err != nil || len(got) != want {
			t.Errorf("Retention %v: %q, %v", retention, got, err)
		}
	}
}

// WrapStore has the store that Open makes, or the one that is given, and what it returns is used.
func TestWrapStore(t *testing.T) {
	given, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"})
	defer client.Close()
	for name, store := range map[string]dedupe.Store{"own": nil, "given": given} {
		var inner, outer dedupe.Store
		cfg := Config{Client: client, Service: "billing", Retention: time.Hour, Store: store, SkipCheck: true, WrapStore: func(s dedupe.Store) dedupe.Store {
			inner, outer = s, struct{ dedupe.Store }{s}
			return outer
		}}
		p, err := Open(context.Background(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		if p.Store() != outer || inner == nil || store != nil && inner != store {
			t.Errorf("%s: %T around %T", name, p.Store(), inner)
		}
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
		cfg.WrapStore = func(dedupe.Store) dedupe.Store { return nil }
		if _, err := Open(context.Background(), cfg); err == nil || !strings.Contains(err.Error(), "WrapStore returned nil") {
			t.Errorf("%s: nil: %v", name, err)
		}
	}
}
