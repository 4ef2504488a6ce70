package inspect

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/entries"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/streamid"
	"github.com/onceward/watermill-idempotent/publisher"
	"github.com/onceward/watermill-idempotent/window"
)

// digest stands for a key or an idempotent ID, which may be long.
type digest [16]byte

func digestOf(text string) (d digest) {
	sum := sha256.Sum256([]byte(text))
	copy(d[:], sum[:])
	return d
}

// seen is what is kept of an entry.
type seen struct {
	id    streamid.ID
	index int64 // counted from the newest entry
	ours  bool
	// attempt is the idempotent ID; other is the entry before of another attempt of the event.
	attempt digest
	other   *seen
}

// scanning is a scan under way. It reads from the newest entry on.
type scanning struct {
	Scan
	inspector *Inspector
	topic     Topic
	events    map[digest]*seen
	ages      window.Ages

	read, total    int64
	newest, oldest string
	keyless        odd
	undecodable    odd
	sourced        int64
	keyErr         error
	More           bool
	Pairs          []Pair
	ByCause        map[Cause]int64
}

// odd are entries that can't be compared like others.
type odd struct {
	n   int64
	ids []string
}

func (o *odd) add(id string) {
	if o.n++; len(o.ids) < mostIDs {
		o.ids = append(o.ids, id)
	}
}

func (s *scanning) add(e entries.Entry) {
	index := s.read
	s.read++
	if s.oldest = e.ID; s.newest == "" {
		s.newest = e.ID
	}
	id, err := streamid.Parse(e.ID)
	if err != nil {
		return
	}
	msg, err := s.inspector.decode(s.topic.Topic, e.ID, e.Values)
	if err != nil {
		s.undecodable.add(e.ID)
		return
	}
	key, ours := s.keyOf(msg)
	name := "key:" + key
	if key == "" {
		if s.keyless.add(e.ID); msg.UUID == "" {
			return
		}
		name = "uuid:" + msg.UUID
	}
	if s.Only != "" && key != s.Only {
		return
	}
	event := digestOf(name)
	now := &seen{id: id, index: index, ours: ours,
		attempt: digestOf(identity.IdempotentID(name, identity.AttemptOf(msg.Metadata), identity.OriginOf(msg.Metadata)))}
	head := s.events[event]
	if head == nil {
		s.events[event] = now
		return
	}
	// The next entry of the same attempt, if there is one, else the next one of the event.
	next := head
	for same := head; same != nil; same = same.other {
		if same.attempt == now.attempt {
			next = same
			break
		}
	}
	s.pair(key, now, next)
	if next.attempt == now.attempt { // of each attempt the last one that was read
		next.id, next.index, next.ours = now.id, now.index, now.ours
		return
	}
	now.other = head
	s.events[event] = now
}

// keyOf is the event's key of a message, and whether a publisher of ours has set it.
func (s *scanning) keyOf(msg *message.Message) (key string, ours bool) {
	if own := msg.Metadata[eventkey.MetadataKey]; own != "" {
		return own, true
	}
	if s.Key == nil {
		return "", false
	}
	key, err := identity.KeyOf(s.Key, s.topic.Topic, msg)
	if err != nil {
		if s.keyErr == nil {
			s.keyErr = err
		}
		return "", false
	}
	s.sourced++
	return key, false
}

// pair notes two entries of one event.
func (s *scanning) pair(key string, first, second *seen) {
	p := Pair{
		Key: key, First: entryOf(first), Second: entryOf(second),
		Apart:   time.Duration(second.id.MS-first.id.MS) * time.Millisecond, //nolint:gosec // it is the later one
		Between: first.index - second.index - 1,
	}
	p.Cause = s.cause(p, first.attempt == second.attempt)
	s.total++
	s.ByCause[p.Cause]++
	if p.Cause == CauseLate || p.Cause == CauseFull {
		s.ages.Add(p.Apart)
	}
	if len(s.Pairs) < s.MaxPairs {
		s.Pairs = append(s.Pairs, p)
	}
}

func entryOf(s *seen) Entry {
	return Entry{ID: s.id.String(), At: timeOf(s.id.String()), Ours: s.ours}
}

// cause says why the second entry was added.
func (s *scanning) cause(p Pair, sameAttempt bool) Cause {
	w := &s.topic.Window
	switch {
	case !sameAttempt:
		return CauseAttempt
	case !p.First.Ours || !p.Second.Ours || !s.topic.HasLayout:
		return CauseUnguarded
	case w.Duration > 0 && p.Apart >= w.Duration:
		return CauseLate
	case w.Entries > 0 && p.Between >= int64(w.Entries):
		return CauseFull
	case s.topic.Layout.Mode == publisher.ModeIDMP && w.ProducerIDs > int64(s.topic.Layout.Shards):
		return CauseProducers
	}
	return CauseUnknown
}

// detail reads the entries of a pair once more, for what was not kept of all. What is gone
// meanwhile stays unknown.
func (s *scanning) detail(ctx context.Context, p *Pair) error {
	first, err := s.message(ctx, p.First.ID)
	if err != nil {
		return err
	}
	second, err := s.message(ctx, p.Second.ID)
	if err != nil {
		return err
	}
	p.First.MessageUUID, p.First.Attempt = first.UUID, attemptOf(first.Metadata)
	p.Second.MessageUUID, p.Second.Attempt = second.UUID, attemptOf(second.Metadata)
	p.SameMessage = first.UUID == second.UUID
	if p.SameContent = bytes.Equal(first.Payload, second.Payload); !p.SameContent {
		p.Differs = identity.FirstDifference(nil, first.Payload, second.Payload)
	}
	return nil
}

func (s *scanning) message(ctx context.Context, id string) (*message.Message, error) {
	found, err := s.inspector.client.XRangeN(ctx, s.topic.Topic, id, id, 1).Result()
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, ErrNotFound
	}
	return s.inspector.decode(s.topic.Topic, id, found[0].Values)
}

// attemptOf says what tells a publish from the first one.
func attemptOf(md message.Metadata) string {
	var parts []string
	a := identity.AttemptOf(md)
	if a.DeadLetter != "" {
		parts = append(parts, "replay")
	}
	if a.Requeued > 0 {
		parts = append(parts, fmt.Sprint("requeue ", a.Requeued))
	}
	if a.Raised > 0 {
		parts = append(parts, fmt.Sprint("raised ", a.Raised))
	}
	if identity.OriginOf(md).Poisoned {
		parts = append(parts, "poisoned")
	}
	return strings.Join(parts, ", ")
}

// result is what was found so far.
func (s *scanning) result() Duplicates {
	d := Duplicates{
		Topic: s.topic.Topic, Entries: s.read, Keyless: s.keyless.n, Undecodable: s.undecodable.n, Sourced: s.sourced,
		KeylessIDs: s.keyless.ids, UndecodableIDs: s.undecodable.ids, KeyErr: s.keyErr, Keys: int64(len(s.events)),
		FromID: s.oldest, ToID: s.newest, More: s.More, Pairs: s.Pairs, Total: s.total, ByCause: s.ByCause,
		Apart: s.ages.Distribution(), Window: s.topic.Window,
	}
	d.Findings = findings(&d, s.topic, s.Key != nil)
	return d
}
