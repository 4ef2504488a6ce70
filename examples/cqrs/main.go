// Command cqrs is Watermill's CQRS component on this library: a command bus, an event bus and
// an event group over Redis Streams, keys that come from typed commands and events, and each
// handler of an event handled once.
//
//	go run ./examples/cqrs
//
// It starts an embedded server. REDIS_ADDR=localhost:6379 before it takes a real one, where it
// removes its topics at the end.
//
// The customer sends the command twice, as after a time-out; of two handlers of its event one
// fails the first time.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	idempotent "github.com/onceward/watermill-idempotent"
	"github.com/onceward/watermill-idempotent/publisher"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Getenv("REDIS_ADDR"), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, addr string, out io.Writer) (err error) {
	if addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			return fmt.Errorf("start the embedded server: %w", err)
		}
		defer embedded.Close()
		addr = embedded.Addr()
	}
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer func() { _ = client.Close() }()
	id := fmt.Sprintf("%08x", rand.Uint32())
	topics := topics{commands: "cqrs-example-commands-" + id, events: "cqrs-example-events-" + id}
	defer func() { err = errors.Join(err, cleanUp(client, id)) }()

	backend, err := idempotent.Open(ctx, idempotent.Config{
		Client: client, Service: "billing-" + id, // the keys come from the buses
		Retention: time.Hour,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close(context.WithoutCancel(ctx))) }()
	return order(ctx, backend, topics, &journal{out: out})
}

// order has an order placed, and waits until all of it is done.
func order(ctx context.Context, backend *idempotent.PubSub, topics topics, j *journal) error {
	mailed := make(chan struct{})
	s := &shop{
		place: func(_ context.Context, id string) error {
			j.count("placed", "place:  order %s", id)
			return nil
		},
		charge: func(_ context.Context, id string) error {
			j.count("charged", "charge: order %s", id)
			return nil
		},
		mail: func(_ context.Context, id string) error {
			if j.count("mails tried", "mail:   order %s", id) == 1 {
				j.note("mail:   the mail server is busy; the event comes again")
				return errors.New("the mail server is busy")
			}
			j.count("mailed", "mail:   sent")
			close(mailed)
			return nil
		},
	}
	err := s.serve(ctx, backend, topics, func() error {
		for range 2 {
			collecting, receipts := publisher.CollectReceipts(ctx)
			if err := s.commands.Send(collecting, PlaceOrder{OrderID: "1001", Amount: 20}); err != nil {
				return err
			}
			j.note("customer: the command was sent: %s", receipts.All()[0].Verdict)
		}
		select {
		case <-mailed:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	})
	j.sum("placed", "charged", "mails tried", "mailed")
	return err
}

// journal prints what happens, and counts it.
type journal struct {
	mu     sync.Mutex
	out    io.Writer
	counts map[string]int
}

func (j *journal) note(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	fmt.Fprintf(j.out, format+"\n", args...)
}

func (j *journal) count(what, format string, args ...any) int {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.counts == nil {
		j.counts = make(map[string]int)
	}
	j.counts[what]++
	fmt.Fprintf(j.out, format+"\n", args...)
	return j.counts[what]
}

func (j *journal) sum(names ...string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i, name := range names {
		separator := ", "
		if i == len(names)-1 {
			separator = "\n"
		}
		fmt.Fprintf(j.out, "%s %d%s", name, j.counts[name], separator)
	}
}

// cleanUp removes what this run has written: its topics with what belongs to them, and the
// records of its namespace.
func cleanUp(client *redis.Client, id string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	keys := client.Scan(ctx, 0, "*"+id+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := client.Unlink(ctx, keys.Val()).Err(); err != nil {
			return err
		}
	}
	return keys.Err()
}
