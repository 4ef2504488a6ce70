package subscriber

import (
	"os"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/google/uuid"
)

// Names of log fields, one table for the package.
const (
	fieldTopic    = "topic"
	fieldGroup    = "group"
	fieldConsumer = "consumer"
	fieldEntry    = "entry_id"
	fieldCount    = "count"
	fieldReason   = "reason"
	fieldEntries  = "entries"
)

// handbackConsumer is the consumer that entries are handed back to. The name is known
// to operators and to other versions of this library.
const handbackConsumer = "handback"

func hostName() string {
	if name, err := os.Hostname(); err == nil && name != "" {
		return name[:min(len(name), maxConsumerBytes)]
	}
	return "consumer"
}

// incarnation makes a consumer name that nobody had before.
func incarnation(prefix string) string { return prefix + "-" + uuid.NewString()[:13] }

func (s *subscription) fields(more watermill.LogFields) watermill.LogFields {
	fields := watermill.LogFields{fieldTopic: s.topic}
	if s.cfg.Group != "" {
		fields[fieldGroup], fields[fieldConsumer] = s.cfg.Group, s.consumer
	}
	return fields.Add(more)
}
