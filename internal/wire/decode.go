package wire

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"
	"github.com/vmihailenco/msgpack"
)

// Decode makes a message of an entry as go-redis returns it. What can't be decoded
// is an [*Error], never a panic.
//
// An entry without the UUID's field was written by somebody else. Its payload field, if
// it has one, is the payload, every other field is metadata, and the message UUID
// is derived from stream and entry ID: the same on every delivery. An entry of
// Watermill's format may have further fields; they become metadata as well, unless
// the metadata has the name already: only the fields of a dead letter go before it. So
// a dead letter has its reason in its metadata; one whose own metadata can't be decoded
// has that there as it was stored.
func Decode(stream, id string, values map[string]any) (*message.Message, error) {
	fields := make(map[string]string, len(values))
	for name, value := range values {
		switch v := value.(type) {
		case string:
			fields[name] = v
		case []byte:
			fields[name] = string(v)
		default:
			return nil, &Error{stream, id, fmt.Errorf("field %q is a %T, not a string", name, value)}
		}
	}
	return decode(stream, id, fields)
}

// DecodePairs is [Decode] for a raw reply: name, value, name, value. Of a duplicate name
// the last value counts, as for go-redis.
func DecodePairs(stream, id string, pairs []string) (*message.Message, error) {
	if len(pairs)%2 != 0 {
		return nil, &Error{stream, id, fmt.Errorf("%d names and values don't make pairs", len(pairs))}
	}
	if msg, ok := decodePlain(pairs); ok {
		return msg, nil
	}
	fields := make(map[string]string, len(pairs)/2)
	for i := 0; i < len(pairs); i += 2 {
		fields[pairs[i]] = pairs[i+1]
	}
	return decode(stream, id, fields)
}

// decodePlain reads the entries that nearly all are, those with Watermill's three
// fields and no other, without a map of the fields. It leaves the rest to decode, entries
// with faults too.
func decodePlain(pairs []string) (*message.Message, bool) {
	var msgUUID, metadata, payload string
	ours := false
	for i := 0; i < len(pairs); i += 2 {
		switch pairs[i] {
		case FieldUUID:
			msgUUID, ours = pairs[i+1], true
		case FieldMetadata:
			metadata = pairs[i+1]
		case FieldPayload:
			payload = pairs[i+1]
		default:
			return nil, false
		}
	}
	if !ours {
		return nil, false
	}
	msg := message.NewMessage(msgUUID, message.Payload(payload))
	if metadata == "" {
		return msg, true
	}
	md, err := decodeMetadata(metadata)
	if err != nil {
		return nil, false
	}
	for name := range md {
		if isNeverSent(name) {
			delete(md, name)
		}
	}
	msg.Metadata = md
	return msg, true
}

func decode(stream, id string, fields map[string]string) (*message.Message, error) {
	msgUUID, ours := fields[FieldUUID]
	md := make(message.Metadata, len(fields))
	if ours {
		var err error
		md, err = decodeMetadata(fields[FieldMetadata])
		if _, dead := fields[FieldDeadOrigin]; dead && err != nil {
			// A dead letter may be one because of this very field. It stays as it is.
			md, err = message.Metadata{FieldMetadata: fields[FieldMetadata]}, nil
		}
		if err != nil {
			return nil, &Error{stream, id, fmt.Errorf("field %q: %w", FieldMetadata, err)}
		}
	} else {
		msgUUID = entryUUID(stream, id)
	}
	for name, value := range fields {
		if name == FieldUUID || name == FieldPayload || ours && name == FieldMetadata {
			continue
		}
		// A dead letter that was copied back by a publisher has its marks in its metadata.
		// If it fails again, the fields have those of the newer one.
		if _, set := md[name]; !set || isDeadMark(name) {
			md[name] = value
		}
	}
	for name := range md {
		if isNeverSent(name) {
			delete(md, name)
		}
	}
	msg := message.NewMessage(msgUUID, message.Payload(fields[FieldPayload]))
	msg.Metadata = md
	return msg, nil
}

func decodeMetadata(encoded string) (md map[string]string, err error) {
	md = make(map[string]string)
	if encoded == "" {
		return md, nil
	}
	// The decoder is written for trusted input.
	defer func() {
		if p := recover(); p != nil {
			md, err = nil, fmt.Errorf("MessagePack decoder panicked: %v", p)
		}
	}()
	if err := msgpack.Unmarshal([]byte(encoded), &md); err != nil {
		return nil, err
	}
	if md == nil { // a MessagePack nil
		md = make(map[string]string)
	}
	return md, nil
}

var entryNamespace = uuid.NewSHA1(uuid.NameSpaceURL, []byte("https://github.com/onceward/watermill-idempotent/entry"))

// entryUUID names an entry that has no message UUID. An entry ID has no slash, so
// two entries never share the text that is hashed.
func entryUUID(stream, id string) string {
	return uuid.NewSHA1(entryNamespace, []byte(id+"/"+stream)).String()
}
