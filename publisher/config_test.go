package publisher

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// testClient never connects: New does not dial.
func testClient(t *testing.T) *redis.Client {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", MaxRetries: -1})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func good(t *testing.T) Config {
	return Config{Client: testClient(t), ProducerID: "payment-service", Key: eventkey.Template("pay:{$.id}")}
}

// onlyMarshals is a user's marshaller without the way back.
type onlyMarshals struct{}

func (onlyMarshals) Marshal(string, *message.Message) (map[string]any, error) { return nil, nil }

type bothWays struct {
	redisstream.DefaultMarshallerUnmarshaller
}

func TestConfigFaults(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Config)
		want   string
	}{
		"no client":             {func(c *Config) { c.Client = nil }, "Client is nil"},
		"nil *Client":           {func(c *Config) { c.Client = (*redis.Client)(nil) }, "Client is a nil *redis.Client"},
		"Ring":                  {func(c *Config) { c.Client = (*redis.Ring)(nil) }, "ClusterClient"},
		"no producer ID":        {func(c *Config) { c.ProducerID = "" }, "logical producer"},
		"slash":                 {func(c *Config) { c.ProducerID = "a/b" }, "slash"},
		"long producer ID":      {func(c *Config) { c.ProducerID = strings.Repeat("x", 257) }, "256 bytes"},
		"producer ID not UTF-8": {func(c *Config) { c.ProducerID = "\xff" }, "UTF-8"},
		"unknown mode":          {func(c *Config) { c.Mode = 9 }, "Mode(9)"},
		"negative window":       {func(c *Config) { c.Window.Duration = -1 }, "Window.Duration"},
		"long window":           {func(c *Config) { c.Window.Duration = 25 * time.Hour }, "24h"},
		"split second":          {func(c *Config) { c.Window.Duration = 1500 * time.Millisecond }, "multiple of 1s"},
		"short latch":           {func(c *Config) { c.Mode, c.Window.Duration = ModeLatch, time.Microsecond }, "multiple of 1ms"},
		"negative entries":      {func(c *Config) { c.Window.Entries = -1 }, "negative"},
		"many entries":          {func(c *Config) { c.Window.Entries = 10_000_000 }, "producer IDs"},
		"unclosed brace":        {func(c *Config) { c.Key = eventkey.Template("pay:{$.id") }, "Key: "},
		"unknown syntax":        {func(c *Config) { c.Key = eventkey.Template("pay:{$x}") }, "Key: "},
		"nil Func":              {func(c *Config) { c.Key = eventkey.Func(nil) }, "Key: "},
		"producer source":       {func(c *Config) { c.Producer = eventkey.Template("{") }, "Producer: "},
		"fingerprint":           {func(c *Config) { c.Fingerprint = eventkey.JSONWithout("a[") }, "Fingerprint: "},
		"topic's key":           {func(c *Config) { c.Topics = map[string]TopicConfig{"orders": {Key: eventkey.Template("{")}} }, `Topics["orders"].Key`},
		"topic's fingerprint":   {func(c *Config) { c.Topics = map[string]TopicConfig{"orders": {Fingerprint: eventkey.JSONOnly()}} }, `Topics["orders"].Fingerprint`},
		"topic's window":        {func(c *Config) { c.Topics = map[string]TopicConfig{"orders": {Window: Window{Entries: -1}}} }, `Topics["orders"]`},
		"topic's age":           {func(c *Config) { c.Topics = map[string]TopicConfig{"orders": {MaxAge: -1}} }, `Topics["orders"].MaxAge`},
		"empty topic":           {func(c *Config) { c.Topics = map[string]TopicConfig{"": {}} }, "not a stream name"},
		"half a marshaller":     {func(c *Config) { c.Marshaller = onlyMarshals{} }, "Unmarshaller"},
		"IDMPAuto, marshaller":  {func(c *Config) { c.Mode, c.Marshaller = ModeIDMPAuto, bothWays{} }, "same bytes"},
		"content metadata":      {func(c *Config) { c.ContentMetadata = []string{"a"} }, "ContentMetadata"},
		"trace as content": {func(c *Config) { c.Mode, c.ContentMetadata = ModeIDMPAuto, []string{"tenant", "traceparent"} },
			`ContentMetadata has "traceparent"`},
		"negative payload":  {func(c *Config) { c.MaxPayload = -1 }, "MaxPayload"},
		"negative length":   {func(c *Config) { c.DefaultMaxlen = -1 }, "DefaultMaxlen"},
		"topic's length":    {func(c *Config) { c.Maxlens = map[string]int64{"orders": -1} }, `Maxlens["orders"] -1 is negative: leave the topic out`},
		"negative replicas": {func(c *Config) { c.MinReplicas = -1 }, "MinReplicas"},
		"negative age":      {func(c *Config) { c.MaxAge = -1 }, "MaxAge"},
		"negative retry":    {func(c *Config) { c.RetryFor = -1 }, "RetryFor"},
		"tiny wait":         {func(c *Config) { c.ReplicaTimeout = 500 * time.Microsecond }, "1 ms"},
		"IDMPAuto, large":   {func(c *Config) { c.Mode, c.Window.Entries = ModeIDMPAuto, 500_000 }, "idmpauto"},
		"negative wait":     {func(c *Config) { c.ReplicaTimeout = -1 }, "ReplicaTimeout"},
	} {
		t.Run(name, func(t *testing.T) {
			c := good(t)
			tt.change(&c)
			if _, err := New(c, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New: %v, want %q in it", err, tt.want)
			}
			if _, err := NewGuard(c, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("NewGuard: %v, want %q in it", err, tt.want)
			}
		})
	}
}

