package subscriber

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// subscription is one call of Subscribe: it starts the workers, and ends them in order. Data
// flows one way through them:
//
//	fetcher ─► ledger ─► dispatcher ─► channel ─► handler ─► dispatcher ─► ledger ─► committer
//	                                                                            └──► dead letters
//
// The maintainer renews what the ledger holds and takes over from others, the lease clock
// ends what could not be renewed.
type subscription struct {
	*shared
	closing <-chan struct{} // the subscriber is being closed

	fetcher     *fetcher
	fanOut      *fanOutSource // nil with a group
	dispatcher  *dispatcher
	maintainer  *maintainer
	leaseClock  *leaseClock
	committer   *committer
	deadLetters *deadLetters
	handback    *handback

	drained chan struct{} // closed: nothing more can start, though slow handlers may go on
	flush   *flush
}

// newSubscription wires the workers of a subscription; none runs yet.
func newSubscription(cfg *Config, client redis.UniversalClient, logger watermill.LoggerAdapter, closing <-chan struct{}, topic string) *subscription {
	consumer := incarnation(cfg.Consumer)
	report := newReporter(cfg, logger, topic, consumer)
	all := &shared{
		cfg: cfg, topic: topic, report: report,
		group: group.New(client, topic, cfg.Group, consumer),
		ledger: ledger.New(ledger.Settings{
			Topic: topic, Group: cfg.Group, Consumer: consumer,
			FanOut: cfg.FanOut, Ordered: cfg.Order != OrderNone && !cfg.FanOut,
			MaxInFlight: cfg.MaxInFlight, ReadAhead: cfg.ReadAhead, ReadAheadBytes: cfg.ReadAheadBytes, MaxHeld: cfg.MaxHeld,
			MinIdle: cfg.MinIdle, MaxDeliveries: cfg.MaxDeliveries, RedeliverAfter: cfg.RedeliverAfter, RedeliverMax: cfg.RedeliverMax,
		}),
		stopping: make(chan struct{}),
	}
	s := &subscription{shared: all, closing: closing, drained: make(chan struct{}), flush: &flush{all: make(chan struct{})}}
	decoder := &decoder{cfg: cfg, topic: topic, report: report}
	recovery := &recovery{shared: all, decoder: decoder}
	recreate := &recreator{shared: all}
	restore := &restorer{all}
	block := boundedBlock(client, cfg.Block)
	var src source = groupSource{all.group, block}
	if cfg.FanOut {
		s.fanOut = &fanOutSource{shared: all, block: block}
		src = s.fanOut
	}
	s.handback = &handback{shared: all, recreate: recreate, restore: restore}
	s.fetcher = &fetcher{shared: all, source: src, decoder: decoder, recovery: recovery, recreate: recreate, handback: s.handback}
	s.dispatcher = newDispatcher(all, decoder)
	s.maintainer = &maintainer{shared: all, recovery: recovery, recreate: recreate, drained: s.drained}
	s.leaseClock = &leaseClock{shared: all, drained: s.drained}
	s.committer = &committer{shared: all, flush: s.flush, restore: restore}
	s.deadLetters = &deadLetters{shared: all, flush: s.flush, restore: restore}
	return s
}

// incarnation makes a consumer name that nobody had before.
func incarnation(prefix string) string { return prefix + "-" + uuid.NewString()[:13] }

func hostName() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name[:min(len(name), maxConsumerBytes)]
	}
	return "consumer"
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
func readTimeout(client redis.UniversalClient) time.Duration {
	o, isKnown := server.OptionsOf(client)
	if isKnown && o.ReadTimeout == 0 { // go-redis has filled in its default, and made 0 of -1
		return -1
	}
	return o.ReadTimeout
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
		if !wait.For(ctx, s.closing, retry.NextBackOff()) {
			if ctx.Err() != nil {
				return errors.Join(ctx.Err(), err)
			}
			return errors.Join(ErrClosed, err)
		}
	}
}

func (s *subscription) setUpOnce(ctx context.Context) error {
	if s.fanOut != nil {
		return s.fanOut.start(ctx)
	}
	recreate := s.fetcher.recreate
	if _, err := recreate.create(ctx, s.cfg.StartFrom.argument()); err != nil {
		return err
	}
	_, _ = recreate.observe(ctx) // else the first heartbeat does it
	if !s.cfg.DeleteOnAck {
		return nil
	}
	return s.group.CheckDelete(ctx)
}

// run works until the subscription ends, and closes the channel then.
func (s *subscription) run(subscribed context.Context) {
	// What is under way when the subscription ends must be finished and reported to the
	// server, so commands and messages get the values of the context but not its end.
	ctx := context.WithoutCancel(subscribed)
	s.report.info("Subscribed", watermill.LogFields{
		"order": s.cfg.Order.String(), "max_in_flight": s.cfg.MaxInFlight,
	})

	var fetching, maintaining, committing sync.WaitGroup
	fetching.Go(func() { s.fetcher.run(ctx) })
	committing.Go(func() { s.committer.run(ctx) })
	committing.Go(func() { s.deadLetters.run(ctx) })
	if !s.cfg.FanOut {
		maintaining.Go(func() { s.maintainer.run(ctx) })
		maintaining.Go(s.leaseClock.run)
	}
	s.dispatcher.start(ctx)

	select {
	case <-subscribed.Done():
	case <-s.closing:
	}
	s.drain(ctx, &fetching, &maintaining, &committing)
	s.dispatcher.close()
	s.report.info("Subscription ended", nil)
}

// replyGrace is how long the end waits, above CloseTimeout, for replies of the server.
const replyGrace = 5 * time.Second

// drain ends the subscription. The order matters:
//
//  1. Nothing is handed out any more, and what was offered is withdrawn.
//  2. Handlers finish, up to CloseTimeout; a moment before that their contexts end, so
//     that they can say so. Everything held is renewed meanwhile.
//  3. The last blocked read returns. What it brings is handed back with the rest: a
//     consumer that is removed while it reads would come back and keep it.
//  4. What became of the messages is reported to the server.
//  5. What is left is handed back, and the consumer removed.
//
// A server that does not answer keeps it no longer than CloseTimeout and replyGrace, but for
// a message that is just being fetched (step 2), which ends by the client's time-outs. The
// commands that are under way then end by the client's time-outs, and what was not handed
// back is taken over as that of a dead consumer.
func (s *subscription) drain(ctx context.Context, fetching, maintaining, committing *sync.WaitGroup) {
	close(s.stopping)
	s.flush.until = time.Now().Add(s.cfg.CloseTimeout)
	giveUp := time.NewTimer(s.cfg.CloseTimeout + replyGrace)
	defer giveUp.Stop()
	s.dispatcher.drain()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		fetching.Wait()
		close(s.drained)
		maintaining.Wait()
		close(s.flush.all)
		committing.Wait()
		if !s.cfg.FanOut {
			s.handback.all(ctx)
		}
	}()
	select {
	case <-ended:
	case <-giveUp.C:
		s.report.error("The subscription ends without the server's replies; other consumers take over after MinIdle what was not handed back", errNoReplies, nil)
	}
}
