package subscriber

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// Defaults of [Config].
const (
	DefaultMaxInFlight      = 1
	DefaultReadAhead        = 256
	DefaultReadAheadBytes   = 32 << 20
	DefaultBlock            = 500 * time.Millisecond
	DefaultMinIdle          = 60 * time.Second
	DefaultCloseTimeout     = 10 * time.Second
	DefaultRedeliverAfter   = 100 * time.Millisecond
	DefaultRedeliverMax     = 30 * time.Second
	DefaultDeadLetterMaxLen = 100_000
)

// Config configures a [Subscriber]. Client is required, and Group or FanOut.
type Config struct {
	// Client is a *redis.Client (also one of NewFailoverClient) or a
	// *redis.ClusterClient. Ring clients are refused. The client stays the caller's:
	// Close does not close it. Every subscription keeps one connection busy with a
	// blocked read, and uses up to three more for moments; Subscribe warns about a
	// pool that is smaller than subscriptions + 4.
	Client redis.UniversalClient

	// Group is the consumer group; it is made where it is missing. All subscribers of
	// a group share its entries: each goes to one of them.
	Group string
	// FanOut reads without a group instead: every subscription gets every entry from
	// StartFrom on, and nothing is remembered when it ends. One of Group and FanOut
	// must be set, and only one.
	FanOut bool
	// StartFrom says where a group that this subscriber makes begins, or where a
	// subscription begins with FanOut. Default: Beginning. A group that exists goes
	// on where it is.
	StartFrom Start

	// Consumer begins the name of the consumer, such as "payment-service-7"; default:
	// the host name. Every subscription adds an incarnation of its own, so that a
	// restarted process is never taken for the one before it. At most 128 bytes.
	Consumer string

	// Order is OrderNone by default.
	Order Order
	// OrderBy names the entity that an entry belongs to, for OrderKey only, such as
	// eventkey.Template("{$.order_id}"). It is not the idempotency key, which differs
	// in every event. An entry for which it finds nothing goes without order.
	OrderBy eventkey.Source

	// MaxInFlight is how many messages of a subscription may be with handlers at a
	// time; 0 means 1. Under OrderStream it is 1. Watermill's Router holds one more
	// message in its hands while a handler is busy; it counts as in flight.
	MaxInFlight int
	// ReadAhead is how many entries are read in one go, and about how many wait in
	// memory for a handler; 0 means 256. ReadAheadBytes bounds what they take, by the
	// size of those read before; 0 means 32 MiB.
	ReadAhead      int
	ReadAheadBytes int
	// MaxHeld bounds what a subscription holds: read ahead, in flight, waiting for
	// redelivery and waiting to be acknowledged. Nothing more is read then; 0 means
	// ten times ReadAhead, at least twice MaxInFlight. Entries that wait for redelivery don't keep their payload.
	MaxHeld int

	// Block is how long one read waits for entries, and so about how long Close takes
	// on an empty stream; 0 means 500 ms, or Heartbeat if that is shorter. It must be
	// below the client's read time-out, and is cut to a half of it where it is not.
	// Less than a millisecond would wait for ever and is refused.
	Block time.Duration
	// MinIdle is after which time without a sign of life an entry is taken away from
	// its consumer; 0 means 60 s. It must be the same in all subscribers of the group,
	// at least watermill-redisstream's MaxIdleTime where one of those shares it, and at
	// most 30 days.
	MinIdle time.Duration
	// Heartbeat is how often held entries are renewed, however long their handler
	// takes; 0 means a quarter of MinIdle, 15 s. MinIdle must be at least three times
	// as long.
	Heartbeat time.Duration

	// MaxDeliveries is how often an entry is handed out before it becomes a dead
	// letter; 0 means without limit. Delays, shutdowns and lost ownership don't count.
	MaxDeliveries int
	// DeadLetterMaxLen trims the dead-letter stream to about so many entries; 0 means
	// 100,000, a negative value is refused.
	DeadLetterMaxLen int64
	// RedeliverAfter is how long a message that was not acknowledged waits; it doubles
	// each time up to RedeliverMax, and is spread by a random quarter. 0 means 100 ms
	// and 30 s. A delay asked for by Watermill's DelayOnError or by [Delivery.Delay]
	// goes before it.
	RedeliverAfter, RedeliverMax time.Duration

	// CloseTimeout is how long a subscription that ends waits for handlers; a quarter of
	// it before, at most a second, the contexts of their messages end. 0 means 10 s. It
	// should be below the Router's own CloseTimeout, 30 s by default.
	CloseTimeout time.Duration
	// DeleteOnAck deletes an entry that all groups of the stream have acknowledged
	// (XACKDEL ACKED; Redis 8.2.2 or newer, elsewhere Subscribe fails).
	DeleteOnAck bool

	// Unmarshaller makes messages of entries, as in watermill-redisstream. Default:
	// its format, and entries of others with their fields as metadata.
	Unmarshaller redisstream.Unmarshaller

	// Hooks receive what happens.
	Hooks []Hooks
}

