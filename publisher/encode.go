package publisher

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/wire"
)

// item is one message on its way, encoded. It shares nothing with the caller's
// message, which the caller may change as soon as the call has returned.
type item struct {
	producer string           // without shard
	fields   []any            // of the entry: name, value, name, value, …
	size     int              // of the fields, in bytes
	sent     *message.Message // what fields are the encoding of
	trim     []any            // trimming clause of a Guard's publisher; nil: the topic's
	print    []byte           // fingerprint; nil until needed where it is that of the payload
	child    bool             // the key is a child key

	// The flight's own.
	shardID  string // producer ID on the wire
	mode     Mode
	attempts int
	lost     bool // the reply of an earlier try was lost
	// Guarded by the call: until done, receipt only says which message it is.
	done    bool
	receipt Receipt
}

// attemptMetadata marks an attempt. It is sent in mode IDMPAuto, too, or a requeue
// would be taken for a duplicate. Those that are Watermill's are defined in its
// packages components/requeuer and message/router/middleware.
var attemptMetadata = []string{
	eventkey.MetadataAttempt, "_watermill_requeuer_retries", "topic_poisoned", "handler_poisoned",
}

// encodeAlone is the number of messages from which on a call is encoded by several
// goroutines. The server has nothing to do before the first batch, so there is a
// core to spare.
const encodeAlone = 64

// encodeAll encodes the messages of a call, or none of them.
func (t *topic) encodeAll(ctx context.Context, msgs []*message.Message, receipts []Receipt) ([]*item, error) {
	block := make([]item, len(msgs))
	encode := func(start, end int) {
		for i := start; i < end; i++ {
			receipts[i].Err = t.encode(ctx, msgs[i], &block[i])
		}
	}
	// In a handler the first unkeyed message of a name gets the child key; which one
	// is first must not be a race.
	_, inHandler := eventkey.HandledFrom(ctx)
	if workers := min(runtime.GOMAXPROCS(0), len(msgs)/encodeAlone); workers > 1 && !inHandler {
		var wg sync.WaitGroup
		for w := range workers {
			wg.Go(func() { encode(w*len(msgs)/workers, (w+1)*len(msgs)/workers) })
		}
		wg.Wait()
	} else {
		encode(0, len(msgs))
	}

	bad := slices.IndexFunc(receipts, func(r Receipt) bool { return r.Err != nil })
	if bad < 0 {
		items := make([]*item, len(block))
		for i := range block {
			items[i] = &block[i]
		}
		return items, nil
	}
	other := notSent(errors.New("another message of the call can't be sent"))
	if IsPermanent(receipts[bad].Err) {
		other = permanent(other)
	}
	for i := range receipts {
		if receipts[i].Err == nil {
			receipts[i] = block[i].receipt
			receipts[i].Err = other
		}
	}
	return nil, &PublishError{Topic: t.name, Receipts: receipts}
}

func (t *topic) encode(ctx context.Context, msg *message.Message, it *item) error {
	if msg == nil {
		return permanent(errors.New("the message is nil"))
	}
	cfg := &t.engine.cfg
	key, err := eventkey.Resolve(ctx, t.name, msg, t.cfg.Key, cfg.Key)
	if err != nil {
		return permanent(err)
	}
	producer, err := t.producerOf(msg)
	if err != nil {
		return permanent(err)
	}
	sent := &message.Message{UUID: msg.UUID, Payload: bytes.Clone(msg.Payload), Metadata: wireMetadata(msg, key.Key)}
	if cfg.Mode == IDMPAuto {
		if err := t.reduceToContent(sent, key); err != nil {
			return permanent(err)
		}
	}
	fields, err := t.engine.fields(t.name, sent)
	if err != nil {
		return permanent(err)
	}
	size := sizeOf(fields)
	if size > cfg.MaxPayload {
		return fmt.Errorf("message %s has %d bytes, the limit is %d (Config.MaxPayload): %w", msg.UUID, size, cfg.MaxPayload, ErrTooLarge)
	}
	*it = item{
		producer: producer, fields: fields, size: size, sent: sent, child: key.Child,
		receipt: Receipt{Topic: t.name, MessageUUID: msg.UUID, Key: key.Key, IdempotentID: key.IdempotentID},
	}
	if t.cfg.Fingerprint != nil {
		if it.print, err = eventkey.Sum(t.cfg.Fingerprint, sent); err != nil {
			return permanent(err)
		}
	}
	return nil
}

