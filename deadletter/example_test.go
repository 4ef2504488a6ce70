package deadletter_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/deadletter"
	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/subscriber"
)

// What the examples have around them.
var (
	ctx     = context.Background()
	client  redis.UniversalClient
	pub     *publisher.Publisher
	store   dedupe.Admin
	letters *deadletter.Letters
)

// The handler is mended: what died in the last hour is to be handled again.
func Example() {
	replay := func() error {
		letters, err := deadletter.New(deadletter.Config{Client: client})
		if err != nil {
			return err
		}
		result, err := letters.Replay(ctx, "orders", deadletter.Replay{
			Publisher: pub, // with the same ProducerID each time
			Filter:    deadletter.Filter{Group: "billing", From: time.Now().Add(-time.Hour)},
			By:        "anna",
			OnLetter: func(o deadletter.Outcome) {
				slog.Info("replay", "letter", o.Letter.ID, "key", o.Letter.Key, "action", o.Action, "error", o.Err)
			},
		})
		fmt.Println(result.Replayed, "replayed,", result.AlreadyReplayed, "had been before,", result.Failed, "failed")
		return errors.Join(err, result.Err()) // calling it again is safe
	}
	_ = replay
}

func ExampleLetters_List() {
	list := func() error {
		for letter, err := range letters.List(ctx, "orders", deadletter.Filter{Reason: subscriber.ReasonMaxDeliveries, Newest: true, Limit: 20}) {
			if err != nil {
				return err
			}
			fmt.Println(letter.ID, letter.At, letter.Group, letter.Key, letter.Error)
		}
		return nil
	}
	_ = list
}

// A handler recorded an event as handled, and it is to run again all the same.
func ExampleForget() {
	result, err := letters.Replay(ctx, "orders", deadletter.Replay{
		Publisher: pub,
		Filter:    deadletter.Filter{Key: "pay:1001"},
		Forget:    &deadletter.Forget{Store: store, Handlers: []string{"charge"}},
		DryRun:    true,
	})
	if err == nil {
		fmt.Println(result.Forgotten, "records would be removed")
	}
}
