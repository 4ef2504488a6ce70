package publisher

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
)

// Defaults of [Config].
const (
	DefaultRetryFor       = 10 * time.Second
	DefaultReplicaTimeout = time.Second
	DefaultMaxPayload     = 16 << 20
)

const (
	maxProducerIDBytes = 256
	// maxProducers bounds the producer IDs of one topic: the server keeps a map for
	// each, and reports on all of them in every XINFO STREAM.
	maxProducers = 64
)

// Config configures a [Publisher]. Client and ProducerID are required, and a Key
// unless every message brings its own.
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a
	// *redis.ClusterClient. Ring clients are refused: they move keys between servers
	// without their history. The client stays the caller's: Close does not close it.
	Client redis.UniversalClient

	// ProducerID names the logical producer, such as "payment-service". It must be
	// the same in all instances of the service and after a restart: the server
	// remembers keys per producer ID, so a host name or a random ID would let every
	// restart publish again. No slash, at most 256 bytes of UTF-8.
	ProducerID string
	// Producer, where set, gives the producer ID for each message instead, for a
	// process that publishes for several services; a message for which it finds no
	// key gets ProducerID. At most 64 different ones a topic.
	Producer eventkey.Source

	// Key says which event a message is; a message's own key
	// (eventkey.MetadataKey) goes before it. Nil: messages without a key of their
	// own are refused with [ErrNoKey], except in mode IDMPAuto.
	Key eventkey.Source
	// Fingerprint says what makes two messages of one key the same; a difference is
	// a [*ConflictError]. Default: the payload. Use eventkey.JSONWithout for fields
	// that differ in each try, such as a time of receipt.
	Fingerprint eventkey.Fingerprint

	// Mode is Auto by default. The layout record of an existing topic goes before it.
	Mode Mode
	// ContentMetadata, for mode IDMPAuto only, lists the metadata that is part of
	// the content. Other metadata is not sent, except what marks an attempt.
	ContentMetadata []string
	// Window is how long and how many keys are remembered; see [Window].
	Window Window
	// Topics overrides settings for single topics.
	Topics map[string]TopicConfig

	// Marshaller makes the fields of an entry, as in watermill-redisstream. Default:
	// the format of its DefaultMarshallerUnmarshaller, with the same bytes for the
	// same message. Another one must implement redisstream.Unmarshaller, too: a
	// duplicate is compared with the stored entry.
	Marshaller redisstream.Marshaller
	// MaxPayload is the largest encoded message, in bytes; 0 means 16 MiB. Redis'
	// own limit for a field is proto-max-bulk-len, 512 MiB by default.
	MaxPayload int

	// Maxlens and DefaultMaxlen trim streams to about so many entries (MAXLEN ~), as
	// in watermill-redisstream: a topic that is not in Maxlens has DefaultMaxlen, and 0 is
	// no limit, in either. A negative value is refused; watermill-redisstream takes one in
	// Maxlens for DefaultMaxlen, for which the topic is left out here.
	Maxlens       map[string]int64
	DefaultMaxlen int64
	// MaxAge trims entries that are older, by the server's clock, to about a
	// macro node of the stream; 0 means never. They go with the publish after the one
	// that they were old at: age counts from the newest entry known, which a server whose
	// clock was set back goes on from. A topic that has a length limit is not trimmed by
	// age: XADD takes one of the two.
	MaxAge time.Duration
	// KeepUnacked trims only what every consumer group has acknowledged (ACKED,
	// Redis 8.2 or newer; publishing fails on older servers). It protects nothing
	// while a topic has no group, and a forgotten group stops trimming for ever.
	KeepUnacked bool

	// MinReplicas waits after each write until so many replicas have it; 0 means
	// not to wait. ReplicaTimeout, 1 s by default, bounds the wait; then the error
	// is [ErrNotReplicated].
	MinReplicas    int
	ReplicaTimeout time.Duration

	// RetryFor bounds how long a batch is sent again, under the same IDs, when the server
	// is unavailable or refuses commands for now (loading, out of memory, a slot on the move), and
	// how long it waits for a connection of the client's pool; 0 means 10 s. It bounds the
	// wait for a reply, too, if the client has ContextTimeoutEnabled; else that may take the
	// client's ReadTimeout more. A caller's context may end the call earlier.
	RetryFor time.Duration

	// Hooks receive what happens.
	Hooks []Hooks
}

