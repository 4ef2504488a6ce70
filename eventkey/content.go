package eventkey

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"
)

type contentSource []string

// Content makes the key of the message's content: a SHA-256 digest of the payload
// and of the named metadata fields, in any order. A named field that is missing
// differs from an empty one. A message with neither payload nor any of the fields
// has no key.
//
// Two events of equal content are one event then: a second payment of the same
// amount is taken for a retry unless something in the payload tells them apart.
func Content(metadataNames ...string) Source {
	names := slices.Clone(metadataNames)
	slices.Sort(names)
	return contentSource(slices.Compact(names))
}

func (names contentSource) Key(topic string, msg *message.Message) (string, error) {
	empty := len(msg.Payload) == 0
	h := sha256.New()
	// Every part is preceded by its length, so that bytes can't move from one
	// part into the next without changing the digest.
	writeFramed(h.Write, msg.Payload)
	for _, name := range names {
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
	return "sha256:" + base64.RawURLEncoding.EncodeToString(h.Sum(nil)), nil
}

func (names contentSource) Validate() error {
	if slices.Contains(names, "") {
		return errors.New("eventkey.Content was given an empty metadata name")
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
