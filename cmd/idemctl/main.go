// idemctl is the operator's tool of watermill-idempotent: it looks at topics, windows,
// records of handled events and dead letters on a server, and changes what an operator has
// to change. `idemctl --help` says where to begin; README.md shows every command.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/cli"
	"github.com/onceward/watermill-idempotent/cmd/idemctl/internal/screen"
)

func main() { os.Exit(run()) }

func run() int {
	// The first Ctrl-C ends the command, which says what it has done; the second one the process.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return int(cli.Run(ctx, screen.New(), os.Args[1:]))
}
