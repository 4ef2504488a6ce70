package publisher

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// outcome is what the server's reply says about one item.
type outcome struct {
	known   bool // false: it must be asked again
	verdict Verdict
	entryID string
	age     time.Duration
	differs bool // a child key whose original has other content
	err     error
}

// describe fills in how an item was sent.
func describe(r *Receipt, it *item) {
	r.ProducerID, r.Mode, r.Attempts = it.shardID, it.mode, it.attempts
}

// report turns an outcome into the receipt, and tells the log.
func (t *topic) report(r *Receipt, it *item, o outcome) {
	describe(r, it)
	r.Verdict, r.EntryID, r.Age, r.Err = o.verdict, o.entryID, o.age, o.err
	r.Resent = it.lost
	if o.differs {
		t.engine.onChildDiffers(*r)
	}
	// What was added needs no line, and what the caller gets as an error neither.
	if r.Verdict == OriginalGone && r.Err == nil {
		t.engine.logger.Info("Not added: the key was used before, and its entry is gone", logFields(r))
	} else if r.Verdict == Duplicate && r.Err == nil {
		t.engine.logger.Debug("Not added: duplicate", logFields(r))
	}
}

func logFields(r *Receipt) watermill.LogFields {
	return watermill.LogFields{
		"topic": r.Topic, "message_uuid": r.MessageUUID, "key": r.Key, "producer_id": r.ProducerID,
		"entry_id": r.EntryID, "age": r.Age.String(), "mode": r.Mode.String(),
	}
}

// age is how old an entry is by the server's clock.
func (s *state) age(id server.ID) time.Duration {
	return max(0, s.clock.Now().Sub(time.UnixMilli(int64(id.MS))))
}
