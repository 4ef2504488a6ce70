package wire

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"
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
	encoded, err := encodeMetadata(md, nil)
	if err != nil {
		return nil, fmt.Errorf("metadata of message %q: %w", msg.UUID, err)
	}
	return Fields{
		FieldUUID, msg.UUID,
		FieldMetadata, []byte(encoded),
		FieldPayload, []byte(msg.Payload),
	}, nil
}

// Extra is a metadata field that goes along with a message's own.
type Extra struct{ Name, Value string }

// EncodeMetadata makes the value of the metadata field: that of md with extra in it,
// whatever md has under its name.
func EncodeMetadata(md message.Metadata, extra Extra) (string, error) {
	return encodeMetadata(md, &extra)
}

// encodeMetadata makes a MessagePack map with sorted names; no metadata is an empty
// value, not an empty map, as watermill-redisstream has it.
//
// A map of strings takes three forms of MessagePack. Written directly they cost a
// quarter of what the library takes, on the path of every message; the tests compare
// the bytes with the library's.
func encodeMetadata(md message.Metadata, extra *Extra) (string, error) {
	if md.Get(FieldUUID) != "" {
		return "", fmt.Errorf("the name %q is reserved for the message UUID", FieldUUID)
	}
	var few [16]string
	names, size := few[:0], 16
	if extra != nil {
		names = append(names, extra.Name)
		size += len(extra.Name) + len(extra.Value)
	}
	for name, value := range md {
		if !isNeverSent(name) && (extra == nil || name != extra.Name) {
			names = append(names, name)
			size += len(name) + len(value) + 10
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	slices.Sort(names)
	var b builder
	b.Grow(size)
	b.head(len(names), 0x80, 15, 0xde)
	for _, name := range names {
		value := md[name]
		if extra != nil && name == extra.Name {
			value = extra.Value
		}
		b.string(name)
		b.string(value)
	}
	return b.String(), nil
}

// builder writes MessagePack.
type builder struct{ strings.Builder }

// string writes a fixstr, str 8, str 16 or str 32.
func (b *builder) string(s string) {
	if n := len(s); n > 31 && n <= math.MaxUint8 {
		b.WriteByte(0xd9)
		b.WriteByte(byte(n))
	} else {
		b.head(n, 0xa0, 31, 0xda)
	}
	b.WriteString(s)
}

// head writes a length: in the fixed form up to most, else in 16 or 32 bits, whose
// codes follow each other.
func (b *builder) head(n int, fixed byte, most int, code16 byte) {
	switch {
	case n <= most:
		b.WriteByte(fixed | byte(n))
	case n <= math.MaxUint16:
		b.Write([]byte{code16, byte(n >> 8), byte(n)})
	default:
		b.Write([]byte{code16 + 1, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
}
