// Package storeutil is for authors of stores: what every dedupe.Store needs and none should
// write by itself. A leased store renews its claims by a [Lease]; every store keeps a
// [Digest] of the fingerprint, and may keep the outputs as one value ([JoinOutputs]).
//
// Package dedupe/storetest checks the store that comes of it.
package storeutil

import "errors"

// Errors of the helpers, which package dedupe has under the same names. They are part of
// the contract of dedupe.Store, so a store passes them on.
var (
	// ErrLeaseLost is dedupe.ErrLeaseLost.
	ErrLeaseLost = errors.New("claim was lost")
	// ErrCorrupt is dedupe.ErrCorrupt.
	ErrCorrupt = errors.New("record can't be read")
)
