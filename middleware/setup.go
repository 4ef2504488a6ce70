package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// setUpFault says what is wrong with the service, not with the message.
func (r *run) setUpFault() error {
	if r.once.settle.isClosed() {
		return fmt.Errorf("handler %s: %w: close the Router first, then the Once", r.key.Handler, ErrClosed)
	}
	var faults []error
	if r.key.Namespace == "" {
		faults = append(faults, fmt.Errorf("%w: set Config.Namespace to the name of the service, the same in all instances; "+
			"it can be left out only where a subscriber of this library reads for a consumer group", ErrNoNamespace))
	}
	if _, isOwn := r.once.cfg.Store.(*dedupe.Memory); r.info.FanOut && !isOwn && !r.once.cfg.ShareAcrossFanOut {
		faults = append(faults, fmt.Errorf("%w: of all instances only one would handle an event, and the others skip it; "+
			"give each instance a store of its own (dedupe.NewMemory), or read by a consumer group; "+
			"if one instance of all is what you want, set Config.ShareAcrossFanOut", ErrSharedFanOut))
	}
	return errors.Join(faults...)
}

// notSetUp lets the message wait: it is fine, and must not be acknowledged, poisoned or
// counted for a fault of the service.
func (r *run) notSetUp(err error) ([]*message.Message, error) {
	text := "No event is handled, and messages are given back, until the set-up of the service is mended"
	if errors.Is(err, ErrClosed) {
		text = "Messages that come after Close are not handled but given back"
	}
	r.once.faults.note("set-up of handler "+r.key.Handler, text, err, r.fields())
	return r.later(r.once.cfg.Delay, err)
}

// suspectRetention looks at the age of an entry whose handler is about to run: if it is
// above the Retention, a record of an earlier run would have run out.
func (r *run) suspectRetention() {
	if r.info.AddedAt.IsZero() {
		return
	}
	age := time.Since(r.info.AddedAt)
	if age <= r.once.cfg.Retention || !r.once.log.due("retention", r.key.Topic, r.key.Handler) {
		return
	}
	r.once.logger.Error("An entry is older than Config.Retention: if its event was handled before, the record of that may have run out, and the handler now runs again",
		fmt.Errorf("entry %s was added %v ago, Retention is %v: make Retention longer than the oldest entry that can come again, or trim the stream earlier",
			r.info.EntryID, age.Round(time.Second), r.once.cfg.Retention),
		r.fields().Add(watermill.LogFields{"redelivered": r.info.Redelivered}))
}
