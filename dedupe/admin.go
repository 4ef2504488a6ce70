package dedupe

import (
	"context"
	"iter"
	"time"
)

// Admin is for operators. Stores implement it where they can.
type Admin interface {
	// Lookup returns the record of k; an error that matches ErrNotFound if there is
	// none.
	Lookup(ctx context.Context, k Key) (Record, error)
	// Forget removes the record of k, so that the handler runs again. It does not
	// touch a claim that is held, and succeeds where there is nothing.
	Forget(ctx context.Context, k Key) error
	// List gives the records that f lets through, in no particular order. Records
	// that come or go meanwhile may be missing. The sequence ends after an error.
	List(ctx context.Context, f Filter) iter.Seq2[Record, error]
	// Purge removes up to limit records that were committed before the time given,
	// whatever retention they have left, or have run out, and returns their number;
	// a limit of 0 means all, a negative one is an error that matches ErrInvalid. Stores whose servers remove what ran out need it only
	// to shorten a retention.
	Purge(ctx context.Context, before time.Time, limit int) (int, error)
}

// Record is what a store holds of one key.
type Record struct {
	Key Key
	// State is StateDone, or StateInProgress while somebody holds the claim.
	State State
	// CommittedAt is zero while in progress.
	CommittedAt time.Time
	// ExpiresAt is when the record, or the claim unless it is renewed, runs out.
	ExpiresAt time.Time
	// Fingerprint is the digest of it (storeutil.Digest), nil if there was none.
	Fingerprint []byte
	// Group is the consumer group whose run made the record, empty if it is not known, and
	// while in progress.
	Group string
	// Outputs is the number of recorded messages that are not settled, OutputBytes
	// their size.
	Outputs, OutputBytes int
}

// Filter picks records. Empty fields pick all.
type Filter struct {
	Namespace, Topic, Handler string
	State                     State
}

// Match reports whether the filter picks r.
func (f Filter) Match(r Record) bool {
	return (f.Namespace == "" || f.Namespace == r.Key.Namespace) &&
		(f.Topic == "" || f.Topic == r.Key.Topic) &&
		(f.Handler == "" || f.Handler == r.Key.Handler) &&
		(f.State == 0 || f.State == r.State)
}
