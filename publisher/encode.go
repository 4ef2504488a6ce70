package publisher

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/childkey"
	"github.com/onceward/watermill-idempotent/internal/fault"
	"github.com/onceward/watermill-idempotent/internal/identity"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
	"github.com/onceward/watermill-idempotent/publisher/internal/batch"
)

// encoder makes items of the messages of one topic.
type encoder struct {
	cfg      *Config
	topic    string
	settings TopicConfig // with defaults
	keepSent bool

	mu        sync.Mutex
	producers map[string]struct{}
}

// newEncoder makes the encoder of a topic.
func newEncoder(cfg *Config, topic string, settings TopicConfig, keepSent bool) encoder {
	return encoder{cfg: cfg, topic: topic, settings: settings, keepSent: keepSent, producers: make(map[string]struct{})}
}

// note is what this package keeps with an item that needs it.
type note struct {
	err   error            // why it can't be encoded
	claim *childkey.Claim  // on a child key, to be ended
	sent  *message.Message // what the entry encodes; a Guard's only

	sending *Sending // what its hooks have seen; nil where none does
}

// noteOf returns the note of an item, for reading.
func noteOf(it *batch.Item) note {
	if n, ok := it.CallerData.(*note); ok {
		return *n
	}
	return note{}
}

// addNote returns the note of an item, for writing.
func addNote(it *batch.Item) *note {
	n, ok := it.CallerData.(*note)
	if !ok {
		n = new(note)
		it.CallerData = n
	}
	return n
}

