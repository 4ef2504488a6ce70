// Package eventkey says which messages are the same event.
//
// A retry of a publish is a new call with, often, a new message UUID. What stays
// the same is the event: payment p9001 of order 1001. An idempotency key names
// that event, and everything else follows from it: a producer that appends an
// event once, and a handler that handles it once, compare keys, never messages.
//
// # What you need first
//
// Say once, in the configuration of publisher and middleware, where the key of a message
// is: that is a [Source].
//
//	Key: eventkey.Template("pay:{$.order_id}:{$.payment_id}")
//
// [Template] makes the key of fields of the payload and of metadata; [Metadata] takes a
// metadata field that has it, and [First] the first source that finds one. Where typed code
// knows the key, set it on the message, made by [Join]: it goes before every source.
//
//	msg.Metadata.Set(eventkey.MetadataKey, eventkey.Join("pay", orderID, paymentID))
//
// A key is unique per topic, across producers, since a consumer does not see
// which producer an event comes from. Where orders are placed and shipped on one
// topic, the keys are "placed:1001" and "shipped:1001", not "1001" twice.
//
// # What you may need later
//
//   - A [Fingerprint] says what must be equal in two messages of one key; a difference
//     is a conflict, since the key was chosen too coarsely. It is the whole payload unless
//     you say otherwise: [JSONWithout] leaves out fields that differ in every retry,
//     [JSONOnly] compares nothing but some.
//   - [NextAttempt] marks a message that repeats an event on purpose.
//   - [MessageUUID], [Content] and [CanonicalJSON] are for messages without a name for
//     their event, [Func] is for a source of your own.
//   - [WithHandled] is for handlers outside of package middleware: what they publish
//     then gets a key that is the same when they run again.
//
// # Paths
//
// A path names a field of a JSON payload. [Template], [JSONWithout] and [JSONOnly] read
// paths; the conflict of a publisher names a field by one, which can be copied back. After the $, which is the whole payload, a path has these steps:
//
//	.name          a member of an object; letters, digits, _ and - need no quotes
//	["odd.name"]   any member, its name written as a JSON string
//	[0]            an element of an array, counted from 0
//	[*]            each element of an array, for fingerprints only
//
// as in $.items[0].id, $.labels["a.b"], $.reactions["+1"] and $.variants[*].updated_at.
// A dot always separates two names. A name with $ or @ needs quotes only where a dot
// follows an @: $.@id is fine, and $.@odata.etag is refused, as it may stand for
// $["@odata.etag"] or for $["@odata"].etag. Fingerprints also take a path without its
// beginning: items[0].id for $.items[0].id, ["a.b"] for $["a.b"].
//
// A byte order mark in front of a payload is ignored wherever JSON is read.
package eventkey
