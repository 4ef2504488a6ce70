package idempotent

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// Defaults of [Config].
const (
	// DefaultMaxDeliveries is that of MaxDeliveries. With the subscriber's default backoff
	// the last delivery comes about six minutes after the first.
	DefaultMaxDeliveries = 20
	// DefaultOpenTimeout bounds [Open] where its context has no deadline.
	DefaultOpenTimeout = 10 * time.Second
)

// Config configures a [PubSub]. Client, Service and Retention are required, and a Key
// unless every message brings its own.
//
// Publisher, Subscriber and Once configure the parts beyond that. Their fields that
// are set here, too, are best left out: two values that differ are an error.
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a
	// *redis.ClusterClient. It stays the caller's: Close does not close it. It may be nil
	// where Publisher.Client, Subscriber.Client and a Store are set.
	Client redis.UniversalClient

	// Service names the service, such as "billing", the same in all instances and after a
	// restart. It is the publisher's ProducerID, the consumer group, and the namespace of
	// what was handled: under another name the service publishes again, reads again and
	// handles again. No slash, at most 256 bytes of UTF-8. It may be empty where
	// Publisher.ProducerID, Subscriber.Group (unless it fans out) and Once.Namespace are
	// set, for a service whose names differ.
	Service string

	// Key says which messages are the same event: those that the service publishes, and
	// those that it reads without a key in their metadata, where our publisher puts it.
	// Publisher.Key, Publisher.Topics and Once.Key go before it. Nil: messages must bring
	// their own key (eventkey.MetadataKey), as those that a handler returns do; another one
	// is refused with eventkey.ErrNoKey.
	Key eventkey.Source

	// Retention is how long a handled event is remembered. It must cover the longest time
	// after which an event can come again, an outage of the consumers or a replay, and has
	// no default since it decides the memory: events a second × retention × (150 bytes and
	// the key), for each handler.
	Retention time.Duration

	// MaxDeliveries is how often a message is handed out before it becomes a dead letter:
	// an entry of the stream that subscriber.DeadLetterTopic names, with the error of its
	// handler. 0 means 20 (with Subscriber.FanOut: without limit, since that has no dead
	// letters to keep it in); math.MaxInt is no limit.
	MaxDeliveries int

	// Store remembers what was handled; default: redisstore on the Client. A store that
	// is given here stays the caller's: Close does not close it.
	Store dedupe.Store

	// WrapStore, where set, makes the store that is used of the one that Store names or Open
	// makes: one that measures it, say. What it returns should have a method Unwrap for
	// dedupe.Unwrap, and is closed only if Open made what it wraps.
	WrapStore func(dedupe.Store) dedupe.Store

	// Logger gets the log of all parts. Nil: nothing is logged.
	Logger watermill.LoggerAdapter

	// PublishTopics and SubscribeTopics are topics that Open looks at: rights, mode and
	// window of the first, group and rights of the second. Other topics may be used as well.
	PublishTopics, SubscribeTopics []string
	// SkipCheck has Open ask the server nothing, for a service that must start without
	// one. What is wrong then shows at the first Publish and Subscribe.
	SkipCheck bool

	// Publisher, Subscriber and Once are what the parts have to themselves, such as
	// subscriber.Config{MaxInFlight: 16}.
	Publisher  publisher.Config
	Subscriber subscriber.Config
	Once       middleware.Config
}

// resolve hands what is common on to the configurations of the parts. The error names
// what contradicts itself or is missing in all of them; what a part says of its own
// fields comes from its New.
func (c Config) resolve() (Config, error) {
	var f invalid.Faults
	c.shareClient(&f)
	c.shareService(&f)
	if c.Retention == 0 && c.Once.Retention == 0 {
		f.Add("Retention is 0: it must cover the longest time after which an event can come again, such as 7 * 24 * time.Hour, and decides the memory: " +
			"events a second × retention × (150 bytes and the key), for each handler")
	}
	share(&f, "Retention", c.Retention, "Once.Retention", &c.Once.Retention)
	share(&f, "MaxDeliveries", c.MaxDeliveries, "Subscriber.MaxDeliveries", &c.Subscriber.MaxDeliveries)
	if c.Subscriber.MaxDeliveries == 0 && !c.Subscriber.FanOut {
		c.Subscriber.MaxDeliveries = DefaultMaxDeliveries
	}
	c.shareStore(&f)
	if c.Publisher.Key == nil {
		c.Publisher.Key = c.Key
	}
	if c.Once.Key == nil {
		c.Once.Key = c.Key
	}
	if c.Logger == nil {
		c.Logger = watermill.NopLogger{}
	}
	c.checkTopics(&f)
	return c, f.Err("idempotent: invalid config")
}

func (c *Config) shareClient(f *invalid.Faults) {
	const own = "leave it out, or leave Client nil and set Publisher.Client, Subscriber.Client and Store, for clients of their own"
	for _, part := range []struct {
		name   string
		client *redis.UniversalClient
	}{
		{"Publisher.Client", &c.Publisher.Client},
		{"Subscriber.Client", &c.Subscriber.Client},
	} {
		switch {
		case isNil(c.Client) && isNil(*part.client):
			f.Add("Client is nil, and so is %s: set Client to the *redis.Client or *redis.ClusterClient of the service", part.name)
		case isNil(*part.client):
			*part.client = c.Client
		case !isNil(c.Client) && !same(c.Client, *part.client):
			f.Add("Client and %s are two different clients: %s", part.name, own)
		}
	}
	if isNil(c.Client) && isNil(c.Store) && isNil(c.Once.Store) {
		f.Add("Client is nil, and so is Store: one of them must keep what was handled")
	}
}

