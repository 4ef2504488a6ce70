package publisher

import (
	"context"
	"crypto/sha1"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

//go:embed latch.lua
var latchScript string

var latchSHA = func() string {
	sum := sha1.Sum([]byte(latchScript))
	return hex.EncodeToString(sum[:])
}()

// execLatch runs the script once an item, in one transaction: its keys are in one
// slot, so that a slot on the move refuses or redirects all of it, and order holds.
func (t *topic) execLatch(ctx context.Context, st *state, items []*item) ([]outcome, error) {
	cmds := make([]redis.Cmder, len(items))
	replies := make([]server.Command, len(items))
	for i, it := range items {
		replies[i] = t.latchCommand(ctx, st, it, i == 0)
		cmds[i] = replies[i]
	}
	confirmed, err := t.transact(ctx, cmds)
	if err != nil && !slices.ContainsFunc(replies, func(r server.Command) bool { return r.Err() == nil }) {
		markLost(items, nil, err)
		return nil, t.scriptError(err)
	}

	outcomes := make([]outcome, len(items))
	var duplicates []int
	for i, reply := range replies {
		o := &outcomes[i]
		if replyErr := reply.Err(); replyErr != nil {
			if classify(replyErr) == server.Final {
				*o = outcome{known: true, err: t.explain(t.scriptError(replyErr))}
			}
			continue
		}
		if reply.Val() == nil {
			continue // see unanswered
		}
		readBack, replyErr := t.readLatch(st, items[i], o, reply)
		switch {
		case errors.Is(replyErr, errStale):
			err = errStale
		case replyErr != nil:
			*o = outcome{known: true, err: replyErr}
		case readBack:
			duplicates = append(duplicates, i)
		}
	}
	return t.conclude(ctx, items, outcomes, duplicates, confirmed, err)
}

// readLatch reads the script's reply. readBack tells that the original must be
// looked at: for a conflict, or since it may be the item's own first try.
func (t *topic) readLatch(st *state, it *item, o *outcome, reply server.Command) (readBack bool, err error) {
	list, err := reply.StringSlice()
	if err != nil {
		return false, final(fmt.Errorf("latch script: %w", err))
	}
	switch {
	case len(list) == 1 && list[0] == "stale":
		return false, errStale
	case len(list) == 1 && list[0] == "foreign":
		return false, fmt.Errorf("%w: %s", ErrLatchUnconfirmed, rediskey.LatchKey(t.name, it.shardID, it.receipt.IdempotentID))
	case len(list) == 2 && list[0] == "added":
		o.entryID = list[1]
		id, err := server.ParseID(list[1])
		t.saw(id)
		st.added(it, o)
		return false, err
	case len(list) == 4 && list[0] == "duplicate":
	default:
		return false, final(fmt.Errorf("latch script: unexpected reply %q", list))
	}
	id, err := server.ParseID(list[1])
	if err != nil {
		return false, final(err)
	}
	*o = outcome{verdict: Duplicate, entryID: list[1], age: st.age(id)}
	same, gone := list[2] == string(latchPrint(it)), list[3] == "1"
	switch {
	case gone:
		o.known, o.verdict = true, OriginalGone
		if !same { // the latch still knows the fingerprint
			t.conflict(it, o, nil)
		}
		return false, nil
	case same && !it.lost:
		o.known = true
		return false, nil
	}
	return true, nil
}

func (t *topic) latchCommand(ctx context.Context, st *state, it *item, first bool) server.Command {
	// The body goes first, and loads the script for those behind it: a server that
	// does not know it can't refuse one in the middle.
	args := make([]any, 0, 20+len(it.fields))
	if first {
		args = append(args, "eval", latchScript)
	} else {
		args = append(args, "evalsha", latchSHA)
	}
	args = append(args, 3, t.name, rediskey.LatchKey(t.name, it.shardID, it.receipt.IdempotentID), rediskey.LayoutKey(t.name),
		t.cfg.Window.Duration.Milliseconds(), latchPrint(it))
	args = t.appendTrim(args, st, it)
	args = append(args, "*")
	return server.NewCommand(ctx, 3, it.appendFields(args)...)
}

// latchPrint bounds what a user's fingerprint may put into every latch.
func latchPrint(it *item) []byte {
	print := it.fingerprint()
	if len(print) > 2*sha256.Size {
		sum := sha256.Sum256(print)
		print = sum[:]
	}
	return print
}

// scriptError explains a server that does not run scripts.
func (t *topic) scriptError(err error) error {
	switch {
	case server.IsRefusedByACL(err) || redis.HasErrorPrefix(err, "unknown command"):
		return fmt.Errorf("%w: mode latch runs a script on topic %q; the user needs +eval +evalsha, XADD, XLEN, XINFO, XRANGE, XDEL, GET, SET, EXISTS, HMGET and HINCRBY, "+
			"and the key patterns of the topic and of %s: %w", ErrModeUnsupported, t.name, sideKeys(t.name), err)
	case server.IsUnknownSyntax(err) && t.engine.cfg.KeepUnacked:
		return fmt.Errorf("%w: KeepUnacked needs Redis 8.2 or newer: %w", ErrModeUnsupported, err)
	}
	return fmt.Errorf("latch script: %w", err)
}
