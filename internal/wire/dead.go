package wire

import "strings"

// Names of the fields that an entry has in the dead-letter stream, in addition to its
// own. They are known to operators and stored on servers. Reading such an entry as a
// message gives them as metadata.
const (
	FieldDeadReason = "_dead_reason" // why it is here: one of a few words, or a handler's own
	FieldDeadError  = "_dead_error"  // what the handler or the decoder said
	FieldDeadCount  = "_dead_count"  // how often it was handed out
	FieldDeadGroup  = "_dead_group"  // the group that gave up on it
	FieldDeadOrigin = "_dead_origin" // stream and entry ID, "orders 1700000000000-0"
	FieldDeadAt     = "_dead_at"     // when, RFC 3339
)

// deadPrefix begins all of these names.
const deadPrefix = "_dead_"

func isDeadMark(name string) bool { return strings.HasPrefix(name, deadPrefix) }
