package publisher

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// setupState is the part of a topic that knows whether it was set up.
type setupState struct {
	mu      sync.Mutex
	current *state

	busy chan struct{} // has the flight that sets up
	// What hooks and log were last told of; of the flight that sets up.
	told       Window
	toldLayout Layout
}

// forget makes the next batch set up again, unless another one has done so.
func (s *setupState) forget(st *state) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.current == st {
		s.current = nil
	}
}

// known is the state that was set up, nil if there is none.
func (s *setupState) known() *state {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current
}

// ready sets the topic up if it is not. One flight does it, the others wait.
func (t *topic) ready(ctx context.Context) (*state, error) {
	if st := t.setup.known(); st != nil {
		return st, nil
	}
	select {
	case t.setup.busy <- struct{}{}:
		defer func() { <-t.setup.busy }()
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the set-up of topic %q: %w", t.name, ctx.Err())
	}
	if st := t.setup.known(); st != nil {
		return st, nil
	}
	st, err := t.setUp(ctx)
	if err != nil {
		return nil, fmt.Errorf("set up topic %q: %w", t.name, err)
	}
	t.setup.mu.Lock()
	defer t.setup.mu.Unlock()
	t.setup.current = st
	return st, nil
}

// watchStream is how many times the set-up insists on an untouched stream. After
// that only the layout record is watched, or other producers that keep adding to an
// existing stream would keep it from being set up.
const watchStream = 6

// maxSetUps bounds one try of the set-up; the batch that waits for it has a deadline.
const maxSetUps = 50

// setUp makes stream, settings and layout in one step, where they are not there. Two
// instances that start at once both watch the layout record; the second one's
// transaction fails, and it then finds, and obeys, what the first has made.
func (t *topic) setUp(ctx context.Context) (*state, error) {
	client, layoutKey := t.engine.client, rediskey.LayoutKey(t.name)
	info, err := server.Probe(ctx, client, layoutKey)
	if err != nil {
		return nil, err
	}
	clock, err := server.ReadClock(ctx, client, layoutKey)
	if err != nil && classify(err) != server.Final {
		return nil, fmt.Errorf("ask the server for its time: %w", err)
	}
	if err != nil {
		t.engine.logger.Debug("No server time, ages are by the local clock", watermill.LogFields{"topic": t.name, "error": err.Error()})
	}
	found := &state{server: info, clock: clock}
	cmds, err := t.plan(ctx, single{client}, found)
	if err != nil {
		return nil, err
	}
	if len(cmds) == 0 {
		return t.settled(found)
	}
	for try := 1; try <= maxSetUps; try++ {
		keys := []string{layoutKey, t.name}
		if try > watchStream {
			keys = keys[:1]
		}
		st := &state{server: info, clock: clock}
		err := watch(ctx, client, func(tx *redis.Tx) error { return t.setUpOnce(ctx, tx, st) }, keys...)
		if errors.Is(err, redis.TxFailedErr) {
			if !t.engine.sleep(time.Duration(rand.Int64N(int64(5 * time.Millisecond)))) {
				return nil, ErrClosed
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		return t.settled(st)
	}
	return nil, errContended
}

// settled completes the state of a topic that is set up, and tells of it.
func (t *topic) settled(st *state) (*state, error) {
	if err := st.layout.check(); err != nil {
		return nil, err
	}
	st.producerID = t.engine.cfg.ProducerID
	for shard := range st.layout.Shards {
		st.shardIDs = append(st.shardIDs, shardID(st.producerID, shard))
	}
	t.tellLayout(st.layout)
	t.tellWindow(st)
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
func (t *topic) setUpOnce(ctx context.Context, tx *redis.Tx, st *state) error {
	cmds, err := t.plan(ctx, tx, st)
	if err != nil || len(cmds) == 0 {
		return err
	}
	_, err = tx.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	if err := server.FirstError(err, cmds); err != nil {
		return err
	}
	return unanswered(cmds...)
}

// plan reads what is there into st and returns the commands that complete it, none if
// nothing is missing. The stream gets the window of the layout record, whoever sets it up;
// but existing settings of a stream that tracks ids stay, since another value would make
// the server forget those ids.
func (t *topic) plan(ctx context.Context, p server.Processor, st *state) ([]redis.Cmder, error) {
	layoutKey := rediskey.LayoutKey(t.name)
	record := redis.NewMapStringStringCmd(ctx, "hgetall", layoutKey)
	err := p.Process(ctx, record)
	if err == nil {
		err = unanswered(record)
	}
	if err != nil {
		return nil, err
	}
	layout, err := parseLayout(record.Val())
	if err != nil {
		return nil, err
	}
	missing := layout.Mode == Auto
	if missing {
		layout = t.wanted(st.server)
	}
	if err := t.usable(layout, st.server); err != nil {
		return nil, err
	}
	st.layout = layout

	stream, exists, err := server.ReadStreamInfo(ctx, p, t.name)
	if err != nil {
		return nil, err
	}
	st.duration, st.maxSize = stream.IDMPDuration, stream.IDMPMaxSize
	t.saw(stream.Last)
	var cmds []redis.Cmder
	if !exists {
		// An empty stream without a dummy entry: a group made and destroyed.
		const group = "idempotent-setup"
		cmds = append(cmds,
			server.NewCommand(ctx, 2, "xgroup", "create", t.name, group, "$", "mkstream"),
			server.NewCommand(ctx, 2, "xgroup", "destroy", t.name, group))
		if !missing {
			// The stream was deleted: its latches are void, see latch.lua.
			cmds = append(cmds, server.NewCommand(ctx, 1, "hincrby", layoutKey, "generation", 1))
		}
	}
	duration := int64(layout.Duration / time.Second)
	if layout.Mode != Latch && st.remembersNone(stream) && (stream.IDMPDuration != duration || stream.IDMPMaxSize != maxShardEntries) {
		cmds = append(cmds, t.configure(ctx, layout))
		st.duration, st.maxSize = duration, maxShardEntries
	}
	st.window = effectiveWindow(layout, st.duration, st.maxSize, t.cfg.Window)
	if len(cmds) == 0 && !missing {
		return nil, nil
	}
	// The record is written even where it is there: that makes a set-up that
	// goes on at the same time start over.
	return append(cmds, server.NewCommand(ctx, 1, append([]any{"hset", layoutKey}, layout.fields()...)...)), nil
}

// configure sets the window of the layout record.
func (t *topic) configure(ctx context.Context, l Layout) server.Command {
	return server.NewCommand(ctx, 1, "xcfgset", t.name, "idmp-duration", int64(l.Duration/time.Second), "idmp-maxsize", maxShardEntries)
}

func queue(ctx context.Context, pipe redis.Pipeliner, cmds []redis.Cmder) error {
	for _, cmd := range cmds {
		if err := pipe.Process(ctx, cmd); err != nil {
			return err
		}
	}
	return nil
}
