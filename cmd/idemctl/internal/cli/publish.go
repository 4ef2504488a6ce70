package cli

import (
	"context"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/exit"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/publisher"
)

// defaultProducer is under whose name dead letters are replayed. It is the same in each run, so
// that a replay that is repeated recognises what it has published.
const defaultProducer = "idemctl"

// publisherOf makes a publisher that agrees with the topic's layout, so that neither its set-up
// nor its Check finds a difference to a configuration that nobody has written.
func publisherOf(l *look, t inspect.Topic, producer string, key eventkey.Source) (*publisher.Publisher, error) {
	cfg := publisher.Config{Client: l.UniversalClient, ProducerID: producer, Key: key}
	if t.HasLayout && t.LayoutErr == nil {
		cfg.Mode = t.Layout.Mode
		cfg.Window.Duration = t.Window.Duration
		cfg.Window.Entries = t.Window.Entries
		if cfg.Mode == publisher.ModeIDMPAuto {
			cfg.Key = nil // it has none: the content is the key
		}
		if !t.Window.InServer && t.Layout.Duration > 0 {
			cfg.Window.Duration = t.Layout.Duration
		}
	}
	pub, err := publisher.New(cfg, nil)
	if err != nil {
		return nil, exit.Errorf(exit.Usage, "%w", err)
	}
	return pub, nil
}

// boundedTopic looks at a topic, which need not be there.
func boundedTopic(ctx context.Context, a *app, l *look, topic string) (inspect.Topic, error) {
	ctx, cancel := a.Bounded(ctx)
	defer cancel()
	return l.Topic(ctx, topic)
}
