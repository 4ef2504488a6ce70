package metrics

import (
	"context"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Defaults of [StreamsConfig].
const (
	DefaultTimeout   = 2 * time.Second
	DefaultMaxGroups = 20
)

// StreamsConfig configures [Streams]. Client and Topics are required.
type StreamsConfig struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a *redis.ClusterClient,
	// whose options tell where and how to connect: each scrape opens a connection of its own,
	// and closes it. The client stays the caller's. With a client of another kind, its own
	// connections are used.
	Client redis.UniversalClient
	// Topics are those to look at. They need not be this process's own, and need not be there
	// yet. Each has at most 14 series, and 4 a group.
	Topics []string
	// MaxGroups is how many consumer groups of a topic have series of their own, the first by
	// name; 0 means 20. The metric idempotent_stream_groups has their whole number.
	MaxGroups int
	// Timeout bounds a scrape; 0 means 2 s. It must be below Prometheus' own scrape_timeout,
	// 10 s by default. What has not answered by then has idempotent_stream_up 0.
	Timeout time.Duration
}

func (c StreamsConfig) resolve() (StreamsConfig, error) {
	var f invalid.Faults
	if err := server.CheckClient(c.Client, "have these topics"); err != nil {
		f = append(f, err)
	}
	f.AddIf(len(c.Topics) == 0, "Topics is empty: name the topics to look at")
	for i, topic := range c.Topics {
		f.AddIf(topic == "", "Topics[%d] is empty", i)
		f.AddIf(!utf8.ValidString(topic), "Topics[%d] %q is not UTF-8, as a label must be", i, topic)
		f.AddIf(slices.Contains(c.Topics[:i], topic), "Topics has %q twice", topic)
	}
	invalid.Negative(&f, "MaxGroups", c.MaxGroups)
	if c.MaxGroups == 0 {
		c.MaxGroups = DefaultMaxGroups
	}
	f.AddIf(c.Timeout != 0 && c.Timeout < time.Millisecond, "Timeout %v is below %v", c.Timeout, time.Millisecond)
	if c.Timeout == 0 {
		c.Timeout = DefaultTimeout
	}
	c.Topics = slices.Clone(c.Topics)
	return c, f.Err("metrics: invalid config of streams")
}

// Streams is a prometheus.Collector that asks the server about topics at each scrape: length,
// window, and the lag and pending entries of their groups. It is for topics that this process
// does not publish to or read from, and for what no process alone can know. One process of a
// service is enough to have it.
//
// It needs the commands XINFO STREAM, XINFO GROUPS, XPENDING and XLEN. A scrape asks all
// topics in two round trips, and never takes longer than Timeout, whatever the server does:
// what can't be asked has idempotent_stream_up 0 and no other series. Where a node of a cluster
// hangs, that may be so for the topics of other nodes, too, if it is the one that is asked who
// has which slots. XINFO STREAM has the first and the last entry of the stream in it.
type Streams struct {
	cfg StreamsConfig
	// busy has room for the one scrape that asks. One that did not end in time keeps it until
	// it does, so that scrapes of a server that hangs don't pile up.
	busy chan struct{}
}

var _ prometheus.Collector = (*Streams)(nil)

// NewStreams makes a Streams, which connects to nothing before it is scraped. The error has
// all faults of the configuration.
func NewStreams(config StreamsConfig) (*Streams, error) {
	cfg, err := config.resolve()
	if err != nil {
		return nil, err
	}
	return &Streams{cfg: cfg, busy: make(chan struct{}, 1)}, nil
}

// Describe implements prometheus.Collector.
func (s *Streams) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range streamDescs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (s *Streams) Collect(ch chan<- prometheus.Metric) {
	began := time.Now()
	for _, st := range s.read() {
		st.export(ch)
	}
	ch <- prometheus.MustNewConstMetric(descCollect, prometheus.GaugeValue, time.Since(began).Seconds())
}

// read asks, for Timeout at most.
func (s *Streams) read() []*stream {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	defer cancel()
	select {
	case s.busy <- struct{}{}: // two Prometheus servers may scrape at once: the second waits
	case <-ctx.Done():
		return s.none()
	}
	answer := make(chan []*stream, 1)
	go func() {
		defer func() { <-s.busy }()
		// It ends a little earlier, so that what some nodes of a cluster have answered is not
		// lost when another one hangs.
		asking, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout*8/10)
		defer cancel()
		answer <- s.ask(asking)
	}()
	select {
	case list := <-answer:
		return list
	case <-ctx.Done():
		return s.none()
	}
}

// none is what is known of topics that did not answer.
func (s *Streams) none() []*stream {
	list := make([]*stream, len(s.cfg.Topics))
	for i, topic := range s.cfg.Topics {
		list[i] = &stream{topic: topic}
	}
	return list
}
