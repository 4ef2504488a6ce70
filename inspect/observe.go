package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/window"
)

const (
	defaultWatch = time.Minute
	defaultEvery = time.Second
	leastEvery   = 10 * time.Millisecond
)

// Watch says how to observe a topic.
type Watch struct {
	// For is how long; 0 means a minute. It ends early, without an error, when ctx does.
	For time.Duration
	// Every is how often the server is asked; 0 means a second. The peak is the highest rate
	// between two answers.
	Every time.Duration
	// OnSample, if set, is called with each answer.
	OnSample func(Sample)
	// Caught are the ages of retries from publishers, see window.Ages.
	Caught window.Distribution
	// Scan, if set, looks for duplicates in the stream as well, see [Inspector.Duplicates].
	Scan *Scan
}

// Sample is one look at a topic.
type Sample struct {
	At time.Time
	// Elapsed is how long the observation has lasted, Of how long it will.
	Elapsed, Of time.Duration
	// Added and Duplicates count since the observation began; Duplicates is -1 where the
	// server does not count them (mode Latch). Rate is new entries a second since the last
	// sample.
	Added, Duplicates int64
	Rate              float64
	// Length is the number of entries; Lag is the largest of a group, -1 if none is known.
	Length, Lag int64
}

// Observe watches a topic for a while: the rate of its new entries, duplicates, window and
// lag. What it returns is for window.Advise.
//
// How late retries come it can't see: no server tells. That comes from publishers
// (Watch.Caught), and from retries that were missed and are in the stream (Watch.Scan).
func (i *Inspector) Observe(ctx context.Context, topic string, w Watch) (window.Observation, error) {
	if w.For < 0 || w.Every < 0 || w.Every > 0 && w.Every < leastEvery {
		return window.Observation{}, fmt.Errorf("inspect: Watch.For %v and Every %v must not be negative, nor Every below %v", w.For, w.Every, leastEvery)
	}
	if w.For == 0 {
		w.For = defaultWatch
	}
	if w.Every == 0 {
		w.Every = defaultEvery
	}
	found, err := i.Topic(ctx, topic)
	if err != nil {
		return window.Observation{}, err
	}
	if !found.Exists {
		return window.Observation{}, fmt.Errorf("inspect: topic %q: %w: there is no stream of this name", topic, ErrNotFound)
	}
	o := window.Observation{
		Topic: topic, Mode: found.Layout.Mode, Shards: found.Layout.Shards, ProducerIDs: int(found.Window.ProducerIDs),
		Window: publisher.Window{Duration: found.Window.Duration, Entries: found.Window.Entries},
		Lag:    -1, Duplicates: -1, Caught: w.Caught,
	}
	if !found.HasLayout { // nothing of ours remembers anything
		o.Window = publisher.Window{}
	}
	watching := watching{inspector: i, topic: topic, Watch: w, observation: &o}
	if err := watching.run(ctx); err != nil {
		return o, explain(topic, err)
	}
	if w.Scan != nil && ctx.Err() == nil {
		d, err := i.Duplicates(ctx, topic, *w.Scan)
		if err != nil {
			return o, err
		}
		o.Missed, o.Looked = d.Apart, w.Scan.Only == "" && behind(d, o.Window)
	}
	return o, nil
}

// behind reports whether a scan has read more than the window remembers: else it can't have
// seen a retry that came too late.
func behind(d Duplicates, w publisher.Window) bool {
	return d.Apart.Count > 0 || timeOf(d.ToID).Sub(timeOf(d.FromID)) > w.Duration || w.Entries > 0 && d.Entries > int64(w.Entries)
}

// watching is an observation under way.
type watching struct {
	Watch
	inspector   *Inspector
	topic       string
	observation *window.Observation
	begun, last time.Time
	info        server.StreamInfo // of the last answer
}

func (w *watching) run(ctx context.Context) error {
	if err := w.look(ctx, true); err != nil {
		return err
	}
	for next := w.begun.Add(w.Every); ; next = next.Add(w.Every) {
		end := w.begun.Add(w.For)
		if next.After(end) {
			next = end
		}
		if !wait.For(ctx, nil, time.Until(next)) {
			return nil
		}
		if err := w.look(ctx, false); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // the caller has seen enough
			}
			return err
		}
		if !next.Before(end) {
			return nil
		}
	}
}

// look asks the server once.
func (w *watching) look(ctx context.Context, first bool) error {
	stream := server.NewStreamInfoCommand(ctx, w.topic)
	groups := server.NewCommand(ctx, 2, "xinfo", "groups", w.topic)
	server.ProcessAll(ctx, w.inspector.client, []redis.Cmder{stream, groups})
	now := time.Now()
	info, err := stream.Info()
	if server.IsMissingKey(err) { // deleted; a publisher will make it anew
		info, err = server.StreamInfo{}, nil
	}
	if err != nil {
		return err
	}
	o := w.observation
	o.Tracked, o.Length, o.Lag = info.IIDsTracked, info.Length, lagOf(groups)
	o.ProducerIDs = int(info.PIDsTracked)
	if oldest, newest := timeOf(info.First), timeOf(info.Newest); !oldest.IsZero() {
		o.Span = newest.Sub(oldest)
	}
	counted := info.IDMPMaxSize > 0 && o.Mode != publisher.ModeLatch
	if counted {
		o.Duplicates = max(o.Duplicates, 0)
	}
	rate := 0.0
	if first {
		w.begun = now
	} else {
		added := grown(w.info.Added, info.Added)
		o.Added += added
		if counted {
			o.Duplicates += grown(w.info.Duplicates, info.Duplicates)
		}
		o.Lasted = now.Sub(w.begun)
		rate = float64(added) / max(now.Sub(w.last).Seconds(), time.Millisecond.Seconds())
		o.Peak = max(o.Peak, rate)
		o.Rate = float64(o.Added) / o.Lasted.Seconds()
	}
	w.last, w.info = now, info
	if w.OnSample != nil {
		w.OnSample(Sample{At: now, Elapsed: now.Sub(w.begun), Of: w.For, Added: o.Added, Duplicates: o.Duplicates, Rate: rate, Length: o.Length, Lag: o.Lag})
	}
	return nil
}

// grown is by how much a counter has grown; one that is lower began anew.
func grown(before, now int64) int64 {
	if now < before {
		return now
	}
	return now - before
}

func lagOf(groups server.Command) int64 {
	lag := int64(-1)
	if err := groups.Err(); err != nil && !errors.Is(err, redis.Nil) {
		return lag
	}
	for _, r := range recordsOf(groups.Val()) {
		lag = max(lag, r.number("lag"))
	}
	return lag
}