// TopicConfig overrides [Config] for one topic; zero fields don't.
type TopicConfig struct {
	// Key replaces Config.Key: where it finds no key, Config.Key is not asked.
	Key         eventkey.Source
	Fingerprint eventkey.Fingerprint
	Window      Window
	MaxAge      time.Duration
}

func checkSource(f *invalid.Faults, name string, s eventkey.Source) {
	if s == nil {
		return
	}
	if err := eventkey.Validate(s); err != nil {
		f.Add("%s: %w", name, err)
	}
}

func checkFingerprint(f *invalid.Faults, name string, p eventkey.Fingerprint) {
	if err := identity.ValidateFingerprint(p); err != nil {
		f.Add("%s: %w", name, err)
	}
}

// resolve returns the configuration with defaults filled in, sharing nothing that
// the caller could change, and all of its faults at once.
func (c Config) resolve() (Config, error) {
	var f invalid.Faults
	c.checkIdentity(&f)
	c.resolveTopics(&f)
	c.resolveEncoding(&f)
	c.resolveLimits(&f)
	c.Hooks = slices.Clone(c.Hooks)
	return c, f.Err("publisher: invalid config")
}

// checkIdentity looks at the client, and at what says which event of which producer a
// message is.
func (c *Config) checkIdentity(f *invalid.Faults) {
	if err := server.CheckClient(c.Client, "know their history"); err != nil {
		*f = append(*f, err)
	}
	if err := checkProducerID(c.ProducerID); err != nil {
		f.Add("ProducerID %q: %w. It names the logical producer, such as \"payment-service\", and must be "+
			"the same in all instances and after restarts, since keys are remembered per producer ID", c.ProducerID, err)
	}
	if !appender.Mode(c.Mode).IsValid() {
		f.Add("Mode: %v is unknown", c.Mode)
	}
	checkSource(f, "Key", c.Key)
	checkSource(f, "Producer", c.Producer)
	checkFingerprint(f, "Fingerprint", c.Fingerprint)
}

// resolveTopics fills in windows and what else a topic can have for itself.
func (c *Config) resolveTopics(f *invalid.Faults) {
	window := Window{Duration: DefaultWindowDuration, Entries: DefaultWindowEntries}
	if c.Mode == ModeIDMPAuto {
		window.Entries = layout.MaxShardEntries
	}
	c.Window = c.Window.withDefaults(window)
	if err := c.Window.validate(c.Mode); err != nil {
		*f = append(*f, err)
	}
	c.Topics = maps.Clone(c.Topics)
	for _, name := range slices.Sorted(maps.Keys(c.Topics)) {
		t := c.Topics[name]
		if name == "" {
			f.Add("Topics: the topic \"\" is not a stream name")
		}
		checkSource(f, fmt.Sprintf("Topics[%q].Key", name), t.Key)
		checkFingerprint(f, fmt.Sprintf("Topics[%q].Fingerprint", name), t.Fingerprint)
		t.Window = t.Window.withDefaults(c.Window)
		if err := t.Window.validate(c.Mode); err != nil {
			f.Add("Topics[%q]: %w", name, err)
		}
		invalid.Negative(f, fmt.Sprintf("Topics[%q].MaxAge", name), t.MaxAge)
		c.Topics[name] = t
	}
	c.Maxlens = maps.Clone(c.Maxlens)
	for _, name := range slices.Sorted(maps.Keys(c.Maxlens)) {
		f.AddIf(c.Maxlens[name] < 0, "Maxlens[%q] %d is negative: leave the topic out for DefaultMaxlen, 0 is no limit", name, c.Maxlens[name])
	}
}

