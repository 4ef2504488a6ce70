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
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/childkey"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// item is one message on its way, encoded. It shares nothing with the caller's
// message, which the caller may change as soon as the call has returned.
type item struct {
	call     *call
	producer string // without shard
	// The entry: in the default format its three values, else fields.
	uuid, metadata, payload string
	fields                  []any
	size                    int // of the entry, in bytes

	trim  []any            // trimming clause of a Guard's publisher; nil: the topic's
	sent  *message.Message // what the entry encodes; a Guard's only
	print []byte           // fingerprint; where it is that of the payload, made when needed
	child bool             // the key is a child key
	claim *childkey.Claim  // on a child key, to be settled
	// printed tells whether print is made: a user's fingerprint may be empty.
	printed bool

	// The flight's own.
	lost  bool      // the reply of an earlier try was lost
	sent1 time.Time // when it was sent first

	// Guarded by the call.
	shardID  string // producer ID on the wire
	mode     Mode
	attempts int
	done     bool
	receipt  Receipt // until done it only says which message it is
}

// appendFields adds names and values of the entry to a command. The values of the
// default format go by pointer, which costs no allocation. (A tracing hook that prints
// arguments shows no payloads, then.)
func (it *item) appendFields(args []any) []any {
	if it.fields != nil {
		return append(args, it.fields...)
	}
	return append(args, wire.FieldUUID, &it.uuid, wire.FieldMetadata, &it.metadata, wire.FieldPayload, &it.payload)
}

// fingerprint is the item's. The default one, of the payload, can't fail, and most
// messages are no duplicates: so it is made when it is asked for.
func (it *item) fingerprint() []byte {
	if !it.printed {
		it.printed = true
		it.print, _ = identity.Sum(nil, &message.Message{Payload: []byte(it.payload)})
	}
	return it.print
}

// attemptMetadata marks an attempt. It is sent in mode IDMPAuto, too, or a requeue
// would be taken for a duplicate.
var attemptMetadata = []string{
	eventkey.MetadataAttempt, wmeta.RequeuerRetries, wmeta.PoisonedTopic, wmeta.PoisonedHandler,
	wire.FieldDeadOrigin, wire.FieldDeadGroup, wire.FieldDeadAt,
}

// encodeAlone is the number of messages from which on a call is encoded by several
// goroutines. The server has nothing to do before the first batch, so there is a
// core to spare.
const encodeAlone = 64

// encodeAll encodes the messages of a call. If one can't be encoded, none is to be
// sent: then it returns the receipts as well.
func (t *topic) encodeAll(ctx context.Context, msgs []*message.Message) (*call, []Receipt) {
	c := newCall(len(msgs))
	items := c.items
	// In a handler the first unkeyed message of a name gets the child key; which one
	// is first must not be a race.
	_, inHandler := eventkey.HandledFrom(ctx)
	if workers := min(runtime.GOMAXPROCS(0), len(msgs)/encodeAlone); workers > 1 && !inHandler {
		var wg sync.WaitGroup
		for w := range workers {
			start, end := w*len(msgs)/workers, (w+1)*len(msgs)/workers
			wg.Go(func() { t.encodeSome(ctx, msgs[start:end], items[start:end]) })
		}
		wg.Wait()
	} else {
		t.encodeSome(ctx, msgs, items)
	}
	bad := slices.IndexFunc(items, func(it item) bool { return it.receipt.Err != nil })
	if bad < 0 {
		return c, nil
	}
	other := becauseOf(items[bad].receipt.Err)
	receipts := make([]Receipt, len(items))
	for i := range items {
		if receipts[i] = items[i].receipt; receipts[i].Err == nil {
			receipts[i].Err = other
		}
	}
	return c, receipts
}

func (t *topic) encodeSome(ctx context.Context, msgs []*message.Message, items []item) {
	for i, msg := range msgs {
		items[i].receipt.Err = t.encode(ctx, msg, &items[i])
	}
}

func (t *topic) encode(ctx context.Context, msg *message.Message, it *item) (err error) {
	defer func() { // perhaps in a goroutine where nobody else would recover
		if p := recover(); p != nil {
			err = final(fmt.Errorf("%w: %v", errPanicked, p))
		}
	}()
	it.receipt.Topic = t.name
	if msg == nil {
		return permanent(errors.New("the message is nil"))
	}
	it.receipt.MessageUUID = msg.UUID
	cfg := &t.engine.cfg
	key, err := identity.Resolve(ctx, t.name, msg, t.cfg.Key, cfg.Key)
	if err != nil {
		return permanent(err)
	}
	it.receipt.Key, it.receipt.IdempotentID, it.child, it.claim = key.Key, key.IdempotentID, key.Child, key.Claim
	if it.producer, err = t.producerOf(msg); err != nil {
		return err
	}
	if t.engine.keepSent || cfg.Marshaller != nil || cfg.Mode == IDMPAuto || t.cfg.Fingerprint != nil {
		err = t.encodeSent(msg, key, it)
	} else {
		it.uuid, it.payload = msg.UUID, string(msg.Payload)
		err = it.encodeMetadata(msg.Metadata, key.Key)
	}
	if err != nil {
		return permanent(err)
	}
	if it.size > cfg.MaxPayload {
		return fmt.Errorf("%w: %d bytes, the limit is %d (Config.MaxPayload)", ErrTooLarge, it.size, cfg.MaxPayload)
	}
	return nil
}