const (
	maxConsumerBytes = 128
	maxGroupBytes    = 512
	minBlock         = time.Millisecond
)

// resolve returns the configuration with defaults filled in, and all of its faults
// at once.
func (c Config) resolve() (Config, error) {
	var f invalid.Faults
	if c.Consumer == "" {
		c.Consumer = hostName()
	}
	c.checkReading(&f)
	c.checkOrder(&f)
	c.checkSigns(&f)
	c.defaults()
	c.checkLimits(&f)
	if _, ok := c.Unmarshaller.(redisstream.DefaultMarshallerUnmarshaller); ok {
		c.Unmarshaller = nil // internal/wire reads the same, and entries of others as well
	}
	c.Hooks = slices.Clone(c.Hooks)
	return c, f.Err("subscriber: invalid config")
}

func (c *Config) checkReading(f *invalid.Faults) {
	if err := server.CheckClient(c.Client, "know their groups"); err != nil {
		*f = append(*f, err)
	}
	switch {
	case c.Group == "" && !c.FanOut:
		f.Add("Group is empty: name the consumer group, or set FanOut to get every entry in every subscriber")
	case c.Group != "" && c.FanOut:
		f.Add("Group %q and FanOut exclude each other", c.Group)
	}
	f.AddIf(len(c.Group) > maxGroupBytes, "Group is longer than %d bytes", maxGroupBytes)
	f.AddIf(len(c.Consumer) > maxConsumerBytes, "Consumer is longer than %d bytes", maxConsumerBytes)
	f.AddIf(c.Consumer == group.HandbackConsumer, "Consumer %q is the name under which entries are handed back", c.Consumer)
	f.AddIf(c.DeleteOnAck && c.FanOut, "DeleteOnAck needs a Group: without one nothing is acknowledged")
	if err := c.StartFrom.validate(); err != nil {
		f.Add("StartFrom: %w", err)
	}
}

func (c *Config) checkOrder(f *invalid.Faults) {
	f.AddIf(int(c.Order) >= len(orderNames), "Order: %v is unknown", c.Order)
	switch {
	case c.Order == OrderKey && c.OrderBy == nil:
		f.Add("Order is by key: OrderBy must say by which, such as eventkey.Template(\"{$.order_id}\")")
	case c.Order != OrderKey && c.OrderBy != nil:
		f.Add("OrderBy is for Order by key, Order is %v", c.Order)
	case c.OrderBy != nil:
		if err := eventkey.Validate(c.OrderBy); err != nil {
			f.Add("OrderBy: %w", err)
		}
	}
}

func (c *Config) checkSigns(f *invalid.Faults) {
	invalid.Negative(f, "MaxInFlight", c.MaxInFlight)
	invalid.Negative(f, "ReadAhead", c.ReadAhead)
	invalid.Negative(f, "ReadAheadBytes", c.ReadAheadBytes)
	invalid.Negative(f, "MaxHeld", c.MaxHeld)
	invalid.Negative(f, "MaxDeliveries", c.MaxDeliveries)
	invalid.Negative(f, "DeadLetterMaxLen", c.DeadLetterMaxLen)
	invalid.Negative(f, "MinIdle", c.MinIdle)
	invalid.Negative(f, "Heartbeat", c.Heartbeat)
	invalid.Negative(f, "RedeliverAfter", c.RedeliverAfter)
	invalid.Negative(f, "RedeliverMax", c.RedeliverMax)
	invalid.Negative(f, "CloseTimeout", c.CloseTimeout)
}

