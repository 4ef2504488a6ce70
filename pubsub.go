package idempotent

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/dedupe/redisstore"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// PubSub is what one service publishes, reads and handles events by. It is safe for
// concurrent use.
type PubSub struct {
	publisher  *publisher.Publisher
	subscriber *subscriber.Subscriber
	once       *middleware.Once
	store      dedupe.Store
	ownStore   *redisstore.Store // made by Open; nil if the store was given

	closing  sync.Once
	ending   atomic.Value  // string: the part that Close is at
	ended    chan struct{} // closed by Close when all parts are
	endError error         // set before ended is closed
}

// Open makes the parts, and looks at the server: whether it answers, whether the user may do
// what the parts and the topics listed need, and whether it keeps what they store. An error
// says what is wrong and what to do; warnings go to the log.
//
// While the server can't be reached, or says that it can't now (it loads its data, say), Open
// asks again until ctx ends, or for 10 seconds if that has no deadline. A service that must
// start without a server sets Config.SkipCheck. A client of another kind than *redis.Client
// and *redis.ClusterClient may keep Open longer than ctx.
//
// The error of an invalid configuration has all of its faults.
func Open(ctx context.Context, config Config) (*PubSub, error) {
	cfg, err := config.resolve()
	if err != nil {
		return nil, err
	}
	p, err := assemble(cfg)
	if err != nil {
		return nil, fmt.Errorf("idempotent: %w", err)
	}
	for _, w := range cfg.warnings() {
		cfg.warn("config", w)
	}
	if cfg.SkipCheck {
		return p, nil
	}
	if _, isSet := ctx.Deadline(); !isSet {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, DefaultOpenTimeout)
		defer cancel()
	}
	if err := p.check(ctx, cfg); err != nil {
		return nil, errors.Join(fmt.Errorf("idempotent: %w", err), p.Close(context.Background()))
	}
	return p, nil
}

// assemble makes the parts, none of which connects or starts anything. The error has the
// faults of all of them.
func assemble(cfg Config) (*PubSub, error) {
	p := &PubSub{store: cfg.Store, ended: make(chan struct{})}
	var errs [4]error
	if isNil(p.store) {
		p.ownStore, errs[0] = redisstore.New(redisstore.Config{Client: cfg.Client})
		p.store = p.ownStore
	}
	if cfg.WrapStore != nil && errs[0] == nil {
		if p.store = cfg.WrapStore(p.store); isNil(p.store) {
			errs[0] = errors.New("WrapStore returned nil")
		}
	}
	p.publisher, errs[1] = publisher.New(cfg.Publisher, cfg.Logger)
	p.subscriber, errs[2] = subscriber.New(cfg.Subscriber, cfg.Logger)
	if errs[0] == nil {
		cfg.Once.Store = p.store
		p.once, errs[3] = middleware.New(cfg.Once, cfg.Logger)
	}
	return p, errors.Join(errs[:]...)
}

// Publisher returns a handle on the publisher, a new one at each call. Closing it, as
// Watermill's Router does with every publisher that it is given, ends no other.
func (p *PubSub) Publisher() *publisher.Publisher { return p.publisher.Shared() }

// Subscriber returns the subscriber, the same at each call. A Router that is closed closes
// it; after that it subscribes to nothing more, for other Routers either.
func (p *PubSub) Subscriber() *subscriber.Subscriber { return p.subscriber }

// Once returns what wraps handlers, by its Handler and Consumer.
func (p *PubSub) Once() *middleware.Once { return p.once }

// Store returns the store of what was handled: a *redisstore.Store, or the one given, or what
// Config.WrapStore has made of it; dedupe.Unwrap gets at what is wrapped.
func (p *PubSub) Store() dedupe.Store { return p.store }

// Health is nil while messages can be read and handled, and else says what keeps them
// waiting, since when and why. It asks the server nothing, so it belongs into a readiness
// probe.
func (p *PubSub) Health() error { return errors.Join(p.subscriber.Health(), p.once.Health()) }

// Close ends the parts, in the order in which one needs the other: the subscriber, which
// waits for handlers; what is left to do after acknowledgements; the publisher, which waits
// for what is being sent; the store, if Open made it. A Router that uses them is best
// closed before. The client and a store that was given are not closed.
//
// When ctx ends, Close returns an error that names the part it was waiting for; the rest goes
// on by itself. Each part also has a bound of its own (Subscriber.CloseTimeout and five
// seconds, Publisher.RetryFor and five seconds, the client's read time-out), so
// context.Background() does. Called again, Close waits as the first call does and returns
// the same.
func (p *PubSub) Close(ctx context.Context) error {
	p.closing.Do(func() {
		p.ending.Store("subscriber")
		go p.close(ctx)
	})
	select {
	case <-p.ended:
		return p.endError
	case <-ctx.Done():
	}
	select {
	case <-p.ended:
		return p.endError
	default:
		return fmt.Errorf("idempotent: close: the %v has not ended yet and goes on by itself, the parts behind it after it: %w",
			p.ending.Load(), context.Cause(ctx))
	}
}

func (p *PubSub) close(ctx context.Context) {
	var errs []error
	end := func(part string, closePart func() error) {
		p.ending.Store(part)
		if err := closePart(); err != nil {
			errs = append(errs, fmt.Errorf("idempotent: close the %s: %w", part, err))
		}
	}
	end("subscriber", p.subscriber.Close)
	end("middleware", func() error { return p.once.Close(ctx) })
	end("publisher", p.publisher.Close)
	if p.ownStore != nil {
		end("store", p.ownStore.Close)
	}
	p.endError = errors.Join(errs...)
	close(p.ended)
}
