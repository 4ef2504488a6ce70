package wire

import (
	"strings"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// Names of the fields that an entry has in the dead-letter stream, in addition to its
// own. Reading such an entry as a message gives them as metadata, hence the names.
const (
	FieldDeadReason = wmeta.DeadReason
	FieldDeadError  = wmeta.DeadError
	FieldDeadCount  = wmeta.DeadCount
	FieldDeadGroup  = wmeta.DeadGroup
	FieldDeadOrigin = wmeta.DeadOrigin
	FieldDeadAt     = wmeta.DeadAt
)

func isDeadMark(name string) bool { return strings.HasPrefix(name, wmeta.DeadPrefix) }
