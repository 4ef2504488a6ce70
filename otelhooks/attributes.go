package otelhooks

import "go.opentelemetry.io/otel/attribute"

// Attributes by OpenTelemetry's semantic conventions for messaging, as of version 1.37. Their
// names are written out: a package of the conventions would tie a user to its version.
const (
	keySystem        = attribute.Key("messaging.system")
	keyDestination   = attribute.Key("messaging.destination.name")
	keyGroup         = attribute.Key("messaging.consumer.group.name")
	keyOperation     = attribute.Key("messaging.operation.name")
	keyOperationType = attribute.Key("messaging.operation.type")
	keyMessageID     = attribute.Key("messaging.message.id") // the entry's
	keyBodySize      = attribute.Key("messaging.message.body.size")
	keyErrorType     = attribute.Key("error.type")
)

// Attributes of our own. Values that end in _seconds are seconds.
const (
	keyVerdict      = attribute.Key("idempotent.verdict")
	keyMode         = attribute.Key("idempotent.mode")
	keyAttempts     = attribute.Key("idempotent.attempts")
	keyResent       = attribute.Key("idempotent.resent")
	keyOriginalAge  = attribute.Key("idempotent.original.age_seconds")
	keyCallMessages = attribute.Key("idempotent.call.messages")
	keyEventKey     = attribute.Key("idempotent.key")

	keyHandler     = attribute.Key("idempotent.handler")
	keyOutcome     = attribute.Key("idempotent.outcome")
	keyDelivery    = attribute.Key("idempotent.delivery.count")
	keyRedelivered = attribute.Key("idempotent.delivery.redelivered")
	keyEntryAge    = attribute.Key("idempotent.entry.age_seconds")
	keyOutputs     = attribute.Key("idempotent.outputs")
	keyHandledAge  = attribute.Key("idempotent.handled.age_seconds")
	keyHandledBy   = attribute.Key("idempotent.handled.by")
	keyAfter       = attribute.Key("idempotent.retry_after_seconds")

	keyDeadReason = attribute.Key("idempotent.dead_letter.reason")
	keyDeadTopic  = attribute.Key("idempotent.dead_letter.topic")
	keyDeadID     = attribute.Key("idempotent.dead_letter.id")
)

// system is the value of messaging.system: Redis is none of those that the conventions list,
// which may then be named by itself.
var system = keySystem.String("redis")
