package main

import (
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
)

// plainTries is how often the application of publishPlain calls Publish for a
// message that returned an error.
const plainTries = 10

// publishPlain publishes with watermill-redisstream, over the same link. Its client
// repeats what it has no reply to, and the application what returned an error.
func publishPlain(ctx context.Context, s *server, events []event) (result, error) {
	pub, err := redisstream.NewPublisher(redisstream.PublisherConfig{Client: s.lossy}, watermill.NopLogger{})
	if err != nil {
		return result{}, err
	}
	res := result{mode: "plain"}
	seen := make(map[[2]string]bool)
	last := "-"
	for _, e := range events {
		before := s.link.appends.Load()
		msg := message.NewMessage(watermill.NewUUID(), e.payload)
		err := pub.Publish(s.topic, msg)
		for try := 1; err != nil && try < plainTries && ctx.Err() == nil; try++ {
			err = pub.Publish(s.topic, msg)
		}
		if ctx.Err() != nil {
			return res, context.Cause(ctx)
		}
		added, readErr := s.direct.XRange(ctx, s.topic, last, "+").Result()
		if readErr != nil {
			return res, readErr
		}
		row := row{event: e, attempts: s.link.appends.Load() - before, err: err, verdict: sayPlain(len(added), seen[e.identity()])}
		if n := len(added); n > 0 {
			row.entry, last = added[n-1].ID, "("+added[n-1].ID
		}
		seen[e.identity()] = true
		res.add(row)
	}
	return res, nil
}

func sayPlain(added int, isRetry bool) string {
	verdict := "added"
	if isRetry {
		verdict = "added AGAIN"
	}
	if added == 1 {
		return verdict
	}
	return fmt.Sprintf("%s, %d TIMES", verdict, added)
}
