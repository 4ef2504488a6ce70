// Package wire turns messages into fields of stream entries and back, in the
// format of watermill-redisstream: _watermill_message_uuid, metadata as a
// MessagePack map, payload.
//
// Encoding is deterministic: the same message gives the same bytes, field by field
// and in order. A server that recognises duplicates by hashing the entry needs
// that, and so does everything that compares a stored entry with a message.
package wire

import (
	"fmt"
	"strings"

	"github.com/onceward/watermill-idempotent/eventkey"
)

// Names of the fields of an entry.
const (
	FieldUUID     = "_watermill_message_uuid"
	FieldMetadata = "metadata"
	FieldPayload  = "payload"
)

// isNeverSent reports whether metadata of that name stays inside the process.
func isNeverSent(name string) bool { return strings.HasPrefix(name, eventkey.MetadataChildKey) }

// Error is about an entry that can't be decoded, now or ever.
type Error struct {
	// Stream and ID are those of the entry.
	Stream, ID string
	// Err is what is wrong with it.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("entry %s of stream %q can't be decoded: %v", e.ID, e.Stream, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
