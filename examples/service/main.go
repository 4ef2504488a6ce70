// Command service is a service to start from: orders come in over HTTP and are billed, each
// once, whatever is retried or killed meanwhile.
//
//	go run ./examples/service        # SQLite and an embedded Redis, nothing to set up
//	docker compose -f examples/service/compose.yaml up --build
//
// README.md beside it says what happens to an order, and has the settings.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"
)

// Exit codes.
const (
	exitFailed = 1
	exitConfig = 2
)

func main() {
	// The Redis client has one log for all of the process.
	redis.SetLogger(clientLog{slog.New(slog.NewJSONHandler(os.Stdout, nil))})
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	os.Exit(run(ctx, os.Getenv, os.Stdout, os.Stderr))
}

// clientLog makes lines of ours from what the Redis client has to say.
type clientLog struct{ logger *slog.Logger }

// Printf is called by the client.
func (l clientLog) Printf(ctx context.Context, format string, args ...any) {
	l.logger.WarnContext(ctx, fmt.Sprintf(format, args...), "part", "redis client")
}

// run is main without the process around it.
func run(ctx context.Context, getenv func(string) string, stdout, stderr io.Writer) int {
	cfg, err := readConfig(getenv)
	if err != nil {
		_, _ = fmt.Fprintln(stderr, err)
		return exitConfig
	}
	logger := slog.New(slog.NewJSONHandler(stdout, &slog.HandlerOptions{Level: cfg.logLevel}))
	s, err := open(ctx, cfg, logger)
	if err == nil {
		err = s.run(ctx)
	}
	if err != nil {
		logger.Error("the service has failed", "err", err)
		return exitFailed
	}
	logger.Info("stopped")
	return 0
}
