package appender

import (
	"bytes"
	"context"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// readBackBytes is about how much of originals is read at once.
const readBackBytes = 4 << 20

// comparison looks at the originals of duplicates: is the original still there, is its
// content the same, and does it look like the item itself. An original that was added in
// the same transaction is compared in memory, the others are read back.
type comparison struct {
	stream   *Stream
	items    []*batch.Item
	outcomes []batch.Outcome
}

func (c *comparison) run(ctx context.Context, duplicates []int) error {
	added := make(map[string]*batch.Item)
	for i := range c.outcomes {
		if o := &c.outcomes[i]; o.Known && o.Verdict == batch.Added {
			added[o.EntryID] = c.items[i]
		}
	}
	var pending []int
	size := 0
	for _, i := range duplicates {
		it, o := c.items[i], &c.outcomes[i]
		if original, ok := added[o.EntryID]; ok {
			if o.Known = true; !bytes.Equal(fingerprint(it), fingerprint(original)) {
				c.differs(i, []byte(original.Payload))
			}
			continue
		}
		pending = append(pending, i)
		// The original is likely about as large as the duplicate.
		if size += it.Size; size > readBackBytes {
			if err := c.readBack(ctx, pending); err != nil {
				return err
			}
			pending, size = pending[:0], 0
		}
	}
	return c.readBack(ctx, pending)
}

// readBack reads the originals of some items and compares them.
func (c *comparison) readBack(ctx context.Context, indices []int) error {
	if len(indices) == 0 {
		return nil
	}
	ids := make([]string, len(indices))
	for n, i := range indices {
		ids[n] = c.outcomes[i].EntryID
	}
	originals, err := c.stream.originals(ctx, ids)
	if err != nil {
		return fmt.Errorf("read back the originals of duplicates: %w", err)
	}
	for _, i := range indices {
		o := &c.outcomes[i]
		o.Known = true
		switch original, ok := originals[o.EntryID]; {
		case !ok:
			o.Verdict = batch.OriginalGone
		case original.err != nil:
			o.Err = Final(original.err)
		default:
			c.judge(i, original.msg)
		}
	}
	return nil
}

// judge compares an item with its original, which was read back.
func (c *comparison) judge(i int, original *message.Message) {
	it, o := c.items[i], &c.outcomes[i]
	print, err := identity.Sum(c.stream.settings.Fingerprint, original)
	switch {
	case err != nil:
		o.Err = Final(fmt.Errorf("entry %s, the original: %w", o.EntryID, err))
	case !bytes.Equal(fingerprint(it), print):
		c.differs(i, original.Payload)
	default:
		// The entry's UUID tells the first try of an item, whose reply was lost, from
		// somebody else's. In mode IDMPAuto every try has the same UUID, whoever sent it.
		o.LooksOwn = Mode(it.Mode) != IDMPAuto && original.UUID == it.MessageUUID
	}
}

// differs notes that an original has other content, and where.
func (c *comparison) differs(i int, original []byte) {
	it, o := c.items[i], &c.outcomes[i]
	if o.Differs = true; it.Conflicts(o) {
		o.Field = identity.FirstDifference(c.stream.settings.Fingerprint, original, []byte(it.Payload))
	}
}

// fingerprint is that of an item. The default one, of the payload, can't fail, and most
// messages are no duplicates: so it is made when it is asked for.
func fingerprint(it *batch.Item) []byte {
	if !it.Printed {
		it.Printed = true
		it.Print, _ = identity.Sum(nil, &message.Message{Payload: []byte(it.Payload)})
	}
	return it.Print
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
func (s *Stream) originals(ctx context.Context, ids []string) (map[string]original, error) {
	cmds := make([]redis.Cmder, 0, len(ids))
	ranges := make(map[string]rangeCommand, len(ids))
	for _, id := range ids {
		if _, ok := ranges[id]; !ok {
			ranges[id] = newRangeCommand(ctx, s.name, id)
			cmds = append(cmds, ranges[id])
		}
	}
	_, err := s.config.Client.TxPipelined(ctx, func(pipe redis.Pipeliner) error { return queue(ctx, pipe, cmds) })
	if err := firstError(err, cmds); err != nil {
		return nil, err
	}
	originals := make(map[string]original, len(ids))
	for id, cmd := range ranges {
		for _, entry := range cmd.Val() {
			msg, err := s.config.Decode(s.name, id, entry.Values)
			originals[id] = original{msg, err}
		}
	}
	return originals, nil
}
