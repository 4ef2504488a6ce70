package eventkey

import (
	"strconv"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// NextAttempt marks a message as a deliberate publish of an event that was
// published before, such as a replay from an archive: it keeps its key and is not
// taken for a duplicate of its earlier attempt. A handler that already succeeded with
// the key still skips it.
//
// A dead letter of package subscriber needs no such mark to be published to its topic
// again: the entry that it was distinguishes it. Each dead letter can be copied back once; one
// copied back a second time is a duplicate of the first copy, unless it is marked.
//
// Call it once for each deliberate publish, before the first try, so that retries
// of that publish are still recognised.
func NextAttempt(msg *message.Message) {
	if msg.Metadata == nil {
		msg.Metadata = make(message.Metadata)
	}
	msg.Metadata.Set(MetadataAttempt, strconv.FormatUint(wmeta.Counter(msg.Metadata, MetadataAttempt)+1, 10))
}
