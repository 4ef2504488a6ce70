package appender

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// watchStream is how many times the set-up insists on an untouched stream. After
// that only the layout record is watched, or other producers that keep adding to an
// existing stream would keep it from being set up.
const watchStream = 6

// maxSetUps bounds one try of the set-up; the batch that waits for it has a deadline.
const maxSetUps = 50

// setUp makes stream, settings and layout in one step, where they are not there. Two
// instances that start at once both watch the layout record; the second one's
// transaction fails, and it then finds, and obeys, what the first has made.
func (s *Stream) setUp(ctx context.Context) (*Session, error) {
	client, layoutKey := s.config.Client, rediskey.LayoutKey(s.name)
	info, err := server.Probe(ctx, client, layoutKey)
	if err != nil {
		return nil, err
	}
	clock, err := server.ReadClock(ctx, client, layoutKey)
	if err != nil && Classify(err) != batch.Final {
		return nil, fmt.Errorf("ask the server for its time: %w", err)
	}
	if err != nil {
		s.observer.NoClock(err)
	}
	found := &Session{stream: s, server: info, clock: clock}
	cmds, err := found.plan(ctx, single{client})
	if err != nil {
		return nil, err
	}
	if len(cmds) == 0 {
		return s.complete(found)
	}
	for try := 1; try <= maxSetUps; try++ {
		keys := []string{layoutKey, s.name}
		if try > watchStream {
			keys = keys[:1]
		}
		st := &Session{stream: s, server: info, clock: clock}
		err := watch(ctx, client, func(tx *redis.Tx) error { return st.setUpOnce(ctx, tx) }, keys...)
		if errors.Is(err, redis.TxFailedErr) {
			if !wait.For(ctx, nil, time.Duration(rand.Int64N(int64(5*time.Millisecond)))) {
				return nil, errContended
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		return s.complete(st)
	}
	return nil, errContended
}

// complete completes the session of a stream that is set up, and reports it.
func (s *Stream) complete(st *Session) (*Session, error) {
	if err := st.layout.Check(); err != nil {
		return nil, err
	}
	for shard := range st.layout.Shards {
		st.shardIDs = append(st.shardIDs, layout.ShardID(s.config.ProducerID, shard))
	}
	s.report(st)
	return st, nil
}

// watch is Watch, whose nil error means that fn ran. A cluster client follows
// redirections a few times, and its nil may be that of the last look for a node: a slot
// that is half moved, and has none of the keys at its old node, sends WATCH there and
// back again, since go-redis does not say ASKING before it.
func watch(ctx context.Context, client redis.UniversalClient, fn func(*redis.Tx) error, keys ...string) error {
	ran := false
	err := client.Watch(ctx, func(tx *redis.Tx) error {
		ran = true
		return fn(tx)
	}, keys...)
	if err == nil && !ran {
		return errSlotMoves
	}
	return err
}

// single sends each command in a transaction of its own, which goes to the master,
// whatever reads the client sends to replicas, and follows a key whose slot is on the
// move.
type single struct{ client redis.UniversalClient }

// Process implements [server.Processor].
func (s single) Process(ctx context.Context, cmd redis.Cmder) error {
	cmds := []redis.Cmder{cmd}
	_, err := s.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	if err = firstError(err, cmds); err != nil && cmd.Err() == nil {
		cmd.SetErr(err)
	}
	return err
}

// setUpOnce reads what is there and completes it.
func (st *Session) setUpOnce(ctx context.Context, tx *redis.Tx) error {
	cmds, err := st.plan(ctx, tx)
	if err != nil || len(cmds) == 0 {
		return err
	}
	_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	if err := server.FirstError(err, cmds); err != nil {
		return err
	}
	return unanswered(cmds...)
}

// plan reads what is there and returns the commands that complete it, none if nothing is
// missing. The stream gets the window of the layout record, whoever sets it up; but
// existing settings of a stream that tracks ids stay, since another value would make the
// server forget those ids.
func (st *Session) plan(ctx context.Context, p server.Processor) ([]redis.Cmder, error) {
	s := st.stream
	layoutKey := rediskey.LayoutKey(s.name)
	l, err := ReadLayout(ctx, p, s.name)
	if err != nil {
		return nil, err
	}
	missing := l.Mode == Auto
	if missing {
		l = s.Wanted(st.server)
	}
	if err := s.Usable(l, st.server); err != nil {
		return nil, err
	}
	st.layout = l

	stream, exists, err := server.ReadStreamInfo(ctx, p, s.name)
	if err != nil {
		return nil, err
	}
	st.duration, st.maxSize = stream.IDMPDuration, stream.IDMPMaxSize
	s.recordID(stream.Last)
	var cmds []redis.Cmder
	if !exists {
		// An empty stream without a dummy entry: a group made and destroyed.
		const group = "idempotent-setup"
		cmds = append(cmds,
			server.NewCommand(ctx, 2, "xgroup", "create", s.name, group, "$", "mkstream"),
			server.NewCommand(ctx, 2, "xgroup", "destroy", s.name, group))
		if !missing {
			// The stream was deleted: its latches are void, see latch.lua.
			cmds = append(cmds, server.NewCommand(ctx, 1, "hincrby", layoutKey, "generation", 1))
		}
	}
	if l.Mode != Latch && st.remembersNone(stream) && !st.asLaidOut() {
		cmds = append(cmds, configure(ctx, s.name, l))
		st.duration, st.maxSize = seconds(l.Duration), layout.MaxShardEntries
	}
	st.window = layout.EffectiveWindow(l, st.duration, st.maxSize, s.settings.Window)
	if len(cmds) == 0 && !missing {
		return nil, nil
	}
	// The record is written even where it is there: that makes a set-up that
	// goes on at the same time start over.
	return append(cmds, server.NewCommand(ctx, 1, append([]any{"hset", layoutKey}, l.Fields()...)...)), nil
}
