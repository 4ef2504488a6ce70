package appender

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// transact sends cmds as MULTI … EXEC to the master of the topic. The first command
// must be a server.Command, so that go-redis sends the whole only once. unconfirmed says
// why replicas did not confirm it, where they must. The error is that of the first
// command that has one; redis.Nil is none.
func transact(ctx context.Context, config *Config, topic string, cmds []redis.Cmder) (unconfirmed, err error) {
	if config.MinReplicas > 0 {
		return transactAndWait(ctx, config, topic, cmds)
	}
	_, err = config.Client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	return nil, firstError(err, cmds)
}

func firstError(txErr error, cmds []redis.Cmder) error {
	if err := server.FirstError(txErr, cmds); err != nil && !errors.Is(err, redis.Nil) {
		return err
	}
	return unanswered(cmds...)
}

// unanswered is an error for a command that has no reply, and no error either: that the
// client returned does not say that the server ran it. A hook of the client may have
// swallowed both.
func unanswered(cmds ...redis.Cmder) error {
	for _, cmd := range cmds {
		none := false
		switch c := cmd.(type) {
		case server.Command:
			none = c.Val() == nil
		case server.StreamInfoCommand:
			none = c.Val() == nil
		case rangeCommand:
			none = c.Val() == nil
		case *redis.MapStringStringCmd:
			none = c.Val() == nil
		case *redis.StringCmd:
			none = c.Val() == ""
		}
		if none && cmd.Err() == nil {
			return fmt.Errorf("%s: %w", cmd.FullName(), server.ErrNoReply)
		}
	}
	return nil
}

// connector is a client that can hold on to one connection.
type connector interface{ Conn() *redis.Conn }

// transactAndWait adds WAIT, which counts only what its own connection has written:
// so both go through one, and a transaction of nothing but duplicates, which writes
// nothing, writes the layout record again. WAIT is not part of MULTI, where it
// would not wait.
func transactAndWait(ctx context.Context, config *Config, topic string, cmds []redis.Cmder) (unconfirmed, err error) {
	layoutKey := rediskey.LayoutKey(topic)
	node, err := server.Node(ctx, config.Client, topic)
	if err != nil {
		return nil, err
	}
	client, ok := node.(connector)
	if !ok {
		return nil, fmt.Errorf("%w: MinReplicas needs a client with a method Conn, %T has none", ErrModeUnsupported, node)
	}
	conn := client.Conn()
	defer func() { _ = conn.Close() }()
	touch := server.NewCommand(ctx, 1, "hset", layoutKey, "hash", layout.HashVersion)
	_, err = conn.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		if err := queue(ctx, pipe, cmds); err != nil {
			return err
		}
		return pipe.Process(ctx, touch)
	})
	all := append(cmds[:len(cmds):len(cmds)], touch)
	err = firstError(err, all)
	if !slices.ContainsFunc(all, func(cmd redis.Cmder) bool { return cmd.Err() == nil }) {
		if cluster, ok := config.Client.(*redis.ClusterClient); ok && isRedirect(err) {
			cluster.ReloadState(ctx) // the connection is to one node and does not follow
		}
		return nil, err
	}
	// Some of it was done, and that must be confirmed whatever happened to the rest.
	replicas, waitErr := conn.Wait(ctx, config.MinReplicas, config.ReplicaTimeout).Result()
	switch {
	case waitErr != nil:
		unconfirmed = fmt.Errorf("%w: WAIT: %w", ErrNotReplicated, waitErr)
	case replicas < int64(config.MinReplicas):
		unconfirmed = fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, replicas, config.MinReplicas, config.ReplicaTimeout)
	case touch.Err() != nil:
		unconfirmed = fmt.Errorf("%w: nothing was written that WAIT could wait for: %w", ErrNotReplicated, touch.Err())
	}
	return unconfirmed, err
}

func isRedirect(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask
}

// queue hands commands to a pipeline.
func queue(ctx context.Context, pipe redis.Pipeliner, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if err := pipe.Process(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}
