package deadletter

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/preflight"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Filter picks dead letters; empty fields pick all.
type Filter struct {
	// IDs are those of letters in the stream of dead letters. With them From, To, Newest are not looked at.
	IDs []string
	// From and To bound when the server took them in as dead letters: From ≤ t < To.
	From, To time.Time
	// Reason, Group and Key must be equal; ErrorHas must be part of Letter.Error, in any case
	// of letters.
	Reason, Group, Key, ErrorHas string
	// Match, if set, is asked last.
	Match func(Letter) bool
	// Limit is how many letters to take; 0 means all.
	Limit int
	// Newest begins with the newest letter instead of the oldest.
	Newest bool
}

// Validate reports what can't be meant, before any server is asked. List, Replay and Drop do so, too.
func (f Filter) Validate() error {
	for _, id := range f.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	switch {
	case f.Limit < 0:
		return fmt.Errorf("deadletter: Filter.Limit %d is negative", f.Limit)
	case !f.From.IsZero() && !f.To.IsZero() && !f.From.Before(f.To):
		return fmt.Errorf("deadletter: Filter.From %v is not before To %v", f.From, f.To)
	}
	return nil
}

// checkID refuses what XRANGE would complete: "1700000000000" is many entries.
func checkID(id string) error {
	if _, err := streamid.Parse(id); err != nil || !strings.Contains(id, "-") {
		return fmt.Errorf("deadletter: %q is not the ID of a dead letter, such as 1700000000000-0", id)
	}
	return nil
}

func (f Filter) matches(l Letter) bool {
	return (f.Reason == "" || f.Reason == l.Reason) &&
		(f.Group == "" || f.Group == l.Group) &&
		(f.Key == "" || f.Key == l.Key) &&
		(f.ErrorHas == "" || strings.Contains(strings.ToLower(l.Error), strings.ToLower(f.ErrorHas))) &&
		(f.Match == nil || f.Match(l))
}

// span is the part of the stream that the filter asks for. What is younger than last came
// later than the call.
func (f Filter) span(last streamid.ID) entries.Span {
	span := entries.Between(f.From, f.To, last)
	span.Newest = f.Newest
	return span
}

// List gives the letters that f lets through. What becomes a dead letter after List was
// called is left out, and so is what was trimmed away before it was read. It reads in small
// batches, by size, since letters may be large. The sequence ends after an error, except for
// ErrNotFound of one of f.IDs.
func (l *Letters) List(ctx context.Context, topic string, f Filter) iter.Seq2[Letter, error] {
	return l.list(ctx, topic, f, new(int64))
}

// list is List, and counts the letters that it has looked at.
func (l *Letters) list(ctx context.Context, topic string, f Filter, looked *int64) iter.Seq2[Letter, error] {
	return func(yield func(Letter, error) bool) {
		if err := f.Validate(); err != nil {
			yield(Letter{}, err)
			return
		}
		if len(f.IDs) > 0 {
			l.byID(ctx, topic, f, looked, yield)
			return
		}
		info, exists, err := server.ReadStreamInfo(ctx, l.client, rediskey.DeadLetter(topic))
		if err != nil {
			yield(Letter{}, fmt.Errorf("deadletter: stream %q: %w", rediskey.DeadLetter(topic), err))
			return
		}
		if !exists {
			return
		}
		taken := 0
		for e, err := range entries.Range(ctx, l.client, rediskey.DeadLetter(topic), f.span(info.Last)) {
			if err != nil {
				yield(Letter{}, fmt.Errorf("deadletter: %w", err))
				return
			}
			*looked++
			letter := l.letter(topic, e)
			if !f.matches(letter) {
				continue
			}
			taken++
			if !yield(letter, nil) || taken == f.Limit {
				return
			}
		}
	}
}

// byID gives the letters of f.IDs.
func (l *Letters) byID(ctx context.Context, topic string, f Filter, looked *int64, yield func(Letter, error) bool) {
	taken := 0
	for _, id := range f.IDs {
		*looked++
		letter, err := l.Get(ctx, topic, id)
		if err == nil && !f.matches(letter) {
			continue
		}
		if err == nil {
			taken++
		}
		if !yield(letter, err) || err != nil && !errors.Is(err, ErrNotFound) || f.Limit > 0 && taken == f.Limit {
			return
		}
	}
}

// Get returns one letter by its ID in the stream of dead letters, or ErrNotFound.
func (l *Letters) Get(ctx context.Context, topic, id string) (Letter, error) {
	letter := Letter{ID: id, Topic: topic}
	if err := checkID(id); err != nil {
		return letter, err
	}
	found, err := l.client.XRangeN(ctx, rediskey.DeadLetter(topic), id, id, 1).Result()
	switch {
	case err != nil:
		return letter, fmt.Errorf("deadletter: read %s of stream %q: %w", id, rediskey.DeadLetter(topic), err)
	case len(found) == 0:
		return letter, fmt.Errorf("deadletter: %w: %s in stream %q", ErrNotFound, id, rediskey.DeadLetter(topic))
	}
	return l.letter(topic, entries.Of(found[0])), nil
}

// Len is the number of dead letters of the topic.
func (l *Letters) Len(ctx context.Context, topic string) (int64, error) {
	n, err := l.client.XLen(ctx, rediskey.DeadLetter(topic)).Result()
	if err != nil {
		err = fmt.Errorf("deadletter: stream %q: %w", rediskey.DeadLetter(topic), err)
	}
	return n, err
}

// Check names the rights that the user of the client lacks: for List and Get, and with change
// for Replay and Drop, too. The error is nil if there are none, and says which if there are.
// Those of the publisher's user Publisher.Check knows.
func (l *Letters) Check(ctx context.Context, topic string, change bool) (missing []string, err error) {
	key := rediskey.DeadLetter(topic)
	commands := []string{"xinfo stream", "xrange", "xrevrange", "xlen"}
	if change {
		commands = append(commands, "xdel")
	}
	var warned error
	missing, err = preflight.Missing(ctx, l.client, key, "the dead letters of "+topic, preflight.Uses(key, key, commands...),
		func(format string, args ...any) { warned = fmt.Errorf(format, args...) })
	switch {
	case err != nil:
		return nil, err
	case len(missing) > 0:
		return missing, fmt.Errorf("deadletter: %w", preflight.Lacks(missing, "the dead letters of "+topic))
	}
	return nil, warned
}

// remove deletes letters, and returns how many were there.
func (l *Letters) remove(ctx context.Context, topic string, ids ...string) (int64, error) {
	n, err := l.client.XDel(ctx, rediskey.DeadLetter(topic), ids...).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return 0, fmt.Errorf("deadletter: remove from stream %q: %w", rediskey.DeadLetter(topic), err)
	}
	return n, nil
}
