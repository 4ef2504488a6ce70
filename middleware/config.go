package middleware

import (
	"fmt"
	"reflect"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/invalid"
)

// Defaults of [Config].
const (
	DefaultLease          = 30 * time.Second
	DefaultWait           = 200 * time.Millisecond
	DefaultDelay          = 2 * time.Second
	DefaultStoreTimeout   = 10 * time.Second
	DefaultMaxOutputBytes = 16 << 20
)

// NoWait is the Config.Wait of a message that does not wait on the spot: it is given back at
// once, and comes again after Config.Delay.
const NoWait = time.Nanosecond

// Config configures a [Once]. Store and Retention are required.
type Config struct {
	// Store keeps the records: dedupe/redisstore, dedupe/sqlstore, dedupe/pgxstore,
	// dedupe.NewMemory for tests, or one that passes dedupe/storetest. It stays the
	// caller's: Close does not close it.
	Store dedupe.Store
	// Namespace names the service, the same in all instances. Services that share a store
	// need different ones, or each would skip what the other has handled under the same
	// handler name. Empty: the consumer group that a message was read by. Only a subscriber
	// of this library has one; a message of another one, or of one that fans out, is
	// then not handled (ErrNoNamespace). Set it before the group is renamed, or what was
	// handled under the old name would be handled again.
	Namespace string
	// ShareAcrossFanOut lets subscribers that fan out (subscriber.Config.FanOut) work on a
	// store that processes share: every event is then handled by one of the instances only,
	// and skipped by the others. Otherwise their messages are not handled
	// (ErrSharedFanOut). A dedupe.Memory is each instance's own, and needs no such leave.
	ShareAcrossFanOut bool
	// Retention is how long a record is kept: after it, the event would be handled
	// again. A handler that runs for an entry older than that is logged, for each topic
	// and handler every 30 s at most. It must cover the longest time after which an event can come again: the
	// age of what is left in the stream or the dead letters, an outage of the
	// consumers, a replay by hand. It has no default, since it decides the memory:
	// events a second × retention × size of a record (about 150 bytes and the key in
	// Redis), for each handler.
	Retention time.Duration
	// Lease is how long a claim survives the death of its process; 0 means 30 s. It
	// is renewed while the handler runs, however long that takes. At least 10 ms, at
	// most Retention. Stores with transactions don't use it.
	Lease time.Duration

	// Key finds the key of a message that does not bring one in its metadata
	// (eventkey.MetadataKey), where our publisher puts it. Nil: such a message has no
	// key.
	Key eventkey.Source
	// Fingerprint says what must be equal in two messages of one key; default: the
	// payload. A difference is a conflict, see [dedupe.ErrConflict].
	Fingerprint eventkey.Fingerprint
	// PassWithoutKey lets messages without a key through to the handler, unprotected.
	// Otherwise they are an error that matches eventkey.ErrNoKey.
	PassWithoutKey bool
	// PoisonTopics are the topics that Watermill's PoisonQueue moves messages to, where a
	// handler of this Once reads one: a Requeuer's, or one that alerts. There each
	// poisoning of an event is handled; elsewhere, and on a poison topic that is not named
	// here, an event is handled once. Our subscriber's dead letters need not be named.
	PoisonTopics []string

	// Wait is how long a message waits on the spot for another process that is
	// handling it; 0 means 200 ms, [NoWait] not to wait.
	Wait time.Duration
	// Delay is after which time a message comes again that can't be handled now, give
	// or take a quarter; 0 means 2 s. Subscribers other than ours can't delay; there
	// it is waited for before the message is given back.
	Delay time.Duration
	// StoreTimeout bounds each step that the store is asked for, beside Wait; 0
	// means 10 s. A claim that takes longer counts as "store unavailable".
	StoreTimeout time.Duration
	// MaxOutputBytes bounds the messages that a handler returns, all together as they
	// are recorded; 0 means 16 MiB. More is found only after the handler has run, and
	// would be found again each time: it goes to the dead letters (our subscriber) or
	// is a permanent error.
	MaxOutputBytes int

	// Hooks receive what happens.
	Hooks []Hooks
}

// claimTimeout is how long a claim may take.
func (c *Config) claimTimeout() time.Duration { return c.StoreTimeout + c.Wait }

// resolve returns the configuration with defaults filled in, and all of its faults
// at once.
func (c Config) resolve() (Config, error) {
	var faults invalid.Faults
	if c.Store == nil {
		faults.Add("Store is nil")
	} else if v := reflect.ValueOf(c.Store); v.Kind() == reflect.Pointer && v.IsNil() {
		faults.Add("Store is a nil %T", c.Store)
	}
	if c.Retention <= 0 {
		faults.Add("Retention %v is not above zero. It must cover the longest time after which an event can come again, and decides the memory: "+
			"events a second × retention × size of a record (about 150 bytes and the key in Redis), for each handler", c.Retention)
	}
	if c.Key != nil {
		if err := eventkey.Validate(c.Key); err != nil {
			faults.Add("Key: %w", err)
		}
	}
	if err := identity.ValidateFingerprint(c.Fingerprint); err != nil {
		faults.Add("Fingerprint: %w", err)
	}
	for _, d := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{
		{"Lease", &c.Lease, min(DefaultLease, max(c.Retention, dedupe.MinLease))},
		{"Wait", &c.Wait, DefaultWait},
		{"Delay", &c.Delay, DefaultDelay},
		{"StoreTimeout", &c.StoreTimeout, DefaultStoreTimeout},
	} {
		invalid.Negative(&faults, d.name, *d.value)
		if *d.value == 0 {
			*d.value = d.def
		}
	}
	if c.Wait == NoWait {
		c.Wait = 0
	}
	if c.Lease > 0 && c.Lease < dedupe.MinLease {
		faults.Add("Lease %v is shorter than %v", c.Lease, dedupe.MinLease)
	}
	if c.Retention > 0 && c.Lease > c.Retention {
		faults.Add("Lease %v is longer than Retention %v", c.Lease, c.Retention)
	}
	invalid.Negative(&faults, "MaxOutputBytes", c.MaxOutputBytes)
	if c.MaxOutputBytes == 0 {
		c.MaxOutputBytes = DefaultMaxOutputBytes
	}
	c.Hooks = slices.Clone(c.Hooks)
	return c, faults.Err("middleware: invalid config")
}

// warn logs what is allowed and can hardly be meant.
func (c Config) warn(logger watermill.LoggerAdapter) {
	if again := c.StoreTimeout + c.Wait + c.Delay; c.Retention < again {
		logger.Error("Config.Retention is too short for the other times", fmt.Errorf(
			"retention %v is shorter than StoreTimeout + Wait + Delay, %v: a message that has to wait once can come again after its record has run out, and is handled again",
			c.Retention, again), nil)
	}
}
