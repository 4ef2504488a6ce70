package subscriber

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
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
	client, done := server.Bounded(s.cfg.Client)
	defer done()
	r := Report{Connections: len(topics) + 4}
	var faults []error
	for _, name := range topics {
		if err := checkTopic(name); err != nil {
			faults = append(faults, err)
			continue
		}
		sub := s.newSubscription(client, name)
		if r.Server == "" {
			if info, err := server.InfoSection(ctx, client, name, "server"); err == nil {
				r.Server = serverName(info)
			}
		}
		tr, err := sub.check(ctx, &r)
		if err != nil {
			faults = append(faults, fmt.Errorf("topic %q: %w", name, err))
		}
		r.Topics = append(r.Topics, tr)
	}
	if size := poolSize(s.cfg.Client); size > 0 && size < r.Connections {
		r.warn("The client's pool has %d connections; subscriptions to %d topics need %d.", size, len(topics), r.Connections)
	}
	if len(topics) > 0 {
		switch policy, unknown := server.EvictionPolicy(ctx, client, topics[0]); {
		case policy == "":
			r.warn("The server's maxmemory-policy is unknown: %s.", unknown)
		case policy != "noeviction":
			r.warn("The server's maxmemory-policy is %s: it may evict streams that are not read yet. Set noeviction.", policy)
		}
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

// serverName is product and version; Valkey calls itself Redis 7.2.4 for old clients.
func serverName(info map[string]string) string {
	if v := info["valkey_version"]; v != "" {
		return "valkey " + v
	}
	return "redis " + info["redis_version"]
}

func (s *subscription) check(ctx context.Context, r *Report) (TopicReport, error) {
	tr := TopicReport{Topic: s.topic, Lag: -1}
	var asked bool
	var err error
	if tr.Missing, asked, err = s.group.MissingRights(ctx, s.cfg.DeleteOnAck); err != nil {
		return tr, err
	}
	if !asked {
		r.warn("The user's rights on topic %q were not checked, which needs a *redis.Client or *redis.ClusterClient.", s.topic)
	}
	if len(tr.Missing) > 0 {
		return tr, fmt.Errorf("the user lacks %s for it and its dead letters (%s): grant it with ACL SETUSER",
			strings.Join(tr.Missing, ", "), rediskey.DeadLetter(s.topic))
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
