package publisher

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

// compare looks at the originals of duplicates: is the original still there, is its
// content the same, and is it perhaps the item's own first try. An original that
// was added in the same transaction is compared in memory, the others are read
// back.
func (t *topic) compare(ctx context.Context, items []*item, outcomes []outcome, duplicates []int, added map[string]*item) error {
	var ids []string
	size := 0
	pending := duplicates[:0:0]
	flush := func() error {
		originals, err := t.originals(ctx, ids)
		if err != nil {
			return fmt.Errorf("read back the originals of duplicates: %w", err)
		}
		for _, i := range pending {
			o := &outcomes[i]
			switch original, ok := originals[o.entryID]; {
			case !ok:
				o.known, o.verdict = true, OriginalGone
			case original.err != nil:
				o.known, o.err = true, final(original.err)
			default:
				t.judge(items[i], o, original.msg, added)
			}
		}
		ids, pending, size = nil, nil, 0
		return nil
	}
	for _, i := range duplicates {
		o := &outcomes[i]
		if original, ok := added[o.entryID]; ok {
			if o.known = true; !bytes.Equal(items[i].fingerprint(), original.fingerprint()) {
				t.conflict(items[i], o, []byte(original.payload))
			}
			continue
		}
		ids = append(ids, o.entryID)
		pending = append(pending, i)
		// The original is likely about as large as the duplicate.
		if size += items[i].size; size > batchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return flush()
}

// judge decides about a duplicate whose original was read back.
func (t *topic) judge(it *item, o *outcome, original *message.Message, added map[string]*item) {
	print, err := identity.Sum(t.cfg.Fingerprint, original)
	if err != nil {
		o.known, o.err = true, final(fmt.Errorf("entry %s, the original: %w", o.entryID, err))
		return
	}
	o.known = true
	switch {
	case !bytes.Equal(it.fingerprint(), print):
		t.conflict(it, o, original.Payload)
	// The entry's UUID tells our own first try, whose reply was lost, from somebody
	// else's. In mode IDMPAuto every try has the same UUID, whoever sent it.
	case it.lost && it.mode != IDMPAuto && original.UUID == it.receipt.MessageUUID && added[o.entryID] == nil && !it.call.hasAdded(o.entryID):
		added[o.entryID] = it
		o.verdict, o.age = Added, 0
	}
}

// conflict is the outcome of an item whose original has other content. Under a
// child key it is no error: a handler that ran again may well produce a different
// message, and the first one was published and stays.
func (t *topic) conflict(it *item, o *outcome, original []byte) {
	o.known = true
	if it.child {
		o.differs = true
		return
	}
	conflict := &ConflictError{Topic: t.name, Key: it.receipt.Key, EntryID: o.entryID, MessageUUID: it.receipt.MessageUUID}
	if original != nil {
		conflict.Field = identity.FirstDifference(t.cfg.Fingerprint, original, []byte(it.payload))
	}
	o.err = conflict
}

// rangeCommand reads one entry, once; see server.Command.
type rangeCommand struct{ *redis.XMessageSliceCmd }

func (rangeCommand) NoRetry() bool { return true }

func newRangeCommand(ctx context.Context, topic, id string) rangeCommand {
	cmd := redis.NewXMessageSliceCmd(ctx, "xrange", topic, id, id)
	cmd.SetFirstKeyPos(1)
	return rangeCommand{cmd}
}

// original is an entry that was read back: a message, or why it is none.
type original struct {
	msg *message.Message
	err error
}

// originals reads entries; those that are gone are not in the map. It does so in a
// transaction, which goes to the master whatever reads the client sends to replicas.
func (t *topic) originals(ctx context.Context, ids []string) (map[string]original, error) {
	cmds := make([]redis.Cmder, 0, len(ids))
	ranges := make(map[string]rangeCommand, len(ids))
	for _, id := range ids {
		if _, ok := ranges[id]; !ok {
			ranges[id] = newRangeCommand(ctx, t.name, id)
			cmds = append(cmds, ranges[id])
		}
	}
	_, err := t.engine.client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	if err := firstError(err, cmds); err != nil {
		return nil, err
	}
	originals := make(map[string]original, len(ids))
	for id, cmd := range ranges {
		for _, entry := range cmd.Val() {
			msg, err := t.engine.decode(t.name, id, entry.Values)
			originals[id] = original{msg, err}
		}
	}
	return originals, nil
}

func (e *engine) decode(topic, id string, values map[string]any) (msg *message.Message, err error) {
	if e.cfg.Marshaller == nil {
		return wire.Decode(topic, id, values)
	}
	defer func() {
		if p := recover(); p != nil {
			msg, err = nil, fmt.Errorf("unmarshal entry %s of %q: %T panicked: %v", id, topic, e.cfg.Marshaller, p)
		}
	}()
	msg, err = e.cfg.Marshaller.(redisstream.Unmarshaller).Unmarshal(values)
	if err != nil {
		return nil, fmt.Errorf("unmarshal entry %s of %q: %w", id, topic, err)
	}
	return msg, nil
}
