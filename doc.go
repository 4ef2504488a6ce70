// Package idempotent is the tour of watermill-idempotent: an idempotent Redis
// Streams publisher for Watermill.
//
// Package [github.com/onceward/watermill-idempotent/publisher] appends an event
// once however often it is published, and package
// [github.com/onceward/watermill-idempotent/eventkey] says which messages are
// the same event. This package itself exports nothing.
package idempotent