// maxServiceBytes is the publisher's limit for a producer ID, the lowest of the three.
const maxServiceBytes = 256

func (c *Config) shareService(f *invalid.Faults) {
	const isNot = "Service %q %s: it is also the publisher's producer ID"
	switch {
	case c.Service == "":
		c.checkNames(f)
	case strings.Contains(c.Service, "/"):
		f.Add(isNot, c.Service, "has a slash")
	case len(c.Service) > maxServiceBytes:
		f.Add(isNot, c.Service[:16]+"…", fmt.Sprintf("is longer than %d bytes", maxServiceBytes))
	case !utf8.ValidString(c.Service):
		f.Add(isNot, c.Service, "is not UTF-8")
	}
	const otherwise = "; for names that differ leave Service empty and set Publisher.ProducerID, Subscriber.Group and Once.Namespace"
	shareName := func(name string, value *string) {
		if *value == "" {
			*value = c.Service
		} else if c.Service != "" && c.Service != *value {
			f.Add("Service %q and %s %q differ: leave %s out%s", c.Service, name, *value, name, otherwise)
		}
	}
	shareName("Publisher.ProducerID", &c.Publisher.ProducerID)
	shareName("Once.Namespace", &c.Once.Namespace)
	if !c.Subscriber.FanOut {
		shareName("Subscriber.Group", &c.Subscriber.Group)
	}
}

// checkNames looks at the names of a configuration without Service.
func (c *Config) checkNames(f *invalid.Faults) {
	var missing []string
	for _, n := range []struct {
		name, value string
		isNeeded    bool
	}{
		{"Publisher.ProducerID", c.Publisher.ProducerID, true},
		{"Subscriber.Group", c.Subscriber.Group, !c.Subscriber.FanOut},
		{"Once.Namespace", c.Once.Namespace, true},
	} {
		if n.isNeeded && n.value == "" {
			missing = append(missing, n.name)
		}
	}
	if len(missing) > 0 {
		f.Add("Service is empty: name the service, such as \"billing\", the same in all instances and after a restart (it also stands for %s)",
			strings.Join(missing, ", "))
	}
}

func (c *Config) shareStore(f *invalid.Faults) {
	if !isNil(c.Store) && !isNil(c.Once.Store) && !same(c.Store, c.Once.Store) {
		f.Add("Store and Once.Store are two different stores: set one of them")
	}
	if isNil(c.Store) {
		c.Store = c.Once.Store
	}
	_, isOwn := dedupe.Unwrap(c.Store).(*dedupe.Memory)
	if c.Subscriber.FanOut && !isOwn && !c.Once.ShareAcrossFanOut {
		f.Add("Subscriber.FanOut gives every instance every event, and in a store that they share only one of them would handle it: " +
			"set Store to a dedupe.Memory, or Once.ShareAcrossFanOut if one instance of all is what you want")
	}
}

func (c *Config) checkTopics(f *invalid.Faults) {
	for _, list := range []struct {
		name   string
		topics []string
	}{
		{"PublishTopics", c.PublishTopics},
		{"SubscribeTopics", c.SubscribeTopics},
	} {
		seen := make(map[string]bool)
		for i, topic := range list.topics {
			switch {
			case topic == "":
				f.Add("%s[%d] is empty", list.name, i)
			case seen[topic]:
				f.Add("%s has %q twice", list.name, topic)
			}
			seen[topic] = true
		}
		if c.SkipCheck && len(list.topics) > 0 {
			f.Add("SkipCheck and %s exclude each other: topics are listed to be checked", list.name)
		}
	}
}

// warnings are about settings of two parts that work, and hardly work together as meant.
func (c *Config) warnings() (list []string) {
	window := cmp.Or(c.Publisher.Window.Duration, publisher.DefaultWindowDuration)
	for _, t := range c.Publisher.Topics {
		window = max(window, t.Window.Duration)
	}
	if c.Once.Retention < window {
		list = append(list, fmt.Sprintf("Retention %v is shorter than the publisher's window, %v: an event that is published again after that is handled again. "+
			"Make Retention longer than the window.", c.Once.Retention, window))
	}
	return list
}

// share hands a common value on to a part that has none of its own.
func share[T comparable](f *invalid.Faults, name string, common T, partName string, part *T) {
	var zero T
	switch {
	case *part == zero:
		*part = common
	case common != zero && common != *part:
		f.Add("%s %v and %s %v differ: leave %s out", name, common, partName, *part, partName)
	}
}

// isNil also knows nil pointers in an interface, which the parts would report once each.
func isNil(v any) bool {
	if v == nil {
		return true
	}
	r := reflect.ValueOf(v)
	return r.Kind() == reflect.Pointer && r.IsNil()
}

// same compares two values of interface types, of which an uncomparable one equals none.
func same(a, b any) bool {
	return reflect.ValueOf(a).Comparable() && reflect.ValueOf(b).Comparable() && a == b
}
