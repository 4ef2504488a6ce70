// Command outbox is a transactional outbox: a service writes orders into its database, each with
// its event in one transaction, and a forwarder publishes the events. The forwarder is killed
// again and again (SIGKILL), some transactions are rolled back, and in the end the stream has one
// entry for each order that was committed, and none for the others.
//
//	go run ./examples/outbox                # SQLite and an embedded Redis, nothing to set up
//	go run ./examples/outbox -kills 50
//	DATABASE_URL=postgres://user@localhost/db REDIS_ADDR=localhost:6379 go run ./examples/outbox
//
// The outbox itself is in examples/internal/sqloutbox: watermill-sql's publisher and subscriber
// and Watermill's forwarder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

const defaultKills = 10

func main() {
	redis.SetLogger(silent{}) // what the client says of connections that are closed at the end
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if task := os.Getenv(forwarderEnv); task != "" {
		err = forward(ctx, task, os.Stdin, os.Stdout)
	} else {
		kills := flag.Int("kills", defaultKills, "how often the forwarder is killed")
		flag.Parse()
		err = run(ctx, place{database: os.Getenv("DATABASE_URL"), redis: os.Getenv("REDIS_ADDR")}, *kills, os.Stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintf(os.Stderr, "outbox: %v\n", err)
		os.Exit(1)
	}
}

type silent struct{}

func (silent) Printf(context.Context, string, ...any) {}

// run writes orders while forwarders are killed, and counts what is there in the end.
func run(ctx context.Context, at place, kills int, out io.Writer) (err error) {
	w, err := at.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	_, _ = fmt.Fprintf(out, "Orders go into %s, with their events; a forwarder publishes these to %s.\n"+
		"One transaction of five is rolled back.\n\n", w.db.name, w.redisName)

	written, err := whileOrdersAreWritten(ctx, w, func(ctx context.Context) error {
		for n := range kills {
			report, err := forwardAndKill(ctx, w)
			if err != nil {
				return err
			}
			w.published.add(report)
			_, _ = fmt.Fprintf(out, "kill %-3d the forwarder had published %2d events, the last one of order %s\n", n+1, report.events, report.last)
		}
		return nil
	})
	if err != nil {
		return err
	}
	report, err := forwardAll(ctx, w)
	if err != nil {
		return err
	}
	w.published.add(report)
	_, _ = fmt.Fprintf(out, "no kill  the last forwarder has published %d events, and the outbox is empty\n\n"+
		"Published: %d. Already in the stream, since a forwarder was killed before it had taken them off the outbox: %d.\n\n",
		report.events, w.published.events, w.published.again)

	found, err := w.count(ctx)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(out, "committed=%d rolled_back=%d kills=%d entries=%d duplicates=%d missing=%d\n",
		written.committed, written.rolledBack, kills, found.entries, found.duplicates, found.missing)
	return found.failure(written)
}
