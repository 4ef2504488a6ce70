package inspect

import (
	"context"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"iter"
	"regexp"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/layout"
	"github.com/onceward/watermill-idempotent/internal/rediskey"
	"github.com/onceward/watermill-idempotent/internal/server"
)

// Latch is what remembers one idempotent ID in mode Latch.
type Latch struct {
	// Key is that of the latch on the server.
	Key string
	// ProducerID and IdempotentID are what it is for. The latter is the event's key, unless
	// it is another attempt than the first.
	ProducerID, IdempotentID string
	// EntryID is the entry that was added with it; AddedAt is when, by the server's clock.
	EntryID string
	AddedAt time.Time
	// Age is how long ago that is, TTL how much longer it is remembered.
	Age, TTL time.Duration
	// Fingerprint is that of the entry's content, in hexadecimal.
	Fingerprint string
	// Entry says whether the entry is still there.
	Entry EntryState
	// Void means that the stream was deleted since: the latch has no effect.
	Void bool
	// Err says why the latch can't be read: it was not written by this library. Then a
	// publish under this ID fails with publisher.ErrLatchUnconfirmed, and the fields behind
	// IdempotentID are empty, but for TTL.
	Err error
}

// EntryState says whether an entry is still in its stream.
type EntryState uint8

const (
	// EntryUnknown means that the server did not say.
	EntryUnknown EntryState = iota
	// EntryThere means that it is in the stream.
	EntryThere
	// EntryGone means that it was trimmed or deleted. A retry is not added, and its receipt
	// says original gone.
	EntryGone
)

var entryStateNames = [...]string{"unknown", "there", "gone"}

// String is for tables.
func (s EntryState) String() string {
	if int(s) < len(entryStateNames) {
		return entryStateNames[s]
	}
	return "invalid"
}

// LatchFilter picks latches; empty fields pick all.
type LatchFilter struct {
	// ProducerID must be equal.
	ProducerID string
	// Match is a pattern for idempotent IDs, as for Redis' KEYS: "pay:*".
	Match string
	// Limit is how many to give; 0 means all.
	Limit int
}

// Latches gives the latches of a topic in mode Latch, in no particular order; else
// ErrNoLatches. It looks at every key of the topic's server, by SCAN, which holds nobody up.
// The sequence ends after an error.
func (i *Inspector) Latches(ctx context.Context, topic string, f LatchFilter) iter.Seq2[Latch, error] {
	return func(yield func(Latch, error) bool) {
		reader, err := i.latches(ctx, topic)
		if err != nil {
			yield(Latch{}, err)
			return
		}
		node, err := server.Node(ctx, i.client, topic)
		if err != nil {
			yield(Latch{}, explain(topic, err))
			return
		}
		pattern := globEscaper.Replace(rediskey.LatchPrefix(topic)) + "*"
		if f.ProducerID != "" {
			pattern = globEscaper.Replace(rediskey.LatchPrefix(topic)+rediskey.LatchProducer(f.ProducerID)) + "*"
		}
		seen, given := make(map[string]bool), 0
		for keys, err := range scan(ctx, node, pattern, "string") {
			if err != nil {
				yield(Latch{}, explain(topic, err))
				return
			}
			wanted := keys[:0]
			for _, key := range keys {
				_, id, ok := rediskey.ParseLatch(topic, key)
				if ok && !seen[key] && (f.Match == "" || glob(f.Match, id)) {
					seen[key] = true
					wanted = append(wanted, key)
				}
			}
			found, err := reader.read(ctx, wanted)
			if err != nil {
				yield(Latch{}, explain(topic, err))
				return
			}
			for _, latch := range found {
				if given++; !yield(latch, nil) || given == f.Limit {
					return
				}
			}
		}
	}
}

// Latch returns the latch of an event's key or idempotent ID, or ErrNotFound. With an empty
// producerID it is looked for under all producer IDs, which looks at every key of the server.
func (i *Inspector) Latch(ctx context.Context, topic, producerID, key string) (Latch, error) {
	if producerID == "" {
		for latch, err := range i.Latches(ctx, topic, LatchFilter{Match: globEscaper.Replace(key), Limit: 1}) {
			return latch, err
		}
		return Latch{}, fmt.Errorf("inspect: latch of %q in topic %q: %w", key, topic, ErrNotFound)
	}
	reader, err := i.latches(ctx, topic)
	if err != nil {
		return Latch{}, err
	}
	found, err := reader.read(ctx, []string{rediskey.LatchKey(topic, producerID, key)})
	switch {
	case err != nil:
		return Latch{}, explain(topic, err)
	case len(found) == 0:
		return Latch{}, fmt.Errorf("inspect: latch of %q by %q in topic %q: %w", key, producerID, topic, ErrNotFound)
	}
	return found[0], nil
}

// latchReader reads latches of one topic.
type latchReader struct {
	inspector  *Inspector
	topic      string
	generation string
	clock      server.Clock
}

// latches looks whether a topic has any.
func (i *Inspector) latches(ctx context.Context, topic string) (*latchReader, error) {
	record, err := i.client.HGetAll(ctx, rediskey.LayoutKey(topic)).Result()
	if err != nil {
		return nil, explain(topic, err)
	}
	found, err := layout.Parse(record)
	switch {
	case err != nil:
		return nil, explain(topic, err)
	case found.Mode == layout.Auto:
		return nil, fmt.Errorf("inspect: topic %q has no layout record: %w", topic, ErrNotFound)
	case found.Mode != layout.Latch:
		return nil, fmt.Errorf("inspect: topic %q is in mode %v: %w", topic, found.Mode, ErrNoLatches)
	}
	r := &latchReader{inspector: i, topic: topic, generation: "0"}
	if g := record["generation"]; g != "" {
		r.generation = g
	}
	r.clock, _ = server.ReadClock(ctx, i.client, topic) // else it is the local one
	return r, nil
}

