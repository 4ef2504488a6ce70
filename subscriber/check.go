package subscriber

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
)

// Report is what [Subscriber.Check] found. It writes nothing.
type Report struct {
	// Server is product and version, "redis 8.6.3".
	Server string
	// Topics has one report for each topic asked for.
	Topics []TopicReport
	// Connections is how many the client's pool should have for a subscription to each
	// of these topics.
	Connections int
	// Warnings are complete sentences about what an operator should look at.
	Warnings []string
}

// TopicReport is what Check found about one topic.
type TopicReport struct {
	Topic string
	// Exists tells whether the stream does, HasGroup whether the group does. Subscribe
	// makes both.
	Exists, HasGroup bool
	// Pending is how many entries consumers hold, HandedBack how many of those wait for
	// anybody to take them; Lag how many the group has not read yet, -1 where the server
	// does not know.
	Pending, HandedBack, Lag int64
	// OldestPending is the age of the oldest pending entry, by its ID. The server's idle
	// times don't tell: they begin again with every heartbeat.
	OldestPending time.Duration
	// Consumers is the number of consumers in the group.
	Consumers int
	// TrimmedUnread is how many entries are gone that the group has not read.
	TrimmedUnread int64
	// DeadLetters is the length of the dead-letter stream.
	DeadLetters int64
	// Missing names what the user has no right to: commands, such as "XGROUP CREATE", and
	// patterns of keys, such as "~orders".
	Missing []string
}

// Check looks at server and topics before there is traffic. The error says why it could
// not look, or that a subscription would not work; it is joined from all topics, and the
// report is as complete as it could be. It ends when ctx does, whether or not the client heeds
// contexts, if that is a *redis.Client or *redis.ClusterClient: it asks over connections of
// its own.
func (s *Subscriber) Check(ctx context.Context, topics ...string) (Report, error) {
	client, done := preflight.Bounded(s.cfg.Client)
	defer done()
	r := Report{Connections: wantedConnections(len(topics))}
	var faults []error
	for _, name := range topics {
		if err := checkTopic(name); err != nil {
			faults = append(faults, err)
			continue
		}
		sub := s.newSubscription(client, name)
		if r.Server == "" {
			r.Server = preflight.Server(ctx, client, name)
		}
		tr, err := sub.check(ctx, client, &r)
		if err != nil {
			faults = append(faults, fmt.Errorf("topic %q: %w", name, err))
		}
		r.Topics = append(r.Topics, tr)
	}
	preflight.Pool(s.cfg.Client, r.Connections, fmt.Sprintf("subscriptions to %d topics need", len(topics)), r.warn)
	if len(topics) > 0 {
		preflight.Eviction(ctx, client, topics[0], "streams that are not read yet", r.warn)
	}
	for _, w := range s.cfg.warnings() {
		r.warn("%v.", w)
	}
	if s.cfg.MaxDeliveries == 0 && !s.cfg.FanOut {
		r.warn("MaxDeliveries is 0: a message that its handler can't handle is redelivered for ever, and never becomes a dead letter.")
	}
	if timeout := readTimeout(s.cfg.Client); timeout < 0 {
		r.warn("The client has no read time-out: a server that stops answering would keep Close from returning.")
	}
	return r, errors.Join(faults...)
}

func (r *Report) warn(format string, args ...any) {
	r.Warnings = append(r.Warnings, fmt.Sprintf(format, args...))
}

func (s *subscription) check(ctx context.Context, client redis.UniversalClient, r *Report) (TopicReport, error) {
	tr := TopicReport{Topic: s.topic, Lag: -1}
	var err error
	if tr.Missing, err = preflight.Missing(ctx, client, s.topic, fmt.Sprintf("topic %q", s.topic), s.group.Rights(s.cfg.DeleteOnAck), r.warn); err != nil {
		return tr, err
	}
	if len(tr.Missing) > 0 {
		return tr, preflight.Lacks(tr.Missing, fmt.Sprintf("it and its dead letters (%s)", rediskey.DeadLetter(s.topic)))
	}
	if _, tr.Exists, err = s.group.Stream(ctx); err != nil {
		return tr, group.Explain(err)
	}
	if tr.DeadLetters, err = s.group.DeadLetters(ctx); err != nil {
		return tr, fmt.Errorf("dead letters: %w", group.Explain(err))
	}
	if s.cfg.FanOut {
		return tr, nil
	}
	if s.cfg.DeleteOnAck {
		if err := s.group.CheckDelete(ctx); err != nil {
			return tr, err
		}
	}
	if tr.Exists {
		if err := s.checkGroup(ctx, &tr); err != nil {
			return tr, err
		}
	}
	if tr.TrimmedUnread > 0 {
		r.warn("Topic %q: %d entries were trimmed that group %q has not read.", s.topic, tr.TrimmedUnread, s.cfg.Group)
	}
	if tr.Consumers > 1000 {
		r.warn("Topic %q: group %q has %d consumers; those without pending entries go after a few heartbeats.", s.topic, s.cfg.Group, tr.Consumers)
	}
	return tr, nil
}

func (s *subscription) checkGroup(ctx context.Context, tr *TopicReport) error {
	g, err := s.group.Summary(ctx)
	tr.HasGroup, tr.Consumers, tr.Lag = g.Exists, g.Consumers, g.Lag
	tr.Pending, tr.HandedBack, tr.OldestPending, tr.TrimmedUnread = g.Pending, g.HandedBack, g.OldestPending, g.TrimmedUnread
	return err
}
