package subscriber

import (
	"context"
	"errors"
	"fmt"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// read fills the book until the subscription ends. One goroutine per subscription.
func (s *subscription) read(ctx context.Context) {
	retry := newRetry()
	s.needRecovery.Store(true) // takes over what is there before anything new
	for {
		if s.isEnding() {
			return
		}
		err := s.readOnce(ctx)
		if err == nil {
			retry.Reset()
			continue
		}
		if isNoGroup(err) && !s.cfg.FanOut {
			if err = s.heal(ctx); err == nil {
				continue
			}
		}
		s.needRecovery.Store(true)
		s.outage.failed(doRead, err)
		if !s.pause(retry.NextBackOff()) {
			return
		}
	}
}

// readOnce does the next thing that is to be done: stand by, recover, wait for room,
// or read.
func (s *subscription) readOnce(ctx context.Context) error {
	if s.book.isGated() {
		return s.standBy(ctx)
	}
	if !s.cfg.FanOut && s.needRecovery.Load() {
		// Cleared first: a failure on another goroutine during the recovery asks for
		// another one.
		s.needRecovery.Store(false)
		if err := s.recover(ctx); err != nil {
			return err
		}
		s.outage.over(doRead)
	}
	if s.listOwn.Swap(false) {
		// As suspects: it may be a takeover that has come late.
		if err := s.recoverOwn(ctx, true); err != nil {
			return err
		}
	}
	n := s.book.free(s.average)
	if n == 0 {
		select {
		case <-s.book.room:
		case <-s.stopping:
		}
		return nil
	}
	asked := s.batch.atMost(n)
	sent := s.book.now()
	raw, err := s.readEntries(ctx, asked)
	if err != nil {
		if server.Classify(err) == server.Ambiguous {
			s.batch.lost(asked)
		}
		return err
	}
	s.batch.came(asked, len(raw))
	s.outage.over(doRead)
	if len(raw) == 0 {
		if s.cfg.FanOut {
			return s.checkAnew(ctx)
		}
		return nil
	}
	total := 0
	arrivals := make([]arrival, 0, len(raw))
	for _, r := range raw {
		total += size(r.pairs)
		arrivals = append(arrivals, s.arrive(r))
	}
	arrivals[len(raw)-1].print = fingerprint(raw[len(raw)-1].pairs)
	s.measure(total, len(raw))
	s.book.add(arrivals, sent)
	return nil
}

// measure follows the size of entries, upwards at once and downwards slowly.
func (s *subscription) measure(total, entries int) {
	now := total / entries
	if now >= s.average {
		s.average = now
	} else {
		s.average -= (s.average - now) / 8
	}
}

// rawEntry is an entry as the server sends it: name, value, name, value.
type rawEntry struct {
	name  string
	id    server.ID
	pairs []string
}

// readEntries asks for new entries. The command is never repeated by the client: what
// a lost reply has made pending would stay behind, and later entries would overtake it.
func (s *subscription) readEntries(ctx context.Context, count int) ([]rawEntry, error) {
	var cmd server.Command
	if s.cfg.FanOut {
		cmd = server.NewCommand(ctx, 6, "xread", "count", count, "block", s.block.Milliseconds(), "streams", s.topic, idText(s.lastID))
	} else {
		cmd = server.NewCommand(ctx, 9, "xreadgroup", "group", s.cfg.Group, s.consumer,
			"count", count, "block", s.block.Milliseconds(), "streams", s.topic, ">")
	}
	err := server.Process(ctx, s.client, cmd)
	switch {
	case isNil(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	entries, err := streamEntries(cmd.Val(), s.topic)
	if err == nil && s.cfg.FanOut && len(entries) > 0 {
		s.lastID = entries[len(entries)-1].id
	}
	return entries, err
}

// streamEntries reads the reply of XREAD and XREADGROUP, a map or a list by the
// protocol version.
func streamEntries(reply any, topic string) ([]rawEntry, error) {
	switch r := reply.(type) {
	case nil:
		return nil, nil
	case map[any]any:
		return rawEntries(r[topic])
	case []any:
		if len(r) == 1 {
			if pair, ok := r[0].([]any); ok && len(pair) == 2 {
				return rawEntries(pair[1])
			}
		}
	}
	return nil, fmt.Errorf("reading: unexpected reply %T of the server", reply)
}

func rawEntries(reply any) ([]rawEntry, error) {
	l, ok := reply.([]any)
	if !ok {
		return nil, fmt.Errorf("reading: unexpected reply %T of the server", reply)
	}
	entries := make([]rawEntry, len(l))
	for i, item := range l {
		pair, ok := item.([]any)
		if !ok || len(pair) != 2 {
			return nil, fmt.Errorf("reading: unexpected entry %T in a reply of the server", item)
		}
		r := &entries[i]
		r.name, _ = pair[0].(string)
		var err error
		if r.id, err = server.ParseID(r.name); err != nil {
			return nil, err
		}
		if pair[1] == nil { // deleted while pending
			continue
		}
		if r.pairs, err = texts(pair[1]); err != nil {
			return nil, err
		}
	}
	return entries, nil
}

// entryOverhead is about what an entry takes in memory above its fields.
const entryOverhead = 512

func size(pairs []string) int {
	n := entryOverhead
	for _, p := range pairs {
		n += len(p)
	}
	return n
}

// arrive decodes an entry that was read for the first time.
func (s *subscription) arrive(r rawEntry) arrival {
	e := &entry{id: r.id, name: r.name, written: 1}
	msg, err := s.decode(r.name, r.pairs)
	if err != nil {
		e.reason, e.failure = ReasonUndecodable, err
		return arrival{entry: e}
	}
	e.msg, e.size = msg, size(r.pairs)
	e.delayUntil, e.delayFor = msg.Metadata[wmeta.DelayedUntil], msg.Metadata[wmeta.DelayedFor]
	key, ok := s.orderKey(msg, r.name)
	return arrival{entry: e, key: key, hasKey: ok}
}

// decode makes a message. A user's Unmarshaller that panics is an error.
func (s *subscription) decode(id string, pairs []string) (msg *message.Message, err error) {
	if s.cfg.Unmarshaller == nil {
		return wire.DecodePairs(s.topic, id, pairs)
	}
	defer func() {
		if p := recover(); p != nil {
			msg, err = nil, &wire.Error{Stream: s.topic, ID: id, Err: fmt.Errorf("the Unmarshaller panicked: %v", p)}
		}
	}()
	values := make(map[string]any, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		values[pairs[i]] = pairs[i+1]
	}
	msg, err = s.cfg.Unmarshaller.Unmarshal(values)
	if err == nil && msg == nil {
		err = errNoMessage
	}
	if err != nil {
		return nil, &wire.Error{Stream: s.topic, ID: id, Err: err}
	}
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	return msg, nil
}

// orderKey finds the entity that a message belongs to; false if the order does not
// depend on it, or it has none.
func (s *subscription) orderKey(msg *message.Message, id string) (string, bool) {
	switch s.cfg.Order {
	case OrderStream:
		return "", true
	case OrderKey:
		key, err := s.callOrderBy(msg)
		if err == nil {
			return key, true
		}
		if !errors.Is(err, eventkey.ErrNoKey) {
			s.logger.Debug("No key for the order", s.fields(watermill.LogFields{fieldEntry: id, "error": err.Error()}))
		}
		s.warnedOnce.Do(func() {
			s.logger.Error("OrderBy found no key in an entry, which is handed out without order; later ones are logged at debug level", err,
				s.fields(watermill.LogFields{fieldEntry: id}))
		})
	}
	return "", false
}

// callOrderBy asks the user's source; one that panics is an error.
func (s *subscription) callOrderBy(msg *message.Message) (key string, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("OrderBy panicked: %v", p)
		}
	}()
	return s.cfg.OrderBy.Key(s.topic, msg)
}

func idText(id server.ID) string { return fmt.Sprintf("%d-%d", id.MS, id.Seq) }
