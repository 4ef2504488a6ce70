package appender

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// idmpTransaction is MULTI; XINFO STREAM; XCFGSET; XADD … IDMP …; EXEC. The replies of
// XADD are the same for a new entry and for a duplicate; but a new entry's ID is above
// the stream's last one before, and above every ID in front of it in the transaction.
//
// XCFGSET with the values in force does nothing. It is there for a stream that
// somebody, a consumer group for example, has made anew since the set-up, with the
// server's default window: the ids of this transaction must not fall under that.
type idmpTransaction struct {
	session  *Session
	items    []*batch.Item
	baseline server.StreamInfoCommand
	adds     []redis.StringCmd
	cmds     []redis.Cmder
}

func (st *Session) appendIDMP(ctx context.Context, items []*batch.Item) ([]batch.Outcome, error) {
	s := st.stream
	tx := st.newIDMP(ctx, items)
	asked := time.Now()
	unconfirmed, err := transact(ctx, s.config, s.name, tx.cmds)
	info, baseErr := tx.baseline.Info()
	if baseErr != nil {
		if server.IsRefusedByACL(baseErr) && tx.baseline.Name() == "eval" {
			tx.markRun()
			s.noEval.Store(true) // XINFO does as well
			return st.appendIDMP(ctx, items)
		}
		return nil, tx.withoutBaseline(baseErr, err)
	}
	st.observe(info, asked)
	outcomes, duplicates, replyErr := tx.outcomes(info.Last)
	if replyErr != nil {
		return nil, replyErr
	}
	return st.conclude(ctx, items, outcomes, duplicates, unconfirmed, err)
}

func (st *Session) newIDMP(ctx context.Context, items []*batch.Item) idmpTransaction {
	s := st.stream
	tx := idmpTransaction{session: st, items: items, baseline: s.baseline(ctx, items)}
	tx.cmds = make([]redis.Cmder, 0, len(items)+2)
	tx.cmds = append(tx.cmds, tx.baseline)
	if st.asLaidOut() {
		tx.cmds = append(tx.cmds, configure(ctx, s.name, st.layout))
	}
	// One piece of memory for all commands, and one for all arguments.
	tx.adds = make([]redis.StringCmd, len(items))
	size := 0
	for _, it := range items {
		size += 17 + len(it.Fields) + len(it.Trim)
	}
	all := make([]any, 0, size)
	for i, it := range items {
		start := len(all)
		all = append(all, "xadd", s.key, "nomkstream")
		if st.layout.Mode == IDMPAuto {
			all = append(all, "idmpauto", it.ProducerID)
		} else {
			all = append(all, "idmp", it.ProducerID, it.IdempotentID)
		}
		all = appendFields(append(st.appendTrim(all, it), "*"), it)
		tx.adds[i] = *redis.NewStringCmd(ctx, all[start:len(all):len(all)]...)
		tx.adds[i].SetFirstKeyPos(1)
		tx.cmds = append(tx.cmds, &tx.adds[i])
	}
	return tx
}

// markRun marks what was run where nobody can say whether it was new: should it be sent
// again, it may be its own first try.
func (tx *idmpTransaction) markRun() {
	for i := range tx.adds {
		if tx.adds[i].Val() != "" {
			tx.items[i].MarkMaybeSent()
		}
	}
}

// withoutBaseline is the error of a transaction that did not say the stream's last ID. err
// is what transact returned.
func (tx *idmpTransaction) withoutBaseline(baseErr, err error) error {
	tx.markRun()
	if server.IsMissingKey(baseErr) {
		return errStale
	}
	if err == nil {
		err = baseErr // an error reply inside the transaction, or one that can't be read
		if reply := redis.Error(nil); !errors.As(err, &reply) {
			err = Final(err)
		}
	}
	return tx.session.olderServer(err)
}

// outcomes reads the replies of XADD. duplicates are the indices of items whose originals
// must be looked at.
func (tx *idmpTransaction) outcomes(last streamid.ID) (outcomes []batch.Outcome, duplicates []int, err error) {
	st := tx.session
	outcomes = make([]batch.Outcome, len(tx.items))
	for i := range tx.adds {
		add, o := &tx.adds[i], &outcomes[i]
		if addErr := add.Err(); addErr != nil {
			if Classify(addErr) == batch.Final {
				*o = batch.Outcome{Known: true, Err: fmt.Errorf("XADD: %w", st.stream.Explain(st.olderServer(addErr)))}
			}
			continue
		}
		if add.Val() == "" {
			continue // see unanswered
		}
		id, err := streamid.Parse(add.Val())
		if err != nil {
			return nil, nil, Final(err)
		}
		o.EntryID = add.Val()
		if id.After(last) {
			last = id
			o.Known, o.Verdict = true, batch.Added
			continue
		}
		o.Verdict, o.Age = batch.Duplicate, st.age(id)
		duplicates = append(duplicates, i)
	}
	st.stream.recordID(last)
	return outcomes, duplicates, nil
}

// olderServer explains the words of a server that does not know XCFGSET, and takes
// IDMP for an entry ID: another one answers now, as after a failover to a replica that
// was not upgraded. The next set-up finds out what it can do.
func (st *Session) olderServer(err error) error {
	if !server.IsUnknownSyntax(err) && !redis.HasErrorPrefix(err, "unknown command") {
		return err
	}
	st.stream.forget(st)
	return fmt.Errorf("%w: this server does not know XADD IDMP: %w", ErrModeUnsupported, err)
}

// configure sets the window of the layout record.
func configure(ctx context.Context, topic string, l Layout) server.Command {
	return server.NewCommand(ctx, 1, "xcfgset", topic, "idmp-duration", seconds(l.Duration), "idmp-maxsize", layout.MaxShardEntries)
}

// largeMessage is the size, in bytes, above which XINFO STREAM, which returns the
// first and the last entry, costs more than a script that leaves them out.
const largeMessage = 4 << 10

//go:embed baseline.lua
var baselineScript string

// baseline asks for the stream's last ID, before the entries of the transaction.
func (s *Stream) baseline(ctx context.Context, items []*batch.Item) server.StreamInfoCommand {
	if !s.large.Load() {
		for _, it := range items {
			if it.Size > largeMessage {
				s.large.Store(true)
			}
		}
	}
	if s.large.Load() && !s.noEval.Load() {
		return server.NewStreamInfoScript(ctx, 3, "eval", baselineScript, 1, s.name)
	}
	return server.NewStreamInfoCommand(ctx, s.name)
}
