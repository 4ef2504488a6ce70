// Package demo runs the two versions of the app: it adds three orders, one of which
// can't be charged, and prints what comes of them.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Run is the app.
type Run func(ctx context.Context, client redis.UniversalClient, logger watermill.LoggerAdapter) error

// Main runs an app on the server at REDIS_ADDR, or on an embedded one.
func Main(run Run) {
	if err := demo(run, os.Getenv("REDIS_ADDR"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func demo(run Run, addr string, out io.Writer) error {
	if addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("start the embedded server: %w", err)
		}
		defer embedded.Close()
		addr = embedded.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	for _, payload := range []string{`{"order_id":1,"amount":100}`, `{"order_id":2,"amount":0}`, `{"order_id":3,"amount":300}`} {
		if err := add(ctx, client, "orders", payload); err != nil {
			return err
		}
	}
	// The app gets a client of its own: watermill-redisstream closes it.
	appCtx, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		own := redis.NewClient(&redis.Options{Addr: addr})
		err := run(appCtx, own, watermill.NopLogger{})
		_ = own.Close() // the app may have done it
		done <- err
	}()
	charges, err := await(ctx, client, "charges", 2)
	if err != nil {
		stop()
		return errors.Join(err, <-done)
	}
	poisoned, err := await(ctx, client, "orders.poison", 1)
	stop()
	if err := errors.Join(err, <-done); err != nil {
		return err
	}
	for _, payload := range charges {
		fmt.Fprintln(out, "charged ", payload)
	}
	for _, payload := range poisoned {
		fmt.Fprintln(out, "poisoned", payload)
	}
	return nil
}

// add publishes an order as another service would.
func add(ctx context.Context, client redis.UniversalClient, topic, payload string) error {
	values, err := redisstream.DefaultMarshallerUnmarshaller{}.Marshal(topic, message.NewMessage(watermill.NewUUID(), []byte(payload)))
	if err != nil {
		return err
	}
	return client.XAdd(ctx, &redis.XAddArgs{Stream: topic, Values: values}).Err()
}

// await waits until a stream has n entries, and returns their payloads.
func await(ctx context.Context, client redis.UniversalClient, topic string, n int) ([]string, error) {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		entries, err := client.XRange(ctx, topic, "-", "+").Result()
		if err != nil {
			return nil, err
		}
		if len(entries) >= n {
			payloads := make([]string, len(entries))
			for i, e := range entries {
				payloads[i], _ = e.Values["payload"].(string)
			}
			return payloads, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%s has %d entries, want %d: %w", topic, len(entries), n, ctx.Err())
		case <-tick.C:
		}
	}
}
