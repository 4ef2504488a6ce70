package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/alicebob/miniredis/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/dedupe/sqlstore"
	"github.com/onceward/watermill-idempotent/examples/internal/sqloutbox"
	"github.com/onceward/watermill-idempotent/metrics"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/subscriber"
)

const (
	name = "shop" // the same in all instances, for ever: what was published and handled is kept under it

	// retention is how long an order that was billed is remembered: longer than its event can
	// take to come again, by a dead letter that is replayed, say.
	retention = 7 * 24 * time.Hour

	pollInterval = 100 * time.Millisecond // how late an event may leave the outbox
	ackDeadline  = 30 * time.Second       // longer than the publisher tries
)

// closer ends a part.
type closer struct {
	part string
	end  func() error
}

// service has the parts, as open makes them and close ends them.
type service struct {
	cfg      config
	logger   *slog.Logger
	closers  []closer // in the order in which the parts were made
	redis    *redis.Client
	db       *database
	store    *sqlstore.Store
	outbox   *sqloutbox.Outbox
	backend  *idempotent.PubSub
	registry *prometheus.Registry
}

// open makes the parts, and looks whether database and Redis are as they must be. Nothing runs
// before run is called.
func open(ctx context.Context, cfg config, logger *slog.Logger) (*service, error) {
	s := &service{cfg: cfg, logger: logger}
	for _, step := range []func(context.Context) error{s.openRedis, s.openDatabase, s.openBackend} {
		if err := step(ctx); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
}

// close ends the parts, those that were made last first: each needs those before it.
func (s *service) close() error {
	var errs []error
	for _, c := range slices.Backward(s.closers) {
		s.logger.Info("closing", "part", c.part)
		if err := c.end(); err != nil {
			errs = append(errs, fmt.Errorf("close %s: %w", c.part, err))
		}
	}
	s.closers = nil
	return errors.Join(errs...)
}

func (s *service) atClose(part string, end func() error) {
	s.closers = append(s.closers, closer{part, end})
}

func (s *service) openRedis(context.Context) error {
	options := s.cfg.redis
	if options == nil {
		embedded, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("start the embedded Redis: %w", err)
		}
		s.atClose("embedded redis", func() error { embedded.Close(); return nil })
		s.logger.Warn("REDIS_ADDR is not set: an embedded Redis is used, and what is in it is gone at the end")
		options = &redis.Options{Addr: embedded.Addr()}
	}
	s.redis = redis.NewClient(options)
	s.atClose("redis client", s.redis.Close)
	return nil
}

func (s *service) openDatabase(ctx context.Context) error {
	if s.cfg.databaseURL == "" {
		s.logger.Warn("DATABASE_URL is not set: orders are kept in a file that is removed at the end")
	}
	var err error
	if s.db, err = openDatabase(s.cfg.databaseURL); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	s.atClose("database", s.db.Close)
	s.outbox = sqloutbox.New(sqloutbox.Config{
		DB: s.db.DB, Dialect: s.db.dialect, Table: "outbox",
		PollInterval: pollInterval, AckDeadline: ackDeadline, Logger: s.forWatermill(),
	})
	if s.store, err = sqlstore.New(sqlstore.Config{DB: s.db.DB, Dialect: s.db.dialect, MaxInFlight: maxInFlight, Logger: s.forWatermill()}); err != nil {
		return err
	}
	s.atClose("store", s.store.Close)
	if err := s.db.migrate(ctx, s.outbox.Schema()); err != nil {
		return fmt.Errorf("database: make the tables: %w", err)
	}
	if err := s.store.Migrate(ctx); err != nil {
		return fmt.Errorf("database: %w", err)
	}
	return nil
}

// openBackend makes publisher, subscriber and the middleware that handles each event once.
func (s *service) openBackend(ctx context.Context) error {
	m, err := metrics.New(metrics.Config{})
	if err != nil {
		return err
	}
	// The keys come with the messages: see placedEvent.
	s.backend, err = idempotent.Open(ctx, m.Instrument(idempotent.Config{
		Client: s.redis, Service: name, Retention: retention,
		Store:         s.store,
		PublishTopics: []string{topic}, SubscribeTopics: []string{topic},
		Subscriber: subscriber.Config{MaxInFlight: maxInFlight, MinIdle: s.cfg.takeoverAfter},
		Once: middleware.Config{Hooks: []middleware.Hooks{{
			OnSkipped: func(e middleware.Event) { s.logger.Info("billed before, skipped", "key", e.Key) },
		}}},
		Logger: s.forWatermill(),
	}))
	if err != nil {
		return err
	}
	s.atClose("backend", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), s.cfg.stopTimeout)
		defer cancel()
		return s.backend.Close(ctx)
	})
	s.registry, err = newRegistry(m, s.redis, s.outbox)
	return err
}

func (s *service) forWatermill() watermill.LoggerAdapter {
	return watermill.NewSlogLogger(s.logger)
}

// newRouter has two handlers: outbox to stream, and stream to bill.
func (s *service) newRouter() (*message.Router, error) {
	router, err := message.NewRouter(message.RouterConfig{CloseTimeout: s.cfg.stopTimeout}, s.forWatermill())
	if err != nil {
		return nil, err
	}
	if err := s.outbox.Forward(router, s.backend.Publisher()); err != nil {
		return nil, err
	}
	bill := sqlstore.WithTx((&billing{logger: s.logger}).bill)
	router.AddConsumerHandler("bill", topic, s.backend.Subscriber(), s.backend.Once().Consumer(func(msg *message.Message) error {
		_, err := bill(msg)
		return err
	}))
	return router, nil
}
