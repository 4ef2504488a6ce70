// Package idempotent publishes an event to a Redis stream once, reads it, and handles it
// once, with Watermill. [Open] makes what a service needs for that, in one call and under
// one name; each part is also made by itself:
//
//   - [github.com/onceward/watermill-idempotent/eventkey] says which messages are the
//     same event.
//   - [github.com/onceward/watermill-idempotent/publisher] appends an event once,
//     however often it is published.
//   - [github.com/onceward/watermill-idempotent/subscriber] reads a consumer group:
//     fast, without losing an entry, and without handing out what it or another
//     consumer holds.
//   - [github.com/onceward/watermill-idempotent/middleware] handles an event once, with
//     any Watermill subscriber, by a store of
//     [github.com/onceward/watermill-idempotent/dedupe].
//   - [github.com/onceward/watermill-idempotent/cqrshooks] does both for Watermill's CQRS
//     component.
package idempotent
