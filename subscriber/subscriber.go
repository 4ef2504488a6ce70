// Package subscriber reads the consumer groups of Redis streams for Watermill: fast,
// and without losing anything.
//
// A [Subscriber] is a Watermill message.Subscriber. It reads ahead and acknowledges in
// batches; it renews what it holds, however slow a handler is, so that nobody else gets
// it, and takes over what dead consumers have left; it hands a message that was not
// acknowledged out again after a while, without holding up others, and moves it to the
// dead letters when that was often enough. When it ends, by Close or by its context,
// it lets handlers finish, acknowledges their messages and hands the rest back before
// it closes the channel. It survives a lost connection, a failover, and the deletion of
// the stream or of the group.
//
// A message is delivered at least once. Package publisher keeps repeated publishes out
// of the stream, and a handler that must not run twice for one event is wrapped by the
// handling middleware.
package subscriber

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/preflight"
)

// Subscriber makes subscriptions. It is safe for concurrent use.
type Subscriber struct {
	cfg    Config
	logger watermill.LoggerAdapter

	mu            sync.Mutex
	closed        bool
	closing       chan struct{}
	subscriptions map[*subscription]struct{}
	running       sync.WaitGroup
}

var (
	_ message.Subscriber           = (*Subscriber)(nil)
	_ message.SubscribeInitializer = (*Subscriber)(nil)
)

// New makes a Subscriber. It does not connect: a server that is down, or can't do what
// is asked, shows at Subscribe or at [Subscriber.Check]. The error has all faults of
// the configuration. A nil logger logs nothing.
func New(config Config, logger watermill.LoggerAdapter) (*Subscriber, error) {
	cfg, err := config.resolve()
	if err != nil {
		return nil, err
	}
	if logger == nil {
		logger = watermill.NopLogger{}
	}
	for _, w := range cfg.warnings() {
		logger.Error("The configuration is valid, and likely a mistake", w, watermill.LogFields{fieldGroup: cfg.Group})
	}
	return &Subscriber{
		cfg: cfg, logger: logger,
		closing:       make(chan struct{}),
		subscriptions: make(map[*subscription]struct{}),
	}, nil
}

// Subscribe reads a topic, the stream of that name. It makes the group, and the stream
// with it, where they are missing, and returns when the place to read from is fixed.
//
// The channel gets at most Config.MaxInFlight messages that are not settled. A
// message's context has the values of ctx but ends by itself: when the message is
// settled, when ownership of its entry is lost, and shortly before Config.CloseTimeout has
// passed after the end of the subscription (ErrSettled, ErrOwnershipLost and ErrClosing by
// context.Cause).
//
// The subscription ends with ctx or by Close, in the same way: it hands out nothing
// more, waits up to CloseTimeout for messages that are with handlers, reports to the server
// what became of them, hands back what it has read ahead so that any consumer can take
// it at once, removes its consumer, and then closes the channel; where the server does not
// answer for five seconds above CloseTimeout, without that. It closes it at no other time,
// and needs nobody to drain it.
//
// The error matches ErrClosed, ErrWrongType or ErrUnsupported, is that of ctx, or
// wraps what the server said. While the server answers that it can't now (it loads its
// data, say), Subscribe tries again for up to 10 seconds.
func (s *Subscriber) Subscribe(ctx context.Context, topic string) (<-chan *message.Message, error) {
	if err := checkTopic(topic); err != nil {
		return nil, fmt.Errorf("subscribe: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil, ErrClosed
	}
	s.running.Add(1) // before Close can wait
	s.mu.Unlock()

	sub := s.newSubscription(s.cfg.Client, topic)
	if err := sub.setUp(ctx); err != nil {
		s.running.Done()
		return nil, fmt.Errorf("subscribe to %q: %w", topic, err)
	}
	s.mu.Lock()
	s.subscriptions[sub] = struct{}{}
	count := len(s.subscriptions)
	s.mu.Unlock()
	if size := preflight.PoolSize(s.cfg.Client); size > 0 && size < wantedConnections(count) {
		s.logger.Error("The client's connection pool is smaller than its subscriptions need", errSmallPool,
			sub.report.fields(watermill.LogFields{"pool_size": size, "subscriptions": count, "wanted": wantedConnections(count)}))
	}
	go func() {
		defer s.running.Done()
		sub.run(ctx)
		s.mu.Lock()
		delete(s.subscriptions, sub)
		s.mu.Unlock()
	}()
	return sub.dispatcher.out, nil
}

// SubscribeInitialize makes the group of a topic, and the stream with it, as Subscribe
// would. With FanOut there is nothing to make.
func (s *Subscriber) SubscribeInitialize(topic string) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	if s.cfg.FanOut {
		return nil
	}
	sub := s.newSubscription(s.cfg.Client, topic)
	if _, err := sub.fetcher.recreate.create(context.Background(), s.cfg.StartFrom.argument()); err != nil {
		return fmt.Errorf("initialize %q: %w", topic, err)
	}
	return nil
}

// Close ends all subscriptions, see Subscribe, and waits for it: no longer than CloseTimeout
// and five seconds for the server's replies, or the client's time-outs where a message was just
// being fetched for its redelivery and those are longer. It does not close the client.
func (s *Subscriber) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.closing)
	}
	s.mu.Unlock()
	s.running.Wait()
	return nil
}

// Health is nil while the server does all that the subscriptions ask of it, and else
// says what it does not do for which, since when and why. Dead letters that it refuses
// are not part of it, since reading goes on; see Hooks.OnOutage.
func (s *Subscriber) Health() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var faults []error
	for sub := range s.subscriptions {
		if err := sub.report.outage.health(); err != nil {
			faults = append(faults, fmt.Errorf("topic %q: %w", sub.topic, err))
		}
	}
	return errors.Join(faults...)
}

// wantedConnections is how many so many subscriptions need: each keeps one busy with a blocked
// read, and all of them use a few for moments.
func wantedConnections(subscriptions int) int { return subscriptions + 4 }

func (s *Subscriber) newSubscription(client redis.UniversalClient, topic string) *subscription {
	return newSubscription(&s.cfg, client, s.logger, s.closing, topic)
}
