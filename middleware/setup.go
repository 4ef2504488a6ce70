package middleware

import (
	"errors"
	"fmt"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/dedupe"
)

// setUpFault says what is wrong with the service, not with the message.
func (o *Once) setUpFault(in *received) error {
	if o.settle.isClosed() {
		return fmt.Errorf("handler %s: %w: close the Router first, then the Once", in.key.Handler, ErrClosed)
	}
	var faults []error
	if in.key.Namespace == "" {
		faults = append(faults, fmt.Errorf("%w: set Config.Namespace to the name of the service, the same in all instances; "+
			"it can be left out only where a subscriber of this library reads for a consumer group", ErrNoNamespace))
	}
	if _, isOwn := dedupe.Unwrap(o.cfg.Store).(*dedupe.Memory); in.info.FanOut && !isOwn && !o.cfg.ShareAcrossFanOut {
		faults = append(faults, fmt.Errorf("%w: of all instances only one would handle an event, and the others skip it; "+
			"give each instance a store of its own (dedupe.NewMemory), or read by a consumer group; "+
			"if one instance of all is what you want, set Config.ShareAcrossFanOut", ErrSharedFanOut))
	}
	return errors.Join(faults...)
}

// suspectRetention looks at the age of an entry whose handler is about to run: if it is
// above the Retention, a record of an earlier run would have run out.
func (o *Once) suspectRetention(in *received) {
	if in.info.AddedAt.IsZero() {
		return
	}
	age := time.Since(in.info.AddedAt)
	if age <= o.cfg.Retention || !o.log.due("retention", in.key.Topic, in.key.Handler) {
		return
	}
	o.logger.Error("An entry is older than Config.Retention: if its event was handled before, the record of that may have run out, and the handler now runs again",
		fmt.Errorf("entry %s was added %v ago, Retention is %v: make Retention longer than the oldest entry that can come again, or trim the stream earlier",
			in.info.EntryID, age.Round(time.Second), o.cfg.Retention),
		in.fields().Add(watermill.LogFields{"redelivered": in.info.Redelivered}))
}
