package subscriber_test

import (
	"context"
	"slices"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/preflight"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Each right that reading needs is named by Check where it alone is missing, on every server,
// also to a user who may not begin a transaction; and Check writes nothing.
func TestEachMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	group := []string{"xinfo|stream", "xrange", "xgroup|create", "xgroup|delconsumer", "xinfo|groups", "xinfo|consumers",
		"xreadgroup", "xpending", "xclaim", "xack", "time", "xadd", "xlen", "xrevrange", "eval", "evalsha"}
	for _, kind := range testserver.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testserver.Start(t, kind)
			client, topic, ctx := s.Client(), testserver.Topic(t), t.Context()
			for range 3 {
				if err := client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: []string{"a", "b"}}).Err(); err != nil {
					t.Fatal(err)
				}
			}
			if err := client.XGroupCreate(ctx, topic, "billing", "0").Err(); err != nil {
				t.Fatal(err)
			}
			before := client.Dump(ctx, topic).Val()
			try := func(rights []string, change func(*subscriber.Config)) {
				t.Helper()
				keys := []string{"~" + topic, "~" + subscriber.DeadLetterTopic(topic)}
				preflight.EachMissingRight(s, rights, keys, func(client *redis.Client, missing []string) {
					report, err := newSubscriber(t, client, change).Check(ctx, topic)
					if !slices.Equal(report.Topics[0].Missing, missing) || (err == nil) != (missing == nil) {
						t.Errorf("without %q: missing %q, %v", missing, report.Topics[0].Missing, err)
					}
				})
			}
			try(group, func(c *subscriber.Config) { c.Group = "billing" })
			if kind == testserver.Redis86 {
				try(append(group, "xackdel"), func(c *subscriber.Config) { c.Group, c.DeleteOnAck = "billing", true })
			}
			limited := newSubscriber(t, s.User("limited", "on", ">secret", "~"+topic, "allcommands"), func(c *subscriber.Config) { c.Group = "billing" })
			if report, err := limited.Check(ctx, topic); err == nil || !slices.Equal(report.Topics[0].Missing, []string{"~" + subscriber.DeadLetterTopic(topic)}) {
				t.Errorf("without the dead letters' key: %+v, %v", report.Topics, err)
			}
			if after := client.Dump(ctx, topic).Val(); after != before {
				t.Error("Check has changed the stream or its group")
			}
			if keys := client.Keys(ctx, "*").Val(); !slices.Equal(keys, []string{topic}) {
				t.Errorf("keys %q", keys)
			}
		})
	}
}

// Check ends with its context, also when the client does not heed contexts.
func TestCheckOfAFrozenServer(t *testing.T) {
	preflight.FrozenServer(t, func(client *redis.Client) func(context.Context) error {
		sub := newSubscriber(t, client)
		return func(ctx context.Context) error {
			_, err := sub.Check(ctx, "orders")
			return err
		}
	})
}