// checkLimits looks at values that depend on each other, with the defaults filled in.
func (c *Config) checkLimits(f *invalid.Faults) {
	f.AddIf(c.MaxInFlight > c.MaxHeld, "MaxInFlight %d is above MaxHeld %d, which bounds it", c.MaxInFlight, c.MaxHeld)
	f.AddIf(c.Block < minBlock, "Block %v is below %v, which the server takes for \"for ever\"", c.Block, minBlock)
	f.AddIf(c.Block > c.Heartbeat, "Block %v is longer than Heartbeat %v: what a read brings may be due for renewal", c.Block, c.Heartbeat)
	f.AddIf(c.MinIdle < 3*c.Heartbeat, "MinIdle %v is shorter than three heartbeats of %v: a slow reply would cost the entries", c.MinIdle, c.Heartbeat)
	f.AddIf(c.MinIdle > ledger.HandbackIdle, "MinIdle %v is longer than %v, the idle time under which entries are handed back", c.MinIdle, ledger.HandbackIdle)
	f.AddIf(c.RedeliverMax < c.RedeliverAfter, "RedeliverMax %v is shorter than RedeliverAfter %v", c.RedeliverMax, c.RedeliverAfter)
	f.AddIf(c.Heartbeat > 0 && c.Heartbeat < 10*time.Millisecond, "Heartbeat %v is below 10ms", c.Heartbeat)
}

// shortMinIdle is below what pauses of a process or a network take now and then.
const shortMinIdle = time.Second

// warnings are what New says of a configuration that works, and likely is a mistake.
func (c *Config) warnings() (list []error) {
	if c.MinIdle < shortMinIdle && !c.FanOut {
		list = append(list, fmt.Errorf("MinIdle %v is below %v: a pause of the process or the network that is longer lets other "+
			"consumers take over entries that are still being handled; set it well above the longest pause, the default is %v",
			c.MinIdle, shortMinIdle, DefaultMinIdle))
	}
	return list
}

func (c *Config) defaults() {
	set := func(d *time.Duration, value time.Duration) {
		if *d == 0 {
			*d = value
		}
	}
	if c.MaxInFlight == 0 {
		c.MaxInFlight = DefaultMaxInFlight
	}
	if c.Order == OrderStream {
		c.MaxInFlight = 1
	}
	if c.ReadAhead == 0 {
		c.ReadAhead = DefaultReadAhead
	}
	if c.ReadAheadBytes == 0 {
		c.ReadAheadBytes = DefaultReadAheadBytes
	}
	if c.MaxHeld == 0 {
		c.MaxHeld = max(10*c.ReadAhead, 2*c.MaxInFlight)
	}
	if c.DeadLetterMaxLen == 0 {
		c.DeadLetterMaxLen = DefaultDeadLetterMaxLen
	}
	set(&c.MinIdle, DefaultMinIdle)
	set(&c.Heartbeat, c.MinIdle/4)
	set(&c.Block, min(DefaultBlock, max(c.Heartbeat, minBlock)))
	set(&c.CloseTimeout, DefaultCloseTimeout)
	set(&c.RedeliverAfter, min(DefaultRedeliverAfter, max(c.RedeliverMax, 0)))
	if c.RedeliverAfter == 0 {
		c.RedeliverAfter = DefaultRedeliverAfter
	}
	set(&c.RedeliverMax, max(DefaultRedeliverMax, c.RedeliverAfter))
}

func checkTopic(name string) error {
	if name == "" {
		return errors.New("the topic is empty")
	}
	if strings.ContainsRune(name, 0) {
		return fmt.Errorf("topic %q has a zero byte", name)
	}
	return nil
}
