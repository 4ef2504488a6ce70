package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

// outputVersion begins every recorded output.
const outputVersion = 1

// EncodeOutput makes the record of a message that a handler produced: UUID, all of its
// metadata, payload. Unlike the fields of an entry it keeps the child key, since the
// message is still to be published. The same message gives the same bytes.
func EncodeOutput(msg *message.Message) []byte {
	size := 1 + len(msg.UUID) + len(msg.Payload) + 2*binary.MaxVarintLen32
	for name, value := range msg.Metadata {
		size += len(name) + len(value) + 2*binary.MaxVarintLen32
	}
	b := append(make([]byte, 0, size), outputVersion)
	b = appendString(b, msg.UUID)
	b = binary.AppendUvarint(b, uint64(len(msg.Metadata)))
	for _, name := range slices.Sorted(maps.Keys(msg.Metadata)) {
		b = appendString(appendString(b, name), msg.Metadata[name])
	}
	return append(b, msg.Payload...)
}

func appendString(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// DecodeOutput reads what EncodeOutput wrote. Whatever it is given, it does not panic.
func DecodeOutput(b []byte) (*message.Message, error) {
	if len(b) == 0 || b[0] != outputVersion {
		return nil, errors.New("recorded output: unknown version")
	}
	b = b[1:]
	next := func() (s string, err error) {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return "", errors.New("recorded output is cut off")
		}
		s, b = string(b[n:n+int(size)]), b[n+int(size):]
		return s, nil
	}
	msgUUID, err := next()
	if err != nil {
		return nil, err
	}
	count, n := binary.Uvarint(b)
	if n <= 0 || count > uint64(len(b)) {
		return nil, errors.New("recorded output is cut off")
	}
	b = b[n:]
	md := make(message.Metadata, count)
	for range count {
		name, errName := next()
		value, errValue := next()
		if err := errors.Join(errName, errValue); err != nil {
			return nil, fmt.Errorf("metadata: %w", err)
		}
		md[name] = value
	}
	msg := message.NewMessage(msgUUID, slices.Clone(b))
	msg.Metadata = md
	return msg, nil
}
