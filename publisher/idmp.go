package publisher

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// execIDMP sends MULTI; XINFO STREAM; XCFGSET; XADD … IDMP …; EXEC. The replies of
// XADD are the same for a new entry and for a duplicate; but a new entry's ID is above
// the stream's last one before, and above every ID in front of it in the transaction.
//
// XCFGSET with the values in force does nothing. It is there for a stream that
// somebody, a consumer group for example, has made anew since the set-up, with the
// server's default window: the ids of this transaction must not fall under that.
func (t *topic) execIDMP(ctx context.Context, st *state, items []*item) ([]outcome, error) {
	baseline := t.baseline(ctx, items)
	cmds := make([]redis.Cmder, 0, len(items)+2)
	cmds = append(cmds, baseline)
	if st.asLaidOut() {
		cmds = append(cmds, t.configure(ctx, st.layout))
	}
	// One piece of memory for all commands, and one for all arguments.
	adds := make([]redis.StringCmd, len(items))
	size := 0
	for _, it := range items {
		size += 17 + len(it.fields) + len(it.trim)
	}
	all := make([]any, 0, size)
	for i, it := range items {
		start := len(all)
		all = append(all, "xadd", t.key, "nomkstream")
		if st.layout.Mode == IDMPAuto {
			all = append(all, "idmpauto", it.shardID)
		} else {
			all = append(all, "idmp", it.shardID, it.receipt.IdempotentID)
		}
		all = it.appendFields(append(t.appendTrim(all, st, it), "*"))
		adds[i] = *redis.NewStringCmd(ctx, all[start:len(all):len(all)]...)
		adds[i].SetFirstKeyPos(1)
		cmds = append(cmds, &adds[i])
	}
	asked := time.Now()
	confirmed, err := t.transact(ctx, cmds)
	info, baseErr := baseline.Info()
	if baseErr != nil {
		for i := range adds {
			// It was run, and nobody can say whether it was new: should it be sent again,
			// it may be its own first try.
			items[i].lost = items[i].lost || adds[i].Val() != ""
		}
		if server.IsMissingKey(baseErr) {
			return nil, errStale
		}
		if server.IsRefusedByACL(baseErr) && baseline.Name() == "eval" {
			t.noEval.Store(true) // XINFO does as well
			return t.execIDMP(ctx, st, items)
		}
		if err == nil {
			err = baseErr // an error reply inside the transaction, or one that can't be read
			if reply := redis.Error(nil); !errors.As(err, &reply) {
				err = final(err)
			}
		}
		markLost(items, nil, err)
		return nil, t.olderServer(st, err)
	}
	t.observe(st, info, asked)

	last := info.Last
	outcomes := make([]outcome, len(items))
	var duplicates []int
	for i := range adds {
		add, o := &adds[i], &outcomes[i]
		if addErr := add.Err(); addErr != nil {
			if classify(addErr) == server.Final {
				*o = outcome{known: true, err: fmt.Errorf("XADD: %w", t.explain(t.olderServer(st, addErr)))}
			}
			continue
		}
		if add.Val() == "" {
			continue // see unanswered
		}
		id, err := server.ParseID(add.Val())
		if err != nil {
			return nil, final(err)
		}
		o.entryID = add.Val()
		if id.After(last) {
			last = id
			st.added(items[i], o)
			continue
		}
		o.verdict, o.age = Duplicate, st.age(id)
		duplicates = append(duplicates, i)
	}
	t.saw(last)
	return t.conclude(ctx, items, outcomes, duplicates, confirmed, err)
}

// olderServer explains the words of a server that does not know XCFGSET, and takes
// IDMP for an entry ID: another one answers now, as after a failover to a replica that
// was not upgraded. The next set-up finds out what it can do.
func (t *topic) olderServer(st *state, err error) error {
	if !server.IsUnknownSyntax(err) && !redis.HasErrorPrefix(err, "unknown command") {
		return err
	}
	t.setup.forget(st)
	return fmt.Errorf("%w: this server does not know XADD IDMP: %w", ErrModeUnsupported, err)
}

// largeMessage is the size, in bytes, above which XINFO STREAM, which returns the
// first and the last entry, costs more than a script that leaves them out.
const largeMessage = 4 << 10

//go:embed baseline.lua
var baselineScript string

// baseline asks for the stream's last ID, before the entries of the transaction.
func (t *topic) baseline(ctx context.Context, items []*item) server.StreamInfoCommand {
	if !t.large.Load() {
		for _, it := range items {
			if it.size > largeMessage {
				t.large.Store(true)
			}
		}
	}
	if t.large.Load() && !t.noEval.Load() {
		return server.NewStreamInfoScript(ctx, 3, "eval", baselineScript, 1, t.name)
	}
	return server.NewStreamInfoCommand(ctx, t.name)
}
