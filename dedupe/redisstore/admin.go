package redisstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// scanCount is how many keys a server looks at in one call of SCAN.
const scanCount = 1000

// found is a record with its value.
type found struct {
	dedupe.Record
	name, value string
}

func (r record) public(k dedupe.Key, ttl time.Duration) dedupe.Record {
	out := dedupe.Record{Key: k, State: dedupe.StateDone, CommittedAt: r.at, Fingerprint: r.digest, Group: r.groupOf(k.Namespace), Outputs: len(r.outputs)}
	if r.claim {
		out.State = dedupe.StateInProgress
	}
	if ttl > 0 {
		out.ExpiresAt = time.Now().Add(ttl)
	}
	for _, o := range r.outputs {
		out.OutputBytes += len(o)
	}
	return out
}

// Lookup implements dedupe.Admin.
func (s *Store) Lookup(ctx context.Context, k dedupe.Key) (dedupe.Record, error) {
	if err := k.Validate(); err != nil {
		return dedupe.Record{}, err
	}
	name := s.names.name(k)
	all, err := s.read(ctx, []string{name})
	switch {
	case err != nil:
		return dedupe.Record{}, s.explain("lookup", name, err)
	case len(all) == 0:
		return dedupe.Record{}, fmt.Errorf("redisstore: %w of %s", dedupe.ErrNotFound, k)
	}
	return all[0].Record, nil
}

// Forget implements dedupe.Admin. It also removes a record that can't be read.
func (s *Store) Forget(ctx context.Context, k dedupe.Key) error {
	if err := k.Validate(); err != nil {
		return err
	}
	name := s.names.name(k)
	if sent := s.send(ctx, time.Now().Add(retryFor), script(forgetScript, name)); sent.err != nil {
		return s.explain("forget", name, sent.err)
	}
	return nil
}

// List implements dedupe.Admin. It goes through all keys of the server, or of every
// master of a cluster, a thousand at a time. Records that can't be read are skipped;
// one may come twice while the server resizes its table, as SCAN has it.
func (s *Store) List(ctx context.Context, f dedupe.Filter) iter.Seq2[dedupe.Record, error] {
	return func(yield func(dedupe.Record, error) bool) {
		err := s.each(ctx, f, func(r found) bool { return yield(r.Record, nil) })
		if err != nil {
			yield(dedupe.Record{}, err)
		}
	}
}

// Purge implements dedupe.Admin. The server removes by itself what ran out.
func (s *Store) Purge(ctx context.Context, before time.Time, limit int) (int, error) {
	if limit < 0 {
		return 0, fmt.Errorf("redisstore: purge: %w: limit %d is negative", dedupe.ErrInvalid, limit)
	}
	n := 0
	var failed error
	err := s.each(ctx, dedupe.Filter{State: dedupe.StateDone}, func(r found) bool {
		if !r.CommittedAt.Before(before) {
			return true
		}
		sent := s.send(ctx, time.Now().Add(retryFor), script(removeScript, r.name, r.value))
		removed, err := sent.yes()
		if err != nil {
			failed = s.explain("purge", r.name, err)
			return false
		}
		if removed {
			n++
		}
		return limit == 0 || n < limit
	})
	return n, errors.Join(failed, err)
}

// each calls visit for every record that f picks, until it returns false.
func (s *Store) each(ctx context.Context, f dedupe.Filter, visit func(found) bool) error {
	nodes, err := s.nodes(ctx)
	if err != nil {
		return fmt.Errorf("redisstore: list: %w", err)
	}
	for _, node := range nodes {
		var cursor uint64
		for {
			var names []string
			sent := s.send(ctx, time.Now().Add(retryFor), step{run: func(ctx context.Context, _ server.Processor) (_ any, err error) {
				names, cursor, err = node.Scan(ctx, cursor, s.names.pattern(f), scanCount).Result()
				return nil, err
			}})
			if sent.err != nil {
				return s.explain("list", s.names.pattern(f), sent.err)
			}
			// By the client as a whole: a slot may have moved since.
			all, err := s.read(ctx, names)
			if err != nil && !errors.Is(err, dedupe.ErrCorrupt) {
				return s.explain("list", s.names.pattern(f), err)
			}
			for _, r := range all {
				if f.Match(r.Record) && !visit(r) {
					return nil
				}
			}
			if cursor == 0 {
				break
			}
		}
	}
	return nil
}

// nodes are the masters.
func (s *Store) nodes(ctx context.Context) ([]redis.UniversalClient, error) {
	cluster, ok := s.cfg.Client.(*redis.ClusterClient)
	if !ok {
		return []redis.UniversalClient{s.cfg.Client}, nil
	}
	found := make(chan *redis.Client)
	failed := make(chan error, 1)
	go func() {
		defer close(found)
		failed <- cluster.ForEachMaster(ctx, func(_ context.Context, c *redis.Client) error {
			found <- c
			return nil
		})
	}()
	var all []redis.UniversalClient
	for c := range found {
		all = append(all, c)
	}
	return all, <-failed
}

// read gets what is there of some records. Those that can't be read are an error that
// matches ErrCorrupt, beside the others.
func (s *Store) read(ctx context.Context, names []string) ([]found, error) {
	if len(names) == 0 {
		return nil, nil
	}
	sent := s.send(ctx, time.Now().Add(retryFor), step{run: func(ctx context.Context, _ server.Processor) (any, error) {
		return s.values(ctx, names)
	}})
	if sent.err != nil {
		return nil, sent.err
	}
	return s.parse(sent.value.([]value))
}

// value is what a server has under a name; err is nil, redis.Nil or WRONGTYPE.
type value struct {
	name, text string
	ttl        time.Duration
	err        error
}

// values asks for all of them at once.
func (s *Store) values(ctx context.Context, names []string) ([]value, error) {
	pipe := s.cfg.Client.Pipeline()
	gets, ttls := make([]*redis.StringCmd, len(names)), make([]*redis.DurationCmd, len(names))
	for i, name := range names {
		gets[i], ttls[i] = pipe.Get(ctx, name), pipe.PTTL(ctx, name)
	}
	_, pipeErr := pipe.Exec(ctx)
	all := make([]value, len(names))
	for i, name := range names {
		text, err := gets[i].Result()
		if err != nil && !errors.Is(err, redis.Nil) && !redis.HasErrorPrefix(err, "WRONGTYPE") {
			return nil, errors.Join(err, pipeErr)
		}
		all[i] = value{name, text, ttls[i].Val(), err}
	}
	return all, nil
}

func (s *Store) parse(values []value) (all []found, err error) {
	for _, v := range values {
		switch {
		case errors.Is(v.err, redis.Nil):
			continue
		case v.err != nil:
			err = errors.Join(err, fmt.Errorf("%w: %q: %w", dedupe.ErrCorrupt, v.name, v.err))
			continue
		}
		k, keyErr := s.names.parse(v.name)
		r, readErr := parseRecord(v.text)
		if bad := errors.Join(keyErr, readErr); bad != nil {
			err = errors.Join(err, fmt.Errorf("%q: %w", v.name, bad))
			continue
		}
		all = append(all, found{r.public(k, v.ttl), v.name, v.text})
	}
	return all, err
}
