package server

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"
)

// MissingRights names those of the commands that the user may not run. Most of them
// would write or read something away: they are queued in a transaction, where the
// server checks rights, and the connection is closed without EXEC, which nothing
// survives. It is a connection of its own, so that no half transaction gets into the
// pool. harmless are commands that do nothing outside of a transaction but say whether
// they may, such as WATCH and UNWATCH. asked is false where the client is of a kind
// that can't be asked for a connection.
func MissingRights(ctx context.Context, client redis.UniversalClient, key string, harmless, commands [][]any) (missing []string, asked bool, err error) {
	node, err := Node(ctx, client, key)
	if err != nil {
		return nil, false, err
	}
	single, ok := node.(*redis.Client)
	if !ok {
		return nil, false, nil
	}
	opts := *single.Options()
	opts.PoolSize, opts.MinIdleConns, opts.MaxRetries = 1, 0, -1
	alone := redis.NewClient(&opts)
	defer func() { _ = alone.Close() }()
	conn := alone.Conn()
	defer func() { _ = conn.Close() }()

	ask := func(commands ...[]any) error {
		cmds := make([]redis.Cmder, len(commands))
		for i, args := range commands {
			cmds[i] = NewCommand(ctx, 0, args...)
		}
		_, err := conn.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			for _, cmd := range cmds {
				_ = pipe.Process(ctx, cmd) // only queues
			}
			return nil
		})
		for _, cmd := range cmds {
			// For EXEC the refusal is wrapped into that of the transaction.
			if IsRefusedByACL(cmd.Err()) || redis.IsExecAbortError(cmd.Err()) {
				missing = append(missing, strings.ToUpper(cmd.FullName()))
			}
		}
		if err != nil && Classify(err) != Final {
			return fmt.Errorf("ask for rights: %w", err)
		}
		return nil
	}
	if len(harmless) > 0 {
		if err := ask(harmless...); err != nil {
			return nil, true, err
		}
	}
	if err := ask([]any{"multi"}); err != nil {
		return nil, true, err
	}
	if slices.Contains(missing, "MULTI") {
		return missing, true, nil // what follows would be run
	}
	if err := ask(commands...); err != nil {
		return nil, true, err
	}
	return slices.Compact(missing), true, nil
}
