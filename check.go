package idempotent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
)

// check looks at the server by the Checks of the parts.
func (p *PubSub) check(ctx context.Context, cfg Config) error {
	if err := cfg.reach(ctx, cfg.Publisher.Client); err != nil {
		return err
	}
	if !same(cfg.Publisher.Client, cfg.Subscriber.Client) {
		if err := cfg.reach(ctx, cfg.Subscriber.Client); err != nil {
			return err
		}
	}
	var errs []error
	note := func(part string, warnings []string, err error) {
		for _, w := range warnings {
			cfg.warn(part, w)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("check the %s: %w", part, err))
		}
	}
	published, err := p.publisher.Check(ctx, cfg.PublishTopics...)
	note("publisher", published.Warnings, err)
	subscribed, err := p.subscriber.Check(ctx, cfg.SubscribeTopics...)
	note("subscriber", subscribed.Warnings, err)
	if store, ok := p.store.(interface {
		Check(context.Context) ([]string, error)
	}); ok {
		warnings, err := store.Check(ctx)
		note("store", warnings, err)
	}
	return errors.Join(errs...)
}

func (c *Config) warn(part, warning string) {
	c.Logger.Info("Warning: "+warning, watermill.LogFields{"service": c.Service, "part": part})
}

// pause is how long reach waits before it asks again.
const pause = 250 * time.Millisecond

// reach waits until the server answers.
func (c *Config) reach(ctx context.Context, shared redis.UniversalClient) error {
	client, done := preflight.Bounded(shared)
	defer done()
	for last := error(nil); ; {
		err := client.Ping(ctx).Err()
		switch {
		case err == nil, server.IsRefusedByACL(err): // either is an answer
			return nil
		case isFinal(err):
			return fmt.Errorf("the server refuses the client: %w: correct the options of the client", err)
		case last == nil:
			c.Logger.Info("The server can't be reached; asking again", watermill.LogFields{"service": c.Service, "error": err.Error()})
			last = err
		case ctx.Err() == nil: // that the time is over says nothing
			last = err
		}
		if !wait.For(ctx, nil, pause) {
			return fmt.Errorf("the server can't be reached: %w (%w): correct the address, or start it; "+
				"Config.SkipCheck lets the service start without one", last, context.Cause(ctx))
		}
	}
}

// isFinal tells that the server has answered, and will not answer otherwise.
func isFinal(err error) bool {
	var reply redis.Error
	return errors.As(err, &reply) && server.Classify(err) == server.Final
}
