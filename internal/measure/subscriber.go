package measure

import (
	"sync/atomic"

	"github.com/onceward/watermill-idempotent/subscriber"
)

// subscriberMetrics are what the subscriber's hooks fill.
type subscriberMetrics struct {
	deliveries    Counters
	duration      Histograms
	redeliveries  Counters
	deadLetters   Counters
	lost          Counters
	ownershipLost Counters
	takenOver     Counters
	isDown        Gauges
	outages       Counters
	downFor       Counters

	groups *sets[groupSeries]
}

// groupSeries are those of one group's reading of one topic.
type groupSeries struct {
	deliveries    []Counter
	duration      Observer
	redeliveries  []Counter
	deadLetters   []Counter
	lost          []Counter
	ownershipLost []Counter
	takenOver     []Counter

	down    atomic.Bool // as the gauge says
	isDown  Gauge
	outages Counter
	downFor Counter
}

// Values of labels, by the index that the code below gives them.
var (
	settlements = []string{
		subscriber.SettlementAcked: "acked", subscriber.SettlementNacked: "nacked", subscriber.SettlementDelayed: "delayed",
		subscriber.SettlementRejected: "rejected", subscriber.SettlementInterrupted: "interrupted",
	}
	redeliveryCauses = []string{"failed", "delayed"}
	lostReasons      = []string{subscriber.LostPending: "pending", subscriber.LostUnread: "unread", subscriber.LostStream: "stream"}
	ownershipCauses  = []string{"taken_or_expired", "ack_refused"}
	takeoverSources  = []string{"handed_back", "dead"}
	// deadReasons are those that the library gives; the reasons of handlers are free text, and
	// count as the last.
	deadReasons = []string{"max_deliveries", "undecodable", "rejected", "conflict", "outputs_too_large", "other"}
)

func deadReasonOf(reason string) int {
	switch reason {
	case subscriber.ReasonMaxDeliveries:
		return 0
	case subscriber.ReasonUndecodable:
		return 1
	case subscriber.ReasonRejected:
		return 2
	case "conflict": // as package middleware says it
		return 3
	case "outputs too large":
		return 4
	}
	return len(deadReasons) - 1
}

func newSubscriberMetrics(cfg Config, b Backend) *subscriberMetrics {
	m := &subscriberMetrics{
		deliveries: b.Counters("deliveries_total", "Messages that handlers were done with, by how that ended.", "topic", "group", "settlement"),
		duration:   b.Histograms("delivery_duration_seconds", "Time from hand-out to settling.", cfg.DurationBuckets, "topic", "group"),
		redeliveries: b.Counters("redeliveries_total", "Entries that wait to be handed out again: their handler failed, or asked for a delay.",
			"topic", "group", "cause"),
		deadLetters:   b.Counters("dead_letters_total", "Entries that became dead letters.", "topic", "group", "reason"),
		lost:          b.Counters("lost_entries_total", "Entries that went from the stream without having been handled.", "topic", "group", "reason"),
		ownershipLost: b.Counters("ownership_lost_total", "Entries that another consumer took, or may have taken, while they were held here.", "topic", "group", "cause"),
		takenOver:     b.Counters("taken_over_entries_total", "Entries that were taken over from other consumers.", "topic", "group", "from"),
		isDown:        b.Gauges("subscriber_down", "1 while Redis is unavailable to a subscription, or refuses its commands.", "topic", "group"),
		outages:       b.Counters("subscriber_outages_total", "Outages that began.", "topic", "group"),
		downFor:       b.Counters("subscriber_outage_seconds_total", "How long outages lasted that are over.", "topic", "group"),
	}
	m.groups = newSets(cfg.MaxTopics, m.create)
	return m
}

func (m *subscriberMetrics) create(p pair) *groupSeries {
	topic, group := p.values()
	return &groupSeries{
		deliveries:    row(m.deliveries, settlements, topic, group),
		duration:      m.duration.With(topic, group),
		redeliveries:  row(m.redeliveries, redeliveryCauses, topic, group),
		deadLetters:   row(m.deadLetters, deadReasons, topic, group),
		lost:          row(m.lost, lostReasons, topic, group),
		ownershipLost: row(m.ownershipLost, ownershipCauses, topic, group),
		takenOver:     row(m.takenOver, takeoverSources, topic, group),
		isDown:        m.isDown.With(topic, group),
		outages:       m.outages.With(topic, group),
		downFor:       m.downFor.With(topic, group),
	}
}

func (m *subscriberMetrics) of(topic, group string) *groupSeries {
	return m.groups.of(pair{topic, group})
}

func (m *subscriberMetrics) hooks() subscriber.Hooks {
	return subscriber.Hooks{
		OnSettle: func(e subscriber.SettleEvent) {
			set := m.of(e.Topic, e.Group)
			set.deliveries[e.Settlement].Inc()
			set.duration.Observe(e.Duration.Seconds())
		},
		OnRedeliver: func(e subscriber.RedeliverEvent) {
			m.of(e.Topic, e.Group).redeliveries[index(e.Delayed)].Inc()
		},
		OnDeadLetter: func(e subscriber.DeadLetterEvent) {
			m.of(e.Topic, e.Group).deadLetters[deadReasonOf(e.Reason)].Inc()
		},
		OnLost: func(e subscriber.LostEvent) {
			m.of(e.Topic, e.Group).lost[e.Reason].Add(float64(max(0, e.Entries)))
		},
		OnOwnershipLost: func(e subscriber.OwnershipEvent) {
			m.of(e.Topic, e.Group).ownershipLost[index(e.Refused)].Inc()
		},
		OnTakeover: func(e subscriber.TakeoverEvent) {
			set := m.of(e.Topic, e.Group)
			set.takenOver[0].Add(float64(max(0, e.HandedBack)))
			set.takenOver[1].Add(float64(max(0, e.Dead)))
		},
		OnOutage: func(e subscriber.OutageEvent) { m.of(e.Topic, e.Group).outage(e) },
	}
}

func index(second bool) int {
	if second {
		return 1
	}
	return 0
}

// outage is called when an outage begins, now and then while it lasts, and when it is over.
func (s *groupSeries) outage(e subscriber.OutageEvent) {
	if e.Err == nil {
		s.down.Store(false)
		s.isDown.Set(0)
		s.downFor.Add(max(0, e.Duration.Seconds()))
		return
	}
	if s.down.CompareAndSwap(false, true) {
		s.outages.Inc()
	}
	s.isDown.Set(1)
}

// DeadReason is the reason of a dead letter, as the label says it.
func DeadReason(reason string) string { return deadReasons[deadReasonOf(reason)] }