// resolveEncoding looks at what decides about the bytes of an entry.
func (c *Config) resolveEncoding(f *invalid.Faults) {
	if _, ok := c.Marshaller.(redisstream.DefaultMarshallerUnmarshaller); ok {
		c.Marshaller = nil // internal/wire writes the same bytes, always in the same order
	}
	if c.Marshaller != nil {
		if _, ok := c.Marshaller.(redisstream.Unmarshaller); !ok {
			f.Add("Marshaller %T does not implement redisstream.Unmarshaller, which is needed to compare a duplicate with the stored entry", c.Marshaller)
		}
		if c.Mode == ModeIDMPAuto {
			f.Add("Marshaller %T: mode idmpauto hashes what is sent and takes only the default marshaller, which is known to send the same bytes for the same content", c.Marshaller)
		}
	}
	c.ContentMetadata = slices.Clone(c.ContentMetadata)
	if c.ContentMetadata != nil && c.Mode != ModeIDMPAuto {
		f.Add("ContentMetadata is for mode idmpauto, Mode is %v", c.Mode)
	}
	for _, name := range c.ContentMetadata {
		f.AddIf(wmeta.IsTrace(name), "ContentMetadata has %q, the context of a trace: it is another one in each try, so that no retry would be recognised", name)
	}
	if c.Mode == ModeIDMPAuto && c.Key == nil {
		c.Key = eventkey.Content(c.ContentMetadata...)
	}
	invalid.Negative(f, "MaxPayload", c.MaxPayload)
	c.MaxPayload = cmp.Or(c.MaxPayload, DefaultMaxPayload)
}

// resolveLimits fills in lengths and times.
func (c *Config) resolveLimits(f *invalid.Faults) {
	f.AddIf(c.DefaultMaxlen < 0, "DefaultMaxlen %d is negative: 0 is no limit", c.DefaultMaxlen)
	invalid.Negative(f, "MinReplicas", c.MinReplicas)
	invalid.Negative(f, "MaxAge", c.MaxAge)
	invalid.Negative(f, "ReplicaTimeout", c.ReplicaTimeout)
	invalid.Negative(f, "RetryFor", c.RetryFor)
	if c.ReplicaTimeout > 0 && c.ReplicaTimeout < time.Millisecond {
		f.Add("ReplicaTimeout %v is below 1 ms, which WAIT would take for no limit", c.ReplicaTimeout)
	}
	c.ReplicaTimeout = cmp.Or(c.ReplicaTimeout, DefaultReplicaTimeout)
	c.RetryFor = cmp.Or(c.RetryFor, DefaultRetryFor)
}

func checkProducerID(id string) error {
	switch {
	case id == "":
		return fmt.Errorf("%w: it is empty", ErrProducerID)
	case strings.Contains(id, "/"):
		return fmt.Errorf("%w: it has a slash, which separates the shard number", ErrProducerID)
	case len(id) > maxProducerIDBytes:
		return fmt.Errorf("%w: it is longer than %d bytes", ErrProducerID, maxProducerIDBytes)
	case !utf8.ValidString(id):
		return fmt.Errorf("%w: it is not UTF-8", ErrProducerID)
	}
	return nil
}

// forTopic is the part of the configuration that depends on the topic.
func (c *Config) forTopic(name string) (t TopicConfig, maxlen int64) {
	t = c.Topics[name]
	t.Window = t.Window.withDefaults(c.Window)
	if t.Fingerprint == nil {
		t.Fingerprint = c.Fingerprint
	}
	t.MaxAge = cmp.Or(t.MaxAge, c.MaxAge)
	maxlen, ok := c.Maxlens[name]
	if !ok {
		maxlen = c.DefaultMaxlen
	}
	return t, maxlen
}

// streams is the part of the configuration that the streams need.
func (c *Config) streams() appender.Config {
	return appender.Config{
		Client: c.Client, ProducerID: c.ProducerID, Mode: appender.Mode(c.Mode), KeepUnacked: c.KeepUnacked,
		MinReplicas: c.MinReplicas, ReplicaTimeout: c.ReplicaTimeout, Decode: decoderOf(c.Marshaller),
	}
}

func (t TopicConfig) ofStream(maxlen int64) appender.Settings {
	return appender.Settings{Window: layout.Window(t.Window), MaxAge: t.MaxAge, MaxLen: maxlen, Fingerprint: t.Fingerprint}
}
