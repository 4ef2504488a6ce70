package publisher

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// exec sends items in one transaction and finds out what became of each. On an
// error the outcomes may be incomplete.
func (t *topic) exec(ctx context.Context, st *state, items []*item) ([]outcome, error) {
	if err := st.layout.check(); err != nil {
		return nil, err // whoever made it: under no layout would retries be recognised
	}
	if st.layout.Mode == Latch {
		return t.execLatch(ctx, st, items)
	}
	return t.execIDMP(ctx, st, items)
}

// transact sends cmds as MULTI … EXEC to the master of the topic. The first command
// must be a server.Command, so that go-redis sends the whole only once. confirmed is
// the word of WAIT, where replicas are asked for. The error is that of the first
// command that has one; redis.Nil is none.
func (t *topic) transact(ctx context.Context, cmds []redis.Cmder) (confirmed, err error) {
	if t.engine.cfg.MinReplicas > 0 {
		return t.transactAndWait(ctx, cmds)
	}
	_, err = t.engine.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
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

// markLost notes which items may be in the stream without our knowing: from then
// on a duplicate may be their own first try.
func markLost(items []*item, outcomes []outcome, err error) {
	if err == nil || classify(err) != server.Ambiguous {
		return
	}
	for i, it := range items {
		if outcomes == nil || outcomes[i].entryID == "" && !outcomes[i].known {
			it.lost = true
		}
	}
}

// connector is a client that can hold on to one connection.
type connector interface{ Conn() *redis.Conn }

// transactAndWait adds WAIT, which counts only what its own connection has written:
// so both go through one, and a transaction of nothing but duplicates, which writes
// nothing, writes the layout record again. WAIT is not part of MULTI, where it
// would not wait.
func (t *topic) transactAndWait(ctx context.Context, cmds []redis.Cmder) (confirmed, err error) {
	cfg := &t.engine.cfg
	layoutKey := rediskey.LayoutKey(t.name)
	node, err := server.Node(ctx, t.engine.client, t.name)
	if err != nil {
		return nil, err
	}
	client, ok := node.(connector)
	if !ok {
		return nil, fmt.Errorf("%w: MinReplicas needs a client with a method Conn, %T has none", ErrModeUnsupported, node)
	}
	conn := client.Conn()
	defer func() { _ = conn.Close() }()
	touch := server.NewCommand(ctx, 1, "hset", layoutKey, "hash", hashVersion)
	_, err = conn.TxPipelined(ctx, func(pipe redis.Pipeliner) error {
		if err := queue(ctx, pipe, cmds); err != nil {
			return err
		}
		return pipe.Process(ctx, touch)
	})
	all := append(cmds[:len(cmds):len(cmds)], touch)
	err = firstError(err, all)
	if !slices.ContainsFunc(all, func(cmd redis.Cmder) bool { return cmd.Err() == nil }) {
		if cluster, ok := t.engine.client.(*redis.ClusterClient); ok && isRedirect(err) {
			cluster.ReloadState(ctx) // the connection is to one node and does not follow
		}
		return nil, err
	}
	// Some of it was done, and that must be confirmed whatever happened to the rest.
	replicas, waitErr := conn.Wait(ctx, cfg.MinReplicas, cfg.ReplicaTimeout).Result()
	switch {
	case waitErr != nil:
		confirmed = fmt.Errorf("%w: WAIT: %w", ErrNotReplicated, waitErr)
	case replicas < int64(cfg.MinReplicas):
		confirmed = fmt.Errorf("%w: %d of %d within %v", ErrNotReplicated, replicas, cfg.MinReplicas, cfg.ReplicaTimeout)
	case touch.Err() != nil:
		confirmed = fmt.Errorf("%w: nothing was written that WAIT could wait for: %w", ErrNotReplicated, touch.Err())
	}
	return confirmed, err
}

func isRedirect(err error) bool {
	_, moved := redis.IsMovedError(err)
	_, ask := redis.IsAskError(err)
	return moved || ask
}

func isWrongType(err error) bool { return redis.HasErrorPrefix(err, "WRONGTYPE") }

// appendTrim adds XADD's trimming clause.
func (t *topic) appendTrim(args []any, st *state, it *item) []any {
	if it.trim != nil {
		return append(args, it.trim...)
	}
	if t.maxlen <= 0 && t.cfg.MaxAge <= 0 {
		return args
	}
	if t.engine.cfg.KeepUnacked {
		args = append(args, "acked")
	}
	if t.maxlen > 0 {
		return append(args, "maxlen", "~", t.maxlen)
	}
	// A server whose clock was set back goes on from the newest ID, and so must what
	// counts as old: else each entry would be older than MaxAge as soon as it is added.
	now := min(st.clock.Now().UnixMilli(), int64(t.newest.Load()))
	return append(args, "minid", "~", max(0, now-t.cfg.MaxAge.Milliseconds()))
}

// saw takes in the ID of an entry.
func (t *topic) saw(id server.ID) {
	for known := t.newest.Load(); id.MS > known; known = t.newest.Load() {
		if t.newest.CompareAndSwap(known, id.MS) {
			return
		}
	}
}

// added is the outcome of an item that this try has added.
func (s *state) added(it *item, o *outcome) {
	o.known, o.verdict = true, Added
	// It was sent in time, but on its way it may have waited until the server had
	// forgotten the first try.
	if it.lost && time.Since(it.sent1) > s.window.Duration {
		o.err = fmt.Errorf("%w: %w", ErrOutcomeUnknown, errAddedLate)
	}
}

// conclude completes the outcomes that the replies of a transaction gave: items
// without a reply, the originals of duplicates, and the word of WAIT. err is that
// of the transaction.
func (t *topic) conclude(ctx context.Context, items []*item, outcomes []outcome, duplicates []int, confirmed, err error) ([]outcome, error) {
	markLost(items, outcomes, err)
	if len(duplicates) > 0 {
		added := make(map[string]*item)
		for i := range outcomes {
			if o := &outcomes[i]; o.known && o.verdict == Added {
				added[o.entryID] = items[i]
			}
		}
		if readErr := t.compare(ctx, items, outcomes, duplicates, added); readErr != nil {
			return outcomes, readErr
		}
	}
	for i := range outcomes {
		switch o := &outcomes[i]; {
		case !o.known:
			return outcomes, err // some replies are missing, so there is one
		case o.err == nil:
			o.err = confirmed
		case confirmed != nil && o.verdict == Added: // added late, and not replicated either
			o.err = fmt.Errorf("%w: %w", o.err, confirmed)
		}
	}
	return outcomes, nil
}
