package publisher

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/slot"
)

// missingRights names the commands that publishing uses and the user may not run.
// Most of them would write: they are queued in a transaction, where the server
// checks rights, and the connection is closed without EXEC, which nothing survives.
// It is a connection of its own, so that no half transaction gets into the pool. ok
// is false where the client is of a kind that can't be asked for one.
func (t *topic) missingRights(ctx context.Context, mode Mode) (missing []string, ok bool, err error) {
	node, err := server.Node(ctx, t.engine.client, t.name)
	if err != nil {
		return nil, false, err
	}
	client, ok := node.(*redis.Client)
	if !ok {
		return nil, false, nil
	}
	opts := *client.Options()
	opts.PoolSize, opts.MinIdleConns, opts.MaxRetries = 1, 0, -1
	alone := redis.NewClient(&opts)
	defer func() { _ = alone.Close() }()
	conn := alone.Conn()
	defer func() { _ = conn.Close() }()

	ask := func(commands ...[]any) error {
		cmds := make([]redis.Cmder, len(commands))
		for i, args := range commands {
			cmds[i] = server.NewCommand(ctx, 0, args...)
		}
		_, err := conn.Pipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
		for _, cmd := range cmds {
			// For EXEC the refusal is wrapped into that of the transaction.
			if server.IsRefusedByACL(cmd.Err()) || redis.IsExecAbortError(cmd.Err()) {
				missing = append(missing, strings.ToUpper(cmd.FullName()))
			}
		}
		if err != nil && server.Classify(err) != server.Final {
			return fmt.Errorf("ask for rights: %w", err)
		}
		return nil
	}
	// Outside of a transaction these three do nothing but say whether they may.
	if err := ask([]any{"exec"}, []any{"watch", slot.LayoutKey(t.name), t.name}, []any{"unwatch"}); err != nil {
		return nil, true, err
	}
	if err := ask([]any{"multi"}); err != nil {
		return nil, true, err
	}
	if slices.Contains(missing, "MULTI") {
		return missing, true, nil // what follows would be run
	}
	if err := ask(t.usedCommands(mode)...); err != nil {
		return nil, true, err
	}
	return slices.Compact(missing), true, nil
}

// usedCommands are those that publishing in a mode uses, each with the keys that it
// is used with.
func (t *topic) usedCommands(mode Mode) [][]any {
	layoutKey := slot.LayoutKey(t.name)
	commands := [][]any{
		{"xinfo", "stream", t.name},
		{"xgroup", "create", t.name, "g", "$", "mkstream"},
		{"xgroup", "destroy", t.name, "g"},
		{"xrange", t.name, "-", "+"},
		{"hgetall", layoutKey},
		{"hset", layoutKey, "f", "v"},
		{"hincrby", layoutKey, "f", 1},
		{"xadd", t.name, "nomkstream", "*", "f", "v"},
	}
	if t.engine.cfg.MinReplicas > 0 {
		commands = append(commands, []any{"wait", 0, 1})
	}
	if mode != Latch {
		return append(commands, []any{"xcfgset", t.name, "idmp-duration", 1})
	}
	latch := slot.LatchKey(t.name, t.engine.cfg.ProducerID, "check")
	return append(commands, [][]any{
		{"eval", "return 1", 3, t.name, latch, layoutKey},
		{"evalsha", latchSHA, 3, t.name, latch, layoutKey},
		{"hmget", layoutKey, "f"},
		{"exists", t.name},
		{"xlen", t.name},
		{"get", latch},
		{"set", latch, "v"},
		{"xdel", t.name, "0-1"},
	}...)
}
