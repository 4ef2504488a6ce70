package eventkey

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/jsonpath"
)

// contentSource is Content or CanonicalJSON.
type contentSource struct {
	name      string // of its constructor
	metadata  []string
	canonical bool
}

// Content makes the key of the message's content: a SHA-256 digest of the payload
// and of the named metadata fields, in any order. A named field that is missing
// differs from an empty one. A message with neither payload nor any of the fields
// has no key.
//
// Two events of equal content are one event then: a second payment of the same
// amount is taken for a retry unless something in the payload distinguishes them.
//
// Every byte counts. JSON that a retry writes with its names in another order, or with
// other white space, is another event, and so another entry: use [CanonicalJSON] there.
func Content(metadataNames ...string) Source { return newContent("Content", false, metadataNames) }

// CanonicalJSON is [Content] for JSON: the digest is of the payload's canonical form,
// which has the names of each object in sorted order, no white space, no byte order
// mark, and no more escapes than needed in strings. Numbers count as they are written: 5
// and 5.0 are two contents, so that no digit of a large number is lost. (RFC 8785 would
// round them to doubles.)
//
// An empty payload is [ErrNoKey]. One that is not JSON, or has a duplicate name
// in an object, is [ErrInvalidMessage].
func CanonicalJSON(metadataNames ...string) Source {
	return newContent("CanonicalJSON", true, metadataNames)
}

func newContent(name string, canonical bool, metadata []string) contentSource {
	metadata = slices.Clone(metadata)
	slices.Sort(metadata)
	return contentSource{name: name, metadata: slices.Compact(metadata), canonical: canonical}
}

func (s contentSource) Key(topic string, msg *message.Message) (string, error) {
	payload, prefix := []byte(msg.Payload), "sha256:"
	if s.canonical {
		if jsonpath.Blank(payload) {
			return "", noKey("payload", topic, msg)
		}
		root, err := jsonpath.Read(payload)
		if err != nil {
			return "", invalid("message %q for topic %q: the payload has no canonical form: %w", msg.UUID, topic, err)
		}
		payload, prefix = root.AppendTo(nil, nil), "json-sha256:"
	}
	empty := len(payload) == 0
	h := sha256.New()
	// Every part is preceded by its length, so that bytes can't move from one
	// part into the next without changing the digest.
	writeFramed(h.Write, payload)
	for _, name := range s.metadata {
		value, ok := msg.Metadata[name]
		if !ok {
			continue
		}
		empty = empty && value == ""
		writeFramed(h.Write, []byte(name))
		writeFramed(h.Write, []byte(value))
	}
	if empty {
		return "", noKey("payload", topic, msg)
	}
	return prefix + base64.RawURLEncoding.EncodeToString(h.Sum(nil)), nil
}

func (s contentSource) Validate() error {
	if slices.Contains(s.metadata, "") {
		return fmt.Errorf("eventkey.%s was given an empty metadata name", s.name)
	}
	return nil
}

// writeFramed writes the length of part, then part.
func writeFramed(write func([]byte) (int, error), part []byte) {
	var size [8]byte
	binary.BigEndian.PutUint64(size[:], uint64(len(part)))
	_, _ = write(size[:])
	_, _ = write(part)
}
