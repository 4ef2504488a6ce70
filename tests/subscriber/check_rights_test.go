package subscriber_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// Check by a user who may not begin a transaction runs nothing: it takes no entry, and
// leaves groups and dead letters alone.
func TestCheckRunsNothingWithoutMulti(t *testing.T) {
	s := testserver.Start(t, testserver.Redis86)
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
	poor := newSubscriber(t, s.User("poor", "on", ">secret", "allkeys", "allcommands", "-multi"), func(c *subscriber.Config) { c.Group = "billing" })
	if _, err := poor.Check(ctx, topic); err != nil {
		t.Errorf("reading does not need MULTI: %v", err)
	}
	if after := client.Dump(ctx, topic).Val(); after != before {
		t.Error("Check has changed the stream or its group")
	}
	if n := client.Exists(ctx, subscriber.DeadLetterTopic(topic)).Val(); n != 0 {
		t.Error("Check has written a dead letter")
	}
}