// latchForm is what the publisher's script writes.
var latchForm = regexp.MustCompile(`(?s)^idem1\|(\d+)\|(\d+-\d+)\|(.*)$`)

var errForeignLatch = errors.New("the latch was not written by this library")

// read reads some latches, and whether their entries are there.
func (r *latchReader) read(ctx context.Context, keys []string) ([]Latch, error) {
	list, err := r.fetch(ctx, keys)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, latch := range list {
		if latch.Err == nil {
			ids = append(ids, latch.EntryID)
		}
	}
	there, err := r.inspector.entriesThere(ctx, r.topic, ids)
	if err != nil {
		return nil, err
	}
	for n := range list {
		if is, asked := there[list[n].EntryID]; asked && is {
			list[n].Entry = EntryThere
		} else if asked {
			list[n].Entry = EntryGone
		}
	}
	return list, nil
}

// fetch reads some latches; those that have run out meanwhile are left out.
func (r *latchReader) fetch(ctx context.Context, keys []string) ([]Latch, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	values, ttls := make([]*redis.StringCmd, len(keys)), make([]*redis.DurationCmd, len(keys))
	var cmds []redis.Cmder
	for n, key := range keys {
		values[n], ttls[n] = redis.NewStringCmd(ctx, "get", key), redis.NewDurationCmd(ctx, time.Millisecond, "pttl", key)
		cmds = append(cmds, values[n], ttls[n])
	}
	server.ProcessAll(ctx, r.inspector.client, cmds)
	list := make([]Latch, 0, len(keys))
	for n, key := range keys {
		value, err := values[n].Result()
		switch {
		case errors.Is(err, redis.Nil):
			continue
		case err != nil:
			return nil, err
		case ttls[n].Err() != nil:
			return nil, ttls[n].Err()
		}
		latch := Latch{Key: key, TTL: max(ttls[n].Val(), 0)}
		latch.ProducerID, latch.IdempotentID, _ = rediskey.ParseLatch(r.topic, key)
		if parts := latchForm.FindStringSubmatch(value); parts == nil {
			latch.Err = errForeignLatch
		} else {
			latch.Void = parts[1] != r.generation
			latch.EntryID, latch.AddedAt = parts[2], timeOf(parts[2])
			latch.Age = max(r.clock.Now().Sub(latch.AddedAt), 0)
			latch.Fingerprint = hex.EncodeToString([]byte(parts[3]))
		}
		list = append(list, latch)
	}
	return list, nil
}

//go:embed there.lua
var thereScript string

// entriesThere looks which entries are in the stream: by a script, so that their payloads stay
// on the server; of a user without the right to scripts they are read.
func (i *Inspector) entriesThere(ctx context.Context, topic string, ids []string) (map[string]bool, error) {
	there := make(map[string]bool, len(ids))
	if len(ids) == 0 {
		return there, nil
	}
	args := []any{"eval", thereScript, 1, topic}
	for _, id := range ids {
		args = append(args, id)
	}
	cmd := server.NewCommand(ctx, 3, args...)
	err := server.Process(ctx, i.client, cmd)
	if err == nil {
		flags, _ := cmd.Val().([]any)
		for n, flag := range flags {
			if n < len(ids) {
				there[ids[n]] = flag == int64(1)
			}
		}
		return there, nil
	}
	if !server.IsRefusedByACL(err) {
		return nil, err
	}
	for _, id := range ids {
		found, err := i.client.XRangeN(ctx, topic, id, id, 1).Result()
		if err != nil {
			return nil, err
		}
		there[id] = len(found) > 0
	}
	return there, nil
}

// latchPages bounds how far Topic looks for latches that show the window, latchSample how
// many it looks at.
const (
	latchPages  = 10
	latchSample = 100
)

// askLatches finds out how long the latches of a topic live: age and time to live together.
func (l *looking) askLatches(ctx context.Context) {
	r := latchReader{inspector: l.inspector, topic: l.Topic.Topic, clock: l.clock}
	node, err := server.Node(ctx, l.inspector.client, r.topic)
	if err != nil {
		return
	}
	pages := 0
	for keys, err := range scan(ctx, node, globEscaper.Replace(rediskey.LatchPrefix(r.topic))+"*", "string") {
		var found []Latch
		if err == nil {
			found, err = r.fetch(ctx, keys[:min(len(keys), latchSample)])
		}
		if err != nil {
			l.say("How long latches live is not known: %v.", err)
			return
		}
		for _, latch := range found {
			if latch.Err == nil && latch.TTL > 0 {
				l.Window.Duration = max(l.Window.Duration, nearly(latch.Age+latch.TTL))
			}
		}
		if pages++; l.Window.Duration > 0 || pages == latchPages {
			break
		}
	}
	if l.Window.Duration == 0 {
		l.say("No latch was found among the first keys of the server, so how long they live is not known.")
	}
}

// nearly rounds to what was likely configured: replies take their time.
func nearly(d time.Duration) time.Duration {
	if whole := d.Round(time.Second); whole > 0 && (d-whole).Abs() < whole/50+100*time.Millisecond {
		return whole
	}
	return d.Round(10 * time.Millisecond)
}
