// Package server knows what the connected server can do and what its errors
// mean: it probes for XADD IDMP, finds the master of a key, sorts errors into
// those that are worth another try and those that are final, and makes commands
// that go-redis does not repeat by itself.
package server

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/redis/go-redis/v9"
)

// ErrNoReply means that a client returned neither a reply nor an error, as a hook can make it. Whether
// the server ran the command is not known.
var ErrNoReply = errors.New("the client returned neither a reply nor an error")

// Command is a command that go-redis sends once. Its own retry hides a lost
// reply: the caller could not distinguish "new" from "added by the first try". One such
// command in a pipeline or transaction makes the whole of it go out once.
type Command struct{ *redis.Cmd }

// NoRetry makes go-redis hand the first error back.
func (Command) NoRetry() bool { return true }

// NewCommand makes a command whose key is args[keyPos]. A cluster client routes
// by that position, which it can't guess for commands such as XINFO STREAM.
func NewCommand(ctx context.Context, keyPos int8, args ...any) Command {
	cmd := redis.NewCmd(ctx, args...)
	cmd.SetFirstKeyPos(keyPos)
	return Command{Cmd: cmd}
}

// Process sends a command. A panic of the client, or of a hook that was added to it, is its
// error: in a goroutine of ours nobody else would recover from it, and it would end the
// process.
func Process(ctx context.Context, client Processor, cmd redis.Cmder) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = panicked(p)
			cmd.SetErr(err)
		}
	}()
	return client.Process(ctx, cmd)
}

// ProcessAll sends commands as one pipeline. Each has an error of its own, or neither that nor
// a reply where a hook of the client has stopped the pipeline. A panic is the error of all.
func ProcessAll(ctx context.Context, client redis.UniversalClient, cmds []redis.Cmder) {
	defer func() {
		if p := recover(); p != nil {
			for _, cmd := range cmds {
				cmd.SetErr(panicked(p))
			}
		}
	}()
	pipe := client.Pipeline()
	for _, cmd := range cmds {
		_ = pipe.Process(ctx, cmd)
	}
	_, _ = pipe.Exec(ctx)
}

func panicked(p any) error { return fmt.Errorf("the client panicked: %v\n%s", p, debug.Stack()) }

// Node returns the client that talks to the master of key: client itself, or
// the master's own client in a cluster. Keyless commands (INFO, TIME) need it,
// since a cluster client sends those to any node.
func Node(ctx context.Context, client redis.UniversalClient, key string) (redis.UniversalClient, error) {
	if cluster, ok := client.(*redis.ClusterClient); ok {
		return cluster.MasterForKey(ctx, key)
	}
	return client, nil
}
