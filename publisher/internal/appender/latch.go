package appender

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
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

//go:embed latch.lua
var latchScript string

var latchSHA = func() string {
	sum := sha1.Sum([]byte(latchScript))
	return hex.EncodeToString(sum[:])
}()

// appendLatch runs the script once an item, in one transaction: its keys are in one
// slot, so that a slot on the move refuses or redirects all of it, and order holds.
func (st *Session) appendLatch(ctx context.Context, items []*batch.Item) ([]batch.Outcome, error) {
	s := st.stream
	cmds := make([]redis.Cmder, len(items))
	replies := make([]server.Command, len(items))
	for i, it := range items {
		replies[i] = st.latchCommand(ctx, it, i == 0)
		cmds[i] = replies[i]
	}
	unconfirmed, err := transact(ctx, s.config, s.name, cmds)
	if err != nil && !slices.ContainsFunc(replies, func(r server.Command) bool { return r.Err() == nil }) {
		return nil, s.scriptError(err)
	}

	outcomes := make([]batch.Outcome, len(items))
	var duplicates []int
	for i, reply := range replies {
		o := &outcomes[i]
		if replyErr := reply.Err(); replyErr != nil {
			if Classify(replyErr) == batch.Final {
				*o = batch.Outcome{Known: true, Err: s.Explain(s.scriptError(replyErr))}
			}
			continue
		}
		if reply.Val() == nil {
			continue // see unanswered
		}
		readBack, replyErr := st.readLatch(items[i], o, reply)
		switch {
		case errors.Is(replyErr, errStale):
			err = errStale
		case replyErr != nil:
			*o = batch.Outcome{Known: true, Err: replyErr}
		case readBack:
			duplicates = append(duplicates, i)
		}
	}
	return st.conclude(ctx, items, outcomes, duplicates, unconfirmed, err)
}

// readLatch reads the script's reply. readBack means that the original must be
// looked at: for a conflict, or since it may be the item's own first try.
func (st *Session) readLatch(it *batch.Item, o *batch.Outcome, reply server.Command) (readBack bool, err error) {
	s := st.stream
	list, err := reply.StringSlice()
	if err != nil {
		return false, Final(fmt.Errorf("latch script: %w", err))
	}
	switch {
	case len(list) == 1 && list[0] == "stale":
		return false, errStale
	case len(list) == 1 && list[0] == "foreign":
		return false, fmt.Errorf("%w: %s", ErrLatchUnconfirmed, rediskey.LatchKey(s.name, it.ProducerID, it.IdempotentID))
	case len(list) == 2 && list[0] == "added":
		id, err := streamid.Parse(list[1])
		s.recordID(id)
		*o = batch.Outcome{Known: true, Verdict: batch.Added, EntryID: list[1]}
		return false, err
	case len(list) == 4 && list[0] == "duplicate":
	default:
		return false, Final(fmt.Errorf("latch script: unexpected reply %q", list))
	}
	id, err := streamid.Parse(list[1])
	if err != nil {
		return false, Final(err)
	}
	*o = batch.Outcome{Verdict: batch.Duplicate, EntryID: list[1], Age: st.age(id)}
	same, gone := list[2] == string(latchPrint(it)), list[3] == "1"
	switch {
	case gone: // the latch still knows the fingerprint
		o.Known, o.Verdict, o.Differs = true, batch.OriginalGone, !same
		return false, nil
	case same && !it.MaybeSent():
		o.Known = true
		return false, nil
	}
	return true, nil
}

func (st *Session) latchCommand(ctx context.Context, it *batch.Item, first bool) server.Command {
	// The body goes first, and loads the script for those behind it: a server that
	// does not know it can't refuse one in the middle.
	args := make([]any, 0, 20+len(it.Fields))
	if first {
		args = append(args, "eval", latchScript)
	} else {
		args = append(args, "evalsha", latchSHA)
	}
	s := st.stream
	args = append(args, 3, s.name, rediskey.LatchKey(s.name, it.ProducerID, it.IdempotentID), rediskey.LayoutKey(s.name),
		s.settings.Window.Duration.Milliseconds(), latchPrint(it))
	args = st.appendTrim(args, it)
	args = append(args, "*")
	return server.NewCommand(ctx, 3, appendFields(args, it)...)
}

// latchPrint bounds what a user's fingerprint may put into every latch.
func latchPrint(it *batch.Item) []byte {
	print := fingerprint(it)
	if len(print) > 2*sha256.Size {
		sum := sha256.Sum256(print)
		print = sum[:]
	}
	return print
}

// scriptError explains a server that does not run scripts.
func (s *Stream) scriptError(err error) error {
	switch {
	case server.IsRefusedByACL(err) || redis.HasErrorPrefix(err, "unknown command"):
		return fmt.Errorf("%w: mode latch runs a script on topic %q; the user needs +eval +evalsha, XADD, XLEN, XINFO, XRANGE, XDEL, GET, SET, EXISTS, HMGET and HINCRBY, "+
			"and the key patterns of the topic and of %s: %w", ErrModeUnsupported, s.name, sideKeys(s.name), err)
	case server.IsUnknownSyntax(err) && s.config.KeepUnacked:
		return fmt.Errorf("%w: KeepUnacked needs Redis 8.2 or newer: %w", ErrModeUnsupported, err)
	}
	return fmt.Errorf("latch script: %w", err)
}
