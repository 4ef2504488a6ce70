package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/window"
)

const (
	defaultScanEntries = 100_000
	defaultPairs       = 100
	// mostIDs is how many IDs of entries are kept that could not be compared.
	mostIDs = 10
	// progressEvery is after how many entries OnProgress is called.
	progressEvery = 1000
)

// Scan says which part of a stream to look at.
type Scan struct {
	// From and To bound when entries were added, by the server's clock: From ≤ t < To. Zero
	// means from the first, up to the last that there is now.
	From, To time.Time
	// MaxEntries is how many entries to read, the newest of the range; 0 means 100,000. Each
	// takes about 150 bytes of memory, whatever its size.
	MaxEntries int
	// Key finds the event's key of entries that bring none, as publisher.Config.Key does:
	// those that other publishers have written. Without it these are compared by their
	// message UUIDs.
	Key eventkey.Source
	// Only, if set, is the one event key to look for.
	Only string
	// MaxPairs is how many pairs to keep, the newest; 0 means 100. All are counted.
	MaxPairs int
	// OnProgress, if set, is called now and then with how many entries were read, and about
	// how many there are.
	OnProgress func(read, total int64)
}

func (s Scan) resolve(topic string) (Scan, error) {
	var f invalid.Faults
	f.AddIf(topic == "", "the topic is empty")
	invalid.Negative(&f, "MaxEntries", s.MaxEntries)
	invalid.Negative(&f, "MaxPairs", s.MaxPairs)
	f.AddIf(!s.From.IsZero() && !s.To.IsZero() && !s.From.Before(s.To), "From %v is not before To %v", s.From, s.To)
	if s.Key != nil {
		if err := eventkey.Validate(s.Key); err != nil {
			f.Add("Key: %w", err)
		}
	}
	if s.MaxEntries == 0 {
		s.MaxEntries = defaultScanEntries
	}
	if s.MaxPairs == 0 {
		s.MaxPairs = defaultPairs
	}
	return s, f.Err("inspect: invalid scan")
}

// Duplicates is what a scan found.
type Duplicates struct {
	Topic string
	// Entries is how many were read, Keyless how many of them have no key, Undecodable how
	// many are no message. Sourced is how many brought no key and got one of Scan.Key.
	Entries, Keyless, Undecodable, Sourced int64
	// KeylessIDs and UndecodableIDs are the newest ten of these.
	KeylessIDs, UndecodableIDs []string
	// KeyErr says why Scan.Key has no key for the newest one that is Keyless.
	KeyErr error
	// Keys is the number of different events.
	Keys int64
	// FromID and ToID are the oldest and the newest entry that was read. More means that the
	// range has older ones.
	FromID, ToID string
	More         bool
	// Pairs are entries of one key, each with the next one of that key: the newest pairs
	// first. Total is how many there are.
	Pairs []Pair
	Total int64
	// ByCause counts all pairs.
	ByCause map[Cause]int64
	// Apart is how far apart in time pairs are that the window was too small for (CauseLate,
	// CauseFull): the ages of the retries that it has missed.
	Apart window.Distribution
	// Window is what is in force now.
	Window Window
	// Findings are sentences: why there are duplicates, and what to do. If there are entries without
	// a key, the first one is about them, since they hide duplicates; then the most frequent cause
	// comes first.
	Findings []string
}

// Pair is two entries of one key.
type Pair struct {
	// Key is the event's; empty for entries that have none, and the same message UUID.
	Key           string
	First, Second Entry
	// Apart is the time between them, Between how many entries lie between them.
	Apart   time.Duration
	Between int64
	// SameContent reports whether the payloads are equal; Differs is the path of the first
	// JSON field that is not.
	SameContent bool
	Differs     string
	// SameMessage reports whether the message UUIDs are equal: one message that was
	// published twice.
	SameMessage bool
	Cause       Cause
}

// Entry is one entry of a pair.
type Entry struct {
	ID          string
	At          time.Time
	MessageUUID string
	// Attempt is empty for the first publish, else what tells it apart: "replay",
	// "requeue 1", "poisoned", "raised 2".
	Attempt string
	// Ours reports whether a publisher of this library has written it, by all that can be
	// seen: it has its key in its metadata.
	Ours bool
}

// Cause is why two entries of one key are there.
type Cause uint8

const (
	// CauseUnknown means that the window should have caught it; Duplicates.Findings has the
	// possible reasons.
	CauseUnknown Cause = iota
	// CauseAttempt means that it is deliberate: a replay of a dead letter, a requeue, or
	// eventkey.NextAttempt.
	CauseAttempt
	// CauseLate means that the retry came later than the window lasts.
	CauseLate
	// CauseFull means that more entries came between the two than the window holds.
	CauseFull
	// CauseUnguarded means that one of them was not written by a publisher of this library.
	CauseUnguarded
	// CauseProducers means that the window should have caught it, and that the server
	// remembers IDs of more producer IDs than one logical producer has: instances or services
	// with ProducerIDs of their own each add an event once.
	CauseProducers
)

var causeNames = [...]string{"unknown", "deliberate attempt", "later than the window", "window full", "not guarded", "several producer IDs"}

// String is for tables.
func (c Cause) String() string {
	if int(c) < len(causeNames) {
		return causeNames[c]
	}
	return "invalid"
}

// Duplicates looks for entries of one stream that have the same key, and says why they are
// there. It reads entries, in batches of about a megabyte. A stream that is not there is
// ErrNotFound.
func (i *Inspector) Duplicates(ctx context.Context, topic string, s Scan) (Duplicates, error) {
	s, err := s.resolve(topic)
	if err != nil {
		return Duplicates{}, err
	}
	found, err := i.Topic(ctx, topic)
	if err != nil {
		return Duplicates{}, err
	}
	if !found.Exists {
		return Duplicates{}, fmt.Errorf("inspect: topic %q: %w: there is no stream of this name", topic, ErrNotFound)
	}
	info, _, err := server.ReadStreamInfo(ctx, i.client, topic)
	if err != nil {
		return Duplicates{}, explain(topic, err)
	}
	scan := scanning{inspector: i, topic: found, Scan: s, events: make(map[digest]*seen), ByCause: make(map[Cause]int64)}
	span := entries.Between(s.From, s.To, info.Last)
	span.Newest = true
	total := min(info.Length, int64(s.MaxEntries))
	for e, err := range entries.Range(ctx, i.client, topic, span) {
		if err != nil {
			return scan.result(), explain(topic, err)
		}
		if scan.read == int64(s.MaxEntries) {
			scan.More = true
			break
		}
		scan.add(e)
		if s.OnProgress != nil && scan.read%progressEvery == 0 {
			s.OnProgress(scan.read, max(total, scan.read))
		}
	}
	if s.OnProgress != nil {
		s.OnProgress(scan.read, scan.read)
	}
	for n := range scan.Pairs {
		if err := scan.detail(ctx, &scan.Pairs[n]); err != nil && !errors.Is(err, ErrNotFound) {
			return scan.result(), explain(topic, err)
		}
	}
	return scan.result(), nil
}
