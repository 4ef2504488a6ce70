package inspect

import (
	"context"
	"fmt"
	"iter"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/publisher"
)

// scanCount is about how many keys a SCAN looks at in one go: the server answers others in
// between.
const scanCount = 1000

// TopicFilter picks topics; empty fields pick all.
type TopicFilter struct {
	// Match is a pattern for names, as for Redis' KEYS: "orders*".
	Match string
}

// Summary is what a list says of a topic.
type Summary struct {
	Topic string
	// Exists reports whether the stream does; it may have been deleted.
	Exists bool
	// Layout is what the layout record says. LayoutErr is what is wrong with the record, if
	// it can't be read.
	Layout    publisher.Layout
	LayoutErr error
	// Length is the number of entries, Groups that of consumer groups, DeadLetters that of
	// dead letters. -1 means that the user may not ask.
	Length, Groups, DeadLetters int64
}

// Topics gives the topics that a publisher of this library has set up, in no particular
// order: those that have a layout record, on all masters of a cluster. It looks at every key
// of the server, by SCAN, which holds nobody up. For a stream without a layout record ask
// [Inspector.Topic]. The sequence ends after an error.
func (i *Inspector) Topics(ctx context.Context, f TopicFilter) iter.Seq2[Summary, error] {
	return func(yield func(Summary, error) bool) {
		seen := make(map[string]bool) // SCAN may give a key twice
		for keys, err := range scanAll(ctx, i.client, rediskey.LayoutPattern, "hash") {
			if err != nil {
				yield(Summary{}, fmt.Errorf("inspect: list topics: %w", err))
				return
			}
			var names []string
			for _, key := range keys {
				topic, ok := rediskey.TopicOfLayout(key)
				if ok && !seen[topic] && (f.Match == "" || glob(f.Match, topic)) {
					seen[topic] = true
					names = append(names, topic)
				}
			}
			for _, s := range i.summaries(ctx, names) {
				if !yield(s, nil) {
					return
				}
			}
			if err := ctx.Err(); err != nil {
				yield(Summary{}, fmt.Errorf("inspect: list topics: %w", err))
				return
			}
		}
	}
}

// summaries asks about topics in one round trip.
func (i *Inspector) summaries(ctx context.Context, topics []string) []Summary {
	if len(topics) == 0 {
		return nil
	}
	type question struct {
		record               *redis.MapStringStringCmd
		exists, length, dead *redis.IntCmd
		groups               server.Command
	}
	questions := make([]question, len(topics))
	var cmds []redis.Cmder
	for n, topic := range topics {
		q := &questions[n]
		q.record = redis.NewMapStringStringCmd(ctx, "hgetall", rediskey.LayoutKey(topic))
		q.exists = redis.NewIntCmd(ctx, "exists", topic)
		q.length, q.dead = redis.NewIntCmd(ctx, "xlen", topic), redis.NewIntCmd(ctx, "xlen", rediskey.DeadLetter(topic))
		q.groups = server.NewCommand(ctx, 2, "xinfo", "groups", topic)
		cmds = append(cmds, q.record, q.exists, q.length, q.dead, q.groups)
	}
	server.ProcessAll(ctx, i.client, cmds)
	list := make([]Summary, len(topics))
	for n, q := range questions {
		// Whoever may not ask EXISTS learns it from XINFO.
		exists := q.exists.Val() > 0 || q.groups.Err() == nil
		s := Summary{Topic: topics[n], Exists: exists, Length: known(q.length), DeadLetters: known(q.dead)}
		var l layout.Layout
		if s.LayoutErr = q.record.Err(); s.LayoutErr == nil {
			l, s.LayoutErr = layout.Parse(q.record.Val())
		}
		s.Layout = layoutOf(l)
		switch err := q.groups.Err(); {
		case err == nil:
			s.Groups = int64(len(recordsOf(q.groups.Val())))
		case !server.IsMissingKey(err):
			s.Groups = -1
		}
		list[n] = s
	}
	return list
}

// known is a number, -1 where the server does not give it.
func known(cmd *redis.IntCmd) int64 {
	if cmd.Err() != nil {
		return -1
	}
	return cmd.Val()
}

func layoutOf(l layout.Layout) publisher.Layout {
	return publisher.Layout{Mode: publisher.Mode(l.Mode), Shards: l.Shards, Duration: l.Duration}
}

// scanAll gives the keys of a pattern and type, page by page, on all masters of a cluster.
func scanAll(ctx context.Context, client redis.UniversalClient, pattern, kind string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		nodes, err := masters(ctx, client)
		if err != nil {
			yield(nil, err)
			return
		}
		for _, node := range nodes {
			for keys, err := range scan(ctx, node, pattern, kind) {
				if !yield(keys, err) || err != nil {
					return
				}
			}
		}
	}
}

// masters are the clients of all masters.
func masters(ctx context.Context, client redis.UniversalClient) (nodes []redis.UniversalClient, err error) {
	cluster, ok := client.(*redis.ClusterClient)
	if !ok {
		return []redis.UniversalClient{client}, nil
	}
	found := make(chan redis.UniversalClient)
	done := make(chan error, 1)
	go func() {
		done <- cluster.ForEachMaster(ctx, func(_ context.Context, node *redis.Client) error { // several at once
			found <- node
			return nil
		})
		close(found)
	}()
	for node := range found {
		nodes = append(nodes, node)
	}
	return nodes, <-done
}

// scan gives the keys of one server.
func scan(ctx context.Context, node redis.UniversalClient, pattern, kind string) iter.Seq2[[]string, error] {
	return func(yield func([]string, error) bool) {
		for cursor := uint64(0); ; {
			keys, next, err := node.ScanType(ctx, cursor, pattern, scanCount, kind).Result()
			if err == nil {
				err = ctx.Err()
			}
			if !yield(keys, err) || err != nil || next == 0 {
				return
			}
			cursor = next
		}
	}
}
