// Package dedupe keeps the record of which events a handler has handled.
//
// A [Store] gives out claims. A handler runs only while it holds the claim of its
// event; when it has succeeded, its claim is committed together with the messages that
// it produced; when it has failed, the claim is rolled back and nothing remains.
//
//	absent ──Claim──► claimed ──Commit──► done ──retention──► absent
//	   ▲                 │
//	   └──Rollback, or the lease ran out
//
// There are two kinds of stores. A leased one (memory, redisstore) lends the claim for a
// while and renews it as long as the process lives; a process that dies, freezes or
// is cut off loses it, and another may take over. A transactional one (sqlstore,
// pgxstore) makes the claim part of the handler's own transaction, so that what the
// handler writes and the record that it did commit together.
//
// Package middleware is what most programs use; it drives a Store. For stores of one's own
// package dedupe/storeutil has the common parts, and package dedupe/storetest the tests.
package dedupe