// All faults come at once.
func TestConfigFaultsAtOnce(t *testing.T) {
	_, err := New(Config{ProducerID: "a/b", Mode: 7, Window: Window{Entries: -1}, Key: eventkey.Template("{"), MaxPayload: -1}, nil)
	for _, want := range []string{"Client", "ProducerID", "Mode", "Window.Entries", "Key", "MaxPayload"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no %s in: %v", want, err)
		}
	}
}

// The caller's struct and maps are never written, and writing to them later changes
// nothing.
func TestConfigIsCopied(t *testing.T) {
	c := good(t)
	c.Topics = map[string]TopicConfig{"orders": {MaxAge: time.Hour}}
	c.Maxlens = map[string]int64{"unlimited": 0, "other": 7}
	c.DefaultMaxlen = 5
	topics, lens := maps.Clone(c.Topics), maps.Clone(c.Maxlens)
	p, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	if c.Topics["orders"] != topics["orders"] || !maps.Equal(c.Maxlens, lens) {
		t.Error("the caller's maps were written")
	}
	c.Maxlens["other"], c.Topics["orders"] = 99, TopicConfig{}
	cfg := &p.engine.cfg
	orders, maxlen := cfg.forTopic("orders")
	_, other := cfg.forTopic("other")
	_, unlimited := cfg.forTopic("unlimited")
	if orders.MaxAge != time.Hour || maxlen != 5 || other != 7 || unlimited != 0 {
		t.Errorf("topic %+v, lengths %d, %d, %d", orders, maxlen, other, unlimited)
	}
	if orders.Window != (Window{DefaultWindowDuration, DefaultWindowEntries}) {
		t.Errorf("window %+v", orders.Window)
	}
}

// The default marshaller of watermill-redisstream is ours in another order.
func TestDefaultMarshallerIsOurs(t *testing.T) {
	c := good(t)
	c.Mode, c.Marshaller = ModeIDMPAuto, redisstream.DefaultMarshallerUnmarshaller{}
	p, err := New(c, nil)
	if err != nil {
		t.Fatal(err)
	}
	_ = p.Close()
}
