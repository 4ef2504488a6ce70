// Package eventkey says which messages are the same event.
//
// A retry of a publish is a new call with, often, a new message UUID. What stays
// the same is the event: payment p9001 of order 1001. An idempotency key names
// that event, and everything else follows from it: a producer that appends an
// event once, and a handler that handles it once, compare keys, never messages.
//
//   - A [Source] takes the key from a message: [Template], [Metadata],
//     [MessageUUID], [Content], [CanonicalJSON], [First], or a [Func] of yours.
//   - A [Fingerprint] says what must be equal in two messages of one key. A
//     difference is a conflict: the key was chosen too coarsely.
//   - [Resolve] finds the key of a message that is about to be published, and
//     its idempotent ID, which is the key together with the attempt that the
//     message is ([Attempt]) and the place where it was poisoned.
//   - [Handled] tells, on a context, which event is being handled, so that what
//     a handler publishes gets a key that is the same when it runs again.
//
// A key is unique per topic, across producers, since a consumer does not see
// which producer an event comes from. Where orders are placed and shipped on one
// topic, the keys are "placed:1001" and "shipped:1001", not "1001" twice.
//
// # Paths
//
// A path names a field of a JSON payload. [Template], [JSONWithout] and [JSONOnly] read
// paths; [FirstDifference], and with it the conflict of a publisher, writes them so that
// they can be copied back. After the $, which is the whole payload, a path has these steps:
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
