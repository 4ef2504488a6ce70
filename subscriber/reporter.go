package subscriber

import (
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/hook"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// Names of log fields, one table for the package.
const (
	fieldTopic    = "topic"
	fieldGroup    = "group"
	fieldConsumer = "consumer"
	fieldEntry    = "entry_id"
	fieldCount    = "count"
	fieldReason   = "reason"
	fieldEntries  = "entries"
)

// reporter writes the log of a subscription, calls the hooks, and knows the outages.
type reporter struct {
	logger                 watermill.LoggerAdapter
	hooks                  []Hooks
	topic, group, consumer string
	countsFailures         bool // deliveries have a limit, so failures need no line of their own

	outage      outage
	deadLetters outage // that the server refuses, while reading goes on
}

func newReporter(cfg *Config, logger watermill.LoggerAdapter, topic, consumer string) *reporter {
	r := &reporter{
		logger: logger, hooks: cfg.Hooks, topic: topic, group: cfg.Group, consumer: consumer,
		countsFailures: cfg.MaxDeliveries > 0,
	}
	for _, o := range []*outage{&r.outage, &r.deadLetters} {
		o.report, o.forgetAfter = r.outageChanged, 4*cfg.Heartbeat+10*time.Second
	}
	return r
}

func (r *reporter) fields(more watermill.LogFields) watermill.LogFields {
	fields := watermill.LogFields{fieldTopic: r.topic}
	if r.group != "" {
		fields[fieldGroup], fields[fieldConsumer] = r.group, r.consumer
	}
	return fields.Add(more)
}

func (r *reporter) info(msg string, more watermill.LogFields) { r.logger.Info(msg, r.fields(more)) }

func (r *reporter) debug(msg string, more watermill.LogFields) { r.logger.Debug(msg, r.fields(more)) }

func (r *reporter) error(msg string, err error, more watermill.LogFields) {
	r.logger.Error(msg, err, r.fields(more))
}

func (r *reporter) outageChanged(err error, lasted time.Duration) {
	if err != nil {
		r.error("Redis unavailable or refusing commands; retrying", err, watermill.LogFields{"for": lasted.String()})
	} else {
		r.info("Redis answers again", watermill.LogFields{"after": lasted.String()})
	}
	hook.Call(r.logger, r.hooks, func(h Hooks) func(OutageEvent) { return h.OnOutage },
		OutageEvent{Topic: r.topic, Group: r.group, Err: err, Duration: lasted})
}

// settled reports what became of a delivery.
func (r *reporter) settled(entry string, o ledger.Outcome) {
	if o.Redelivery != nil {
		r.failsOn(entry, o.Redelivery)
	}
	if len(r.hooks) > 0 {
		hook.Call(r.logger, r.hooks, func(h Hooks) func(SettleEvent) { return h.OnSettle }, SettleEvent{
			Topic: r.topic, Group: r.group, EntryID: entry, Settlement: Settlement(o.Settlement), Count: o.Count, Duration: o.Duration,
		})
		if again := o.Redelivery; again != nil {
			hook.Call(r.logger, r.hooks, func(h Hooks) func(RedeliverEvent) { return h.OnRedeliver }, RedeliverEvent{
				Topic: r.topic, Group: r.group, EntryID: entry,
				Count: again.Count, After: again.After, Delayed: again.Delayed, Err: again.Failure,
			})
		}
	}
	if o.Lost {
		r.lostPending(entry)
	}
}

// failsOn logs a message that fails without end: at its 10th, 100th, 1000th delivery.
func (r *reporter) failsOn(entry string, again *ledger.Redelivery) {
	if r.countsFailures || again.Delayed {
		return
	}
	n := again.Count
	for n >= 10 && n%10 == 0 {
		n /= 10
	}
	if n == 1 && again.Count > 1 {
		r.error("A message fails again and again; set MaxDeliveries to make it a dead letter in the end", causeOfFailure(again.Failure),
			watermill.LogFields{fieldEntry: entry, fieldCount: again.Count})
	}
}

// lostPending reports entries that are gone from the stream and were not handled.
func (r *reporter) lostPending(ids ...string) {
	if len(ids) > 0 {
		r.lost(LostPending, ids, int64(len(ids)))
	}
}

func (r *reporter) lost(reason LostReason, ids []string, entries int64) {
	r.error("Entries are gone from the stream that were not handled", errTrimmed,
		watermill.LogFields{fieldReason: reason.String(), fieldEntries: entries})
	hook.Call(r.logger, r.hooks, func(h Hooks) func(LostEvent) { return h.OnLost },
		LostEvent{Topic: r.topic, Group: r.group, Reason: reason, Entries: entries, EntryIDs: ids})
}

// ended reports entries that are no longer held: those that are another's, and the IDs of
// those that are lost.
func (r *reporter) ended(others []ledger.Ended, lost []string) {
	r.ownershipLost(others...)
	r.lostPending(lost...)
}

func (r *reporter) ownershipLost(others ...ledger.Ended) {
	var inFlight, refused int
	for _, e := range others {
		if e.Refused {
			refused++
		} else if e.InFlight {
			inFlight++
		}
		hook.Call(r.logger, r.hooks, func(h Hooks) func(OwnershipEvent) { return h.OnOwnershipLost },
			OwnershipEvent{Topic: r.topic, Group: r.group, EntryID: e.Name, InFlight: e.InFlight, Refused: e.Refused})
	}
	if inFlight+refused > 0 {
		r.error("Ownership of entries was lost while they were handled; another consumer may handle them, too", ErrOwnershipLost,
			watermill.LogFields{fieldEntry: others[0].Name, fieldEntries: len(others), "acknowledgements_refused": refused})
	}
}

// takenOver reports entries that came from other consumers.
func (r *reporter) takenOver(handedBack, dead int) {
	if handedBack > 0 {
		r.info("Took over entries that other consumers had handed back", watermill.LogFields{fieldEntries: handedBack})
	}
	if dead > 0 {
		r.error("Took over entries of dead consumers; they are handed out again", errSilent, watermill.LogFields{fieldEntries: dead})
	}
	hook.Call(r.logger, r.hooks, func(h Hooks) func(TakeoverEvent) { return h.OnTakeover },
		TakeoverEvent{Topic: r.topic, Group: r.group, HandedBack: handedBack, Dead: dead})
}

// deadLetter reports an entry that became a dead letter, or was dropped with FanOut.
func (r *reporter) deadLetter(ev DeadLetterEvent) {
	fields := watermill.LogFields{fieldEntry: ev.EntryID, fieldReason: ev.Reason, fieldCount: ev.Count}
	if ev.DeadLetterTopic == "" {
		r.error("Entry is dropped: with FanOut there are no dead letters", causeOfFailure(ev.Err), fields)
	} else {
		fields["dead_letter_topic"] = ev.DeadLetterTopic
		r.error("Entry became a dead letter", causeOfFailure(ev.Err), fields)
	}
	hook.Call(r.logger, r.hooks, func(h Hooks) func(DeadLetterEvent) { return h.OnDeadLetter }, ev)
}
