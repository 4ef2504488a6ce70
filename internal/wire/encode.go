package wire

import (
	"bytes"
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/vmihailenco/msgpack"
)

// Fields are names and values of an entry, in order, as arguments of XADD. Names
// are strings, values strings or byte slices.
type Fields []any

// Encode makes the fields of a message, always in the order UUID, metadata,
// payload. md stands in for the message's own metadata, which is not looked at, so
// that a caller can send more than it was given without writing to a message that
// is not its own; nil is no metadata. The payload is not copied.
//
// Metadata whose name begins with idempotency_child_key is left out. A metadata
// field named like the UUID's field is refused, as watermill-redisstream does.
func Encode(msg *message.Message, md message.Metadata) (Fields, error) {
	if md.Get(FieldUUID) != "" {
		return nil, fmt.Errorf("metadata %q of message %q: the name is reserved for the message UUID", FieldUUID, msg.UUID)
	}
	encoded, err := encodeMetadata(md)
	if err != nil {
		return nil, fmt.Errorf("metadata of message %q: %w", msg.UUID, err)
	}
	return Fields{
		FieldUUID, msg.UUID,
		FieldMetadata, encoded,
		FieldPayload, []byte(msg.Payload),
	}, nil
}

// encodeMetadata makes a MessagePack map with sorted names; no metadata is an
// empty value, not an empty map, as watermill-redisstream has it.
func encodeMetadata(md map[string]string) ([]byte, error) {
	size, hidden := 8, false
	for name, value := range md {
		size += len(name) + len(value) + 6
		hidden = hidden || isNeverSent(name)
	}
	if hidden {
		sent := make(map[string]string, len(md))
		for name, value := range md {
			if !isNeverSent(name) {
				sent[name] = value
			}
		}
		md = sent
	}
	if len(md) == 0 {
		return []byte{}, nil
	}
	buf := bytes.NewBuffer(make([]byte, 0, size))
	if err := msgpack.NewEncoder(buf).SortMapKeys(true).Encode(md); err != nil {
		return nil, err
	}
	return buf.Bytes(), nil
}
