package appender

import (
	"context"
	"errors"
	"time"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// Session is a stream as it was set up. It does not change.
type Session struct {
	stream *Stream
	layout Layout
	window Window // effective
	// What XINFO said of the window at set-up: another value later means that
	// somebody has made the stream anew.
	duration, maxSize int64
	server            server.Info
	clock             server.Clock
	shardIDs          []string // Config's producer ID on the wire
}

// Window implements [batch.Session].
func (st *Session) Window() time.Duration { return st.window.Duration }

// Address implements [batch.Session].
func (st *Session) Address(it *batch.Item) {
	it.Mode = uint8(st.layout.Mode)
	shard := layout.ShardOf(it.Key, st.layout.Shards)
	if it.Producer == st.stream.config.ProducerID {
		it.ProducerID = st.shardIDs[shard]
	} else {
		it.ProducerID = layout.ShardID(it.Producer, shard)
	}
}

// Append implements [batch.Session].
func (st *Session) Append(ctx context.Context, items []*batch.Item) ([]batch.Outcome, error) {
	if err := st.layout.Check(); err != nil {
		return nil, err // whoever made it: under no layout would retries be recognised
	}
	run := st.appendIDMP
	if st.layout.Mode == Latch {
		run = st.appendLatch
	}
	outcomes, err := run(ctx, items)
	if errors.Is(err, errStale) || server.MayBeAnother(err) {
		st.stream.forget(st)
	}
	return outcomes, st.stream.Explain(err)
}

// conclude completes the outcomes that the replies of a transaction gave: items
// without a reply, the originals of duplicates, and why replicas did not confirm it. err
// is that of the transaction.
func (st *Session) conclude(ctx context.Context, items []*batch.Item, outcomes []batch.Outcome, duplicates []int, unconfirmed, err error) ([]batch.Outcome, error) {
	if err != nil && Classify(err) == batch.Ambiguous {
		for i, it := range items {
			if outcomes[i].EntryID == "" && !outcomes[i].Known {
				it.MarkMaybeSent()
			}
		}
	}
	if len(duplicates) > 0 {
		c := comparison{stream: st.stream, items: items, outcomes: outcomes}
		if readErr := c.run(ctx, duplicates); readErr != nil {
			return outcomes, readErr
		}
	}
	for i := range outcomes {
		o := &outcomes[i]
		if !o.Known {
			return outcomes, err // some replies are missing, so there is one
		}
		if o.Err == nil && !items[i].Conflicts(o) {
			o.Err = unconfirmed
		}
	}
	return outcomes, nil
}

// age is how old an entry is by the server's clock.
func (st *Session) age(id streamid.ID) time.Duration {
	return max(0, st.clock.Now().Sub(time.UnixMilli(int64(id.MS))))
}

// remembersNone reports that a stream tracks no ids, or only such as have expired: the
// server takes those out when it next adds one.
func (st *Session) remembersNone(stream server.StreamInfo) bool {
	return stream.IIDsTracked == 0 || st.age(stream.Last) > time.Duration(stream.IDMPDuration)*time.Second
}

// asLaidOut reports that the stream has the window of the layout record. It may have
// another one that was found with ids, and stays until those have expired.
func (st *Session) asLaidOut() bool {
	return st.duration == seconds(st.layout.Duration) && st.maxSize == layout.MaxShardEntries
}

// observe looks at the stream's counters as they were before a batch that was sent at
// the time asked.
func (st *Session) observe(info server.StreamInfo, asked time.Time) {
	s := st.stream
	if info.IDMPDuration != st.duration || info.IDMPMaxSize != st.maxSize {
		// Somebody has made the stream anew or changed its settings. Set up again, to
		// learn what is in force and to report it.
		s.forget(st)
		return
	}
	now := time.Now()
	evicted := s.overflow.countEvicted(asked, now, st.window.Duration, info)
	if evicted = s.overflow.report(now, evicted, info); evicted > 0 {
		s.observer.Overflowed(st.window, evicted)
	}
}

// appendTrim adds XADD's trimming clause.
func (st *Session) appendTrim(args []any, it *batch.Item) []any {
	s := st.stream
	maxLen, maxAge := s.settings.MaxLen, s.settings.MaxAge
	switch {
	case it.Trim != nil:
		return append(args, it.Trim...)
	case maxLen <= 0 && maxAge <= 0:
		return args
	}
	if s.config.KeepUnacked {
		args = append(args, "acked")
	}
	if maxLen > 0 {
		return append(args, "maxlen", "~", maxLen)
	}
	// A server whose clock was set back goes on from the newest ID, and so must what
	// counts as old: else each entry would be older than MaxAge as soon as it is added.
	now := min(st.clock.Now().UnixMilli(), int64(s.newest.Load()))
	return append(args, "minid", "~", max(0, now-maxAge.Milliseconds()))
}

// appendFields adds names and values of the entry to a command. The values of the
// default format go by pointer, which costs no allocation. (A tracing hook that prints
// arguments shows no payloads, then.)
func appendFields(args []any, it *batch.Item) []any {
	if it.Fields != nil {
		return append(args, it.Fields...)
	}
	return append(args, wire.FieldUUID, &it.UUID, wire.FieldMetadata, &it.Metadata, wire.FieldPayload, &it.Payload)
}