// fingerprint is the item's. The default one, of the payload, can't fail, and most
// messages are no duplicates: so it is made when it is asked for.
func (it *item) fingerprint() []byte {
	if it.print == nil {
		it.print, _ = eventkey.Sum(nil, it.sent)
	}
	return it.print
}

// wireMetadata is what is sent: the key goes along so that the consumer uses the
// same one; the child key is a note between middleware and publisher.
func wireMetadata(msg *message.Message, key string) message.Metadata {
	metadata := make(message.Metadata, len(msg.Metadata)+1)
	maps.Copy(metadata, msg.Metadata)
	delete(metadata, eventkey.MetadataChildKey)
	metadata[eventkey.MetadataKey] = key
	return metadata
}

// reduceToContent makes what is sent a function of the content, since the server
// hashes every field: a fresh UUID or trace ID would make each retry a new entry.
func (t *topic) reduceToContent(sent *message.Message, key eventkey.Resolved) error {
	keep := t.engine.cfg.ContentMetadata
	// What a produced message only inherited from the handled one is not its own.
	ownAttempt := key.Attempt != (eventkey.Attempt{}) || key.Origin.Poisoned
	maps.DeleteFunc(sent.Metadata, func(name, _ string) bool {
		return name != eventkey.MetadataKey && !slices.Contains(keep, name) &&
			(!ownAttempt || !slices.Contains(attemptMetadata, name))
	})
	content, err := eventkey.Content(keep...).Key(t.name, sent)
	if err != nil {
		return err
	}
	sent.UUID = eventkey.StableUUID(eventkey.Join(content, key.IdempotentID))
	return nil
}

// producerOf finds the producer ID and bounds how many a topic gets.
func (t *topic) producerOf(msg *message.Message) (string, error) {
	cfg := &t.engine.cfg
	if cfg.Producer == nil {
		return cfg.ProducerID, nil
	}
	id, err := cfg.Producer.Key(t.name, msg)
	switch {
	case errors.Is(err, ErrNoKey):
		id = cfg.ProducerID
	case err != nil:
		return "", fmt.Errorf("producer ID of message %s: %w", msg.UUID, err)
	default:
		if err := checkProducerID(id); err != nil {
			return "", fmt.Errorf("producer ID %q of message %s: %w", id, msg.UUID, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.producers[id]; !ok {
		if len(t.producers) >= maxProducers {
			return "", fmt.Errorf("producer ID %q of message %s: topic %q has %d already: %w", id, msg.UUID, t.name, maxProducers, ErrProducers)
		}
		t.producers[id] = struct{}{}
	}
	return id, nil
}

// fields makes the entry's fields in a fixed order.
func (e *engine) fields(topic string, msg *message.Message) ([]any, error) {
	if e.cfg.Marshaller == nil {
		return wire.Encode(msg, msg.Metadata)
	}
	values, err := e.cfg.Marshaller.Marshal(topic, msg)
	if err != nil {
		return nil, fmt.Errorf("marshal message %s: %w", msg.UUID, err)
	}
	return sortedFields(values), nil
}

func sortedFields(values map[string]any) []any {
	fields := make([]any, 0, 2*len(values))
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fields = append(fields, name, values[name])
	}
	return fields
}

func sizeOf(fields []any) int {
	size := 0
	for _, f := range fields {
		switch v := f.(type) {
		case string:
			size += len(v)
		case []byte:
			size += len(v)
		default:
			size += 16 // a number or time of a user's marshaller
		}
	}
	return size
}