func (it *item) encodeMetadata(md message.Metadata, key string) error {
	metadata, err := wire.EncodeMetadata(md, wire.Extra{Name: eventkey.MetadataKey, Value: key})
	it.metadata = metadata
	it.size = len(it.uuid) + len(it.metadata) + len(it.payload)
	return err
}

// encodeSent goes by way of the message as it is sent, for those who want to see it:
// a fingerprint, a marshaller, a Guard's publisher, and mode IDMPAuto.
func (t *topic) encodeSent(msg *message.Message, key identity.Resolved, it *item) (err error) {
	sent := &message.Message{UUID: msg.UUID, Payload: bytes.Clone(msg.Payload), Metadata: wireMetadata(msg, key.Key)}
	cfg := &t.engine.cfg
	if cfg.Mode == IDMPAuto {
		if err := t.reduceToContent(sent, key); err != nil {
			return err
		}
	}
	if t.cfg.Fingerprint != nil {
		if it.print, err = identity.Sum(t.cfg.Fingerprint, sent); err != nil {
			return err
		}
		it.printed = true
	}
	if t.engine.keepSent {
		it.sent = sent
	}
	it.uuid, it.payload = sent.UUID, string(sent.Payload)
	if cfg.Marshaller == nil {
		return it.encodeMetadata(sent.Metadata, key.Key)
	}
	if it.fields, err = t.engine.marshal(t.name, sent); err != nil {
		return fmt.Errorf("marshal: %w", err)
	}
	it.size = sizeOf(it.fields)
	return nil
}

// maxFields is what a script can hand on to XADD; see unpack in latch.lua.
const maxFields = 3000

// marshal calls the user's marshaller, perhaps in a goroutine where nobody would
// recover from its panic.
func (e *engine) marshal(topic string, msg *message.Message) (fields []any, err error) {
	defer func() {
		if p := recover(); p != nil {
			fields, err = nil, fmt.Errorf("%T panicked: %v", e.cfg.Marshaller, p)
		}
	}()
	values, err := e.cfg.Marshaller.Marshal(topic, msg)
	if err == nil && len(values) > maxFields {
		err = fmt.Errorf("%w: %d fields, the limit is %d", ErrTooLarge, len(values), maxFields)
	}
	return sortedFields(values), err
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
func (t *topic) reduceToContent(sent *message.Message, key identity.Resolved) error {
	keep := t.engine.cfg.ContentMetadata
	// What a produced message only inherited from the handled one is not its own.
	ownAttempt := key.Attempt != (identity.Attempt{}) || key.Origin.Poisoned
	maps.DeleteFunc(sent.Metadata, func(name, _ string) bool {
		return name != eventkey.MetadataKey && !slices.Contains(keep, name) &&
			(!ownAttempt || !slices.Contains(attemptMetadata, name))
	})
	content, err := eventkey.Content(keep...).Key(t.name, sent)
	if err != nil {
		return err
	}
	sent.UUID = identity.StableUUID(eventkey.Join(content, key.IdempotentID))
	return nil
}

// producerOf finds the producer ID and bounds how many a topic gets.
func (t *topic) producerOf(msg *message.Message) (string, error) {
	cfg := &t.engine.cfg
	if cfg.Producer == nil {
		return cfg.ProducerID, nil
	}
	id, err := askProducer(cfg.Producer, t.name, msg)
	switch {
	case errors.Is(err, ErrNoKey):
		id = cfg.ProducerID
	case err != nil:
		return "", permanent(fmt.Errorf("producer ID: %w", err))
	default:
		if err := checkProducerID(id); err != nil {
			return "", fmt.Errorf("producer ID %q: %w", id, err)
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, ok := t.producers[id]; !ok {
		if len(t.producers) >= maxProducers {
			return "", fmt.Errorf("%w: %q would be one more than %d", ErrProducers, id, maxProducers)
		}
		t.producers[id] = struct{}{}
	}
	return id, nil
}

// askProducer asks a user's source, perhaps in a goroutine where nobody would recover
// from its panic.
func askProducer(s eventkey.Source, topic string, msg *message.Message) (id string, err error) {
	defer func() {
		if p := recover(); p != nil {
			id, err = "", fmt.Errorf("%T panicked: %v", s, p)
		}
	}()
	return s.Key(topic, msg)
}

// sortedFields puts a marshaller's fields into a fixed order.
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