// endClaims ends the claims of a call's messages by what became of these. tried is false when
// nothing was sent.
func endClaims(c *batch.Call, receipts []Receipt, tried bool) {
	for i := range c.Items {
		claim := noteOf(&c.Items[i]).claim
		if claim == nil {
			continue
		}
		switch err := receipts[i].Err; {
		case err == nil:
			claim.End(childkey.Sent)
		case !tried || errors.Is(err, ErrNotSent):
			claim.End(childkey.NotSent)
		default:
			claim.End(childkey.MaybeSent)
		}
	}
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
func (e *encoder) encodeAll(ctx context.Context, msgs []*message.Message, sent sendings, begun time.Time) (*batch.Call, []Receipt) {
	c := batch.NewCall(len(msgs), begun)
	items := c.Items
	for i, s := range sent {
		if s != nil {
			addNote(&items[i]).sending = s
		}
	}
	// In a handler the first unkeyed message of a name gets the child key; which one
	// is first must not be a race.
	_, inHandler := eventkey.HandledFrom(ctx)
	if workers := min(runtime.GOMAXPROCS(0), len(msgs)/encodeAlone); workers > 1 && !inHandler {
		var wg sync.WaitGroup
		for w := range workers {
			start, end := w*len(msgs)/workers, (w+1)*len(msgs)/workers
			wg.Go(func() { e.encodeSome(ctx, msgs[start:end], items[start:end]) })
		}
		wg.Wait()
	} else {
		e.encodeSome(ctx, msgs, items)
	}
	var cause error
	for i := range items {
		if cause = noteOf(&items[i]).err; cause != nil {
			break
		}
	}
	if cause == nil {
		return c, nil
	}
	other := becauseOf(cause)
	receipts := make([]Receipt, len(items))
	for i := range items {
		it := &items[i]
		receipts[i] = Receipt{
			Topic: e.topic, MessageUUID: it.MessageUUID, Key: it.Key, IdempotentID: it.IdempotentID,
			Err: cmp.Or(noteOf(it).err, other),
		}
	}
	return c, receipts
}

func (e *encoder) encodeSome(ctx context.Context, msgs []*message.Message, items []batch.Item) {
	for i, msg := range msgs {
		if err := e.encode(ctx, msg, &items[i]); err != nil {
			addNote(&items[i]).err = err
		}
	}
}

func (e *encoder) encode(ctx context.Context, msg *message.Message, it *batch.Item) (err error) {
	defer func() { // perhaps in a goroutine where nobody else would recover
		if p := recover(); p != nil {
			err = appender.Final(fmt.Errorf("%w: %v", batch.ErrPanicked, p))
		}
	}()
	if msg == nil {
		return fault.As(ErrInvalidMessage, errors.New("the message is nil"))
	}
	it.MessageUUID = msg.UUID
	key, err := identity.Resolve(ctx, e.topic, msg, e.settings.Key, e.cfg.Key)
	if err != nil {
		return permanent(err)
	}
	it.Key, it.IdempotentID, it.Child = key.Key, key.IdempotentID, key.Child
	if key.Claim != nil {
		addNote(it).claim = key.Claim
	}
	if it.Producer, err = e.producerOf(msg); err != nil {
		return err
	}
	if e.keepSent || e.cfg.Marshaller != nil || e.cfg.Mode == ModeIDMPAuto || e.settings.Fingerprint != nil {
		err = e.encodeSent(msg, key, it)
	} else {
		it.UUID, it.Payload = msg.UUID, string(msg.Payload)
		err = encodeMetadata(it, noteOf(it).sending.carryOn(msg.Metadata))
	}
	if err != nil {
		return permanent(err)
	}
	if it.Size > e.cfg.MaxPayload {
		return fmt.Errorf("%w: %d bytes, the limit is %d (Config.MaxPayload)", ErrTooLarge, it.Size, e.cfg.MaxPayload)
	}
	return nil
}

func encodeMetadata(it *batch.Item, md message.Metadata) (err error) {
	if it.Metadata, err = wire.EncodeMetadata(md, wire.Extra{Name: eventkey.MetadataKey, Value: it.Key}); err != nil {
		return fault.As(ErrInvalidMessage, err)
	}
	it.Size = len(it.UUID) + len(it.Metadata) + len(it.Payload)
	return nil
}

// encodeSent goes by way of the message as it is sent, for those who want to see it:
// a fingerprint, a marshaller, a Guard's publisher, and mode IDMPAuto.
func (e *encoder) encodeSent(msg *message.Message, key identity.Resolved, it *batch.Item) (err error) {
	sent := &message.Message{UUID: msg.UUID, Payload: bytes.Clone(msg.Payload), Metadata: wireMetadata(msg, key.Key)}
	if e.cfg.Mode == ModeIDMPAuto {
		if err := e.reduceToContent(sent, key); err != nil {
			return err
		}
	}
	if e.settings.Fingerprint != nil {
		if it.Print, err = identity.Sum(e.settings.Fingerprint, sent); err != nil {
			return err
		}
		it.Printed = true
	}
	if e.cfg.Mode != ModeIDMPAuto { // after all that compares
		sent.Metadata = noteOf(it).sending.carryOn(sent.Metadata)
	}
	if e.keepSent {
		addNote(it).sent = sent
	}
	it.UUID, it.Payload = sent.UUID, string(sent.Payload)
	if e.cfg.Marshaller == nil {
		return encodeMetadata(it, sent.Metadata)
	}
	if it.Fields, err = e.marshal(sent); err != nil {
		return fmt.Errorf("marshal: %w", err)
	}
	it.Size = sizeOf(it.Fields)
	return nil
}

// maxFields is what a script can hand on to XADD; see unpack in latch.lua.
const maxFields = 3000

// marshal calls the user's marshaller, perhaps in a goroutine where nobody would
// recover from its panic.
func (e *encoder) marshal(msg *message.Message) (fields []any, err error) {
	defer func() {
		if p := recover(); p != nil {
			fields, err = nil, fmt.Errorf("%T panicked: %v", e.cfg.Marshaller, p)
		}
	}()
	values, err := e.cfg.Marshaller.Marshal(e.topic, msg)
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
func (e *encoder) reduceToContent(sent *message.Message, key identity.Resolved) error {
	keep := e.cfg.ContentMetadata
	// What a produced message only inherited from the handled one is not its own.
	ownAttempt := key.Attempt != (identity.Attempt{}) || key.Origin.Poisoned
	maps.DeleteFunc(sent.Metadata, func(name, _ string) bool {
		return name != eventkey.MetadataKey && !slices.Contains(keep, name) &&
			(!ownAttempt || !slices.Contains(attemptMetadata, name))
	})
	content, err := eventkey.Content(keep...).Key(e.topic, sent)
	if err != nil {
		return err
	}
	sent.UUID = identity.StableUUID(eventkey.Join(content, key.IdempotentID))
	return nil
}

// producerOf finds the producer ID and bounds how many a topic gets.
func (e *encoder) producerOf(msg *message.Message) (string, error) {
	if e.cfg.Producer == nil {
		return e.cfg.ProducerID, nil
	}
	id, err := askProducer(e.cfg.Producer, e.topic, msg)
	switch {
	case errors.Is(err, ErrNoKey):
		id = e.cfg.ProducerID
	case err != nil:
		return "", permanent(fmt.Errorf("producer ID: %w", err))
	default:
		if err := checkProducerID(id); err != nil {
			return "", fmt.Errorf("producer ID %q: %w", id, err)
		}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if _, ok := e.producers[id]; !ok {
		if len(e.producers) >= maxProducers {
			return "", fmt.Errorf("%w: %q would be one more than %d", ErrProducers, id, maxProducers)
		}
		e.producers[id] = struct{}{}
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

// decoderOf returns what reads an entry back that a marshaller has made, nil being the
// default one.
func decoderOf(m redisstream.Marshaller) func(topic, id string, values map[string]any) (*message.Message, error) {
	if m == nil {
		return wire.Decode
	}
	return func(topic, id string, values map[string]any) (msg *message.Message, err error) {
		defer func() {
			if p := recover(); p != nil {
				msg, err = nil, fmt.Errorf("unmarshal entry %s of %q: %T panicked: %v", id, topic, m, p)
			}
		}()
		msg, err = m.(redisstream.Unmarshaller).Unmarshal(values)
		if err != nil {
			return nil, fmt.Errorf("unmarshal entry %s of %q: %w", id, topic, err)
		}
		return msg, nil
	}
}
