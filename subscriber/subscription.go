package subscriber

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// subscription is one call of Subscribe. Data flows one way through its goroutines:
//
//	reader ─► book ─► slot ─► channel ─► handler ─► slot ─► book ─► settler
//
// The keeper renews what the book holds and takes over from others, the clock ends
// what could not be renewed. run owns them all and ends them in order, see drain.
type subscription struct {
	cfg      *Config
	client   redis.UniversalClient
	logger   watermill.LoggerAdapter
	topic    string
	consumer string
	book     *book
	outage   outage
	burying  outage // of dead letters that the server refuses
	out      chan *message.Message
	block    time.Duration

	closing  <-chan struct{} // the subscriber is being closed
	stopping chan struct{}   // read and hand out nothing more
	settling chan struct{}   // nothing is in flight any more: the keeper and the clock end
	abandon  chan struct{}   // the slots wait no longer
	flush    chan struct{}   // the settler has all there is: it ends when that is done
	// flushUntil is how long the settler tries then. It is set before flush is closed.
	flushUntil time.Time

	baton     sync.Mutex
	started   int // slots, under the baton
	idleSlots atomic.Int32
	slots     sync.WaitGroup

	needRecovery atomic.Bool  // own pending entries must be listed before the next read
	listOwn      atomic.Bool  // own pending entries are to be listed once more
	taking       atomic.Int32 // takeovers under way
	untold       atomic.Bool  // a takeover failed that may have taken entries of the dead
	average      int          // size of an entry, by the reader
	batch        batchSize    // how many the reader asks for
	lastID       server.ID    // with FanOut: read up to here
	checkAnewAt  instant      // with FanOut: when to look whether the stream is another one
	standing     bool         // by, so the reader has said
	warnedOnce   sync.Once    // about entries without a key
	unread       unread       // what is known of trimming
}

func newSubscription(s *Subscriber, topic string) *subscription {
	sub := &subscription{
		cfg: &s.cfg, client: s.cfg.Client, logger: s.logger, topic: topic,
		consumer: incarnation(s.cfg.Consumer),
		out:      make(chan *message.Message),
		block:    boundedBlock(s.cfg.Client, s.cfg.Block),
		closing:  s.closing,
		stopping: make(chan struct{}), settling: make(chan struct{}), abandon: make(chan struct{}), flush: make(chan struct{}),
	}
	for _, o := range []*outage{&sub.outage, &sub.burying} {
		o.report, o.forgetAfter = sub.reportOutage, 4*sub.cfg.Heartbeat+10*time.Second
	}
	sub.book = newBook(sub.cfg, topic, sub.consumer)
	return sub
}

// boundedBlock keeps a blocked read below the client's read time-out, which would make
// an error of an empty stream.
func boundedBlock(client redis.UniversalClient, block time.Duration) time.Duration {
	if timeout := readTimeout(client); timeout > 0 && block > timeout/2 {
		block = timeout / 2
	}
	return max(block, minBlock)
}

// readTimeout is the client's, negative if it has none, 0 if that is not known.
func readTimeout(client redis.UniversalClient) (timeout time.Duration) {
	switch c := client.(type) {
	case *redis.Client:
		timeout = c.Options().ReadTimeout
	case *redis.ClusterClient:
		timeout = c.Options().ReadTimeout
	default:
		return 0
	}
	if timeout == 0 { // go-redis has filled in its default, and made 0 of -1
		timeout = -1
	}
	return timeout
}

// setUpFor is how long Subscribe tries again where the server answers that it can't now,
// as while it loads its data or a replica becomes the primary.
const setUpFor = 10 * time.Second

// setUp fixes the place to read from.
func (s *subscription) setUp(ctx context.Context) error {
	retry := newRetry()
	for giveUp := time.Now().Add(setUpFor); ; {
		err := s.setUpOnce(ctx)
		var reply redis.Error
		if !errors.As(err, &reply) || server.Classify(err) != server.Refused || time.Now().After(giveUp) {
			return err
		}
		timer := time.NewTimer(retry.NextBackOff())
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		case <-s.closing:
			timer.Stop()
			return errors.Join(ErrClosed, err)
		}
	}
}

func (s *subscription) setUpOnce(ctx context.Context) error {
	if s.cfg.FanOut {
		return s.resolveStart(ctx)
	}
	if _, err := s.makeGroup(ctx, s.cfg.StartFrom.argument()); err != nil {
		return err
	}
	_, _ = s.notePosition(ctx) // else the first heartbeat does it
	return s.checkDelete(ctx)
}

// run works until the subscription ends, and returns when all of its goroutines have.
func (s *subscription) run(subscribed context.Context) {
	// What is under way when the subscription ends must be finished and told to the
	// server, so commands and messages get the values of the context but not its end.
	ctx := context.WithoutCancel(subscribed)
	s.logger.Info("Subscribed", s.fields(watermill.LogFields{
		"order": s.cfg.Order.String(), "max_in_flight": s.cfg.MaxInFlight,
	}))

	var reader, keeper, settler sync.WaitGroup
	reader.Go(func() { s.read(ctx) })
	settler.Go(func() { s.settle(ctx) })
	if !s.cfg.FanOut {
		keeper.Go(func() { s.keep(ctx) })
		keeper.Go(s.watchClock)
	}
	s.slots.Add(1)
	s.started = 1
	go s.slot(ctx, 0)

	select {
	case <-subscribed.Done():
	case <-s.closing:
	}
	s.drain(ctx, &reader, &keeper, &settler)
	s.logger.Info("Subscription ended", s.fields(nil))
}

// isEnding tells that the subscription ends: nothing more is read, handed out or taken over.
func (s *subscription) isEnding() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// pause waits, and is false when the subscription ends.
func (s *subscription) pause(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-s.stopping:
		return false
	}
}

// Pauses after failed commands.
const (
	minRetry = 50 * time.Millisecond
	maxRetry = time.Second
)

func (s *subscription) retryPause() time.Duration { return 4 * minRetry }

func hasPrefix(err error, prefix string) bool {
	return err != nil && redis.HasErrorPrefix(err, prefix)
}

func isNil(err error) bool { return errors.Is(err, redis.Nil) }
