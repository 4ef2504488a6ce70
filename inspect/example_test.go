package inspect_test

import (
	"context"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/inspect"
	"github.com/onceward/watermill-idempotent/window"
)

// What the examples have around them.
var (
	ctx    = context.Background()
	client redis.UniversalClient
	look   *inspect.Inspector
)

func Example() {
	show := func() error {
		look, err := inspect.New(inspect.Config{Client: client})
		if err != nil {
			return err
		}
		for topic, err := range look.Topics(ctx, inspect.TopicFilter{Match: "orders*"}) {
			if err != nil {
				return err
			}
			fmt.Println(topic.Topic, topic.Layout.Mode, topic.Length, topic.DeadLetters)
		}
		orders, err := look.Topic(ctx, "orders")
		if err != nil {
			return err
		}
		for _, group := range orders.Groups {
			fmt.Println(group.Name, group.Lag, group.Pending, group.OldestAge)
		}
		return nil
	}
	_ = show
}

// Why does a stream have events twice?
func ExampleInspector_Duplicates() {
	explain := func() error {
		found, err := look.Duplicates(ctx, "orders", inspect.Scan{From: time.Now().Add(-24 * time.Hour)})
		if err != nil {
			return err
		}
		for _, finding := range found.Findings {
			fmt.Println(finding)
		}
		for _, pair := range found.Pairs {
			fmt.Println(pair.Key, pair.First.ID, pair.Second.ID, pair.Apart, pair.Cause)
		}
		return nil
	}
	_ = explain
}

// How large should the window of a topic be?
func ExampleInspector_Observe() {
	advise := func(ages window.Distribution) error { // from the publishers, see window.Ages
		seen, err := look.Observe(ctx, "orders", inspect.Watch{For: 10 * time.Minute, Caught: ages, Scan: &inspect.Scan{}})
		if err != nil {
			return err
		}
		advice := window.Advise(seen)
		fmt.Println(advice.Verdict, advice.Window, advice.Confidence)
		for _, reason := range advice.Reasons {
			fmt.Println(reason)
		}
		return nil
	}
	_ = advise
}
