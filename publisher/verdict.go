package publisher

import "github.com/onceward/watermill-idempotent/publisher/internal/batch"

// Verdict says what a publish did. Look at [Receipt.Err] first: a conflict has a verdict,
// too.
type Verdict uint8

const (
	// VerdictUnknown means that it could not be found out, or that nothing was sent. The receipt
	// has an error.
	VerdictUnknown Verdict = iota
	// VerdictAdded means that the entry is new.
	VerdictAdded
	// VerdictDuplicate means that the key was in the stream before; nothing was added. With a
	// [ConflictError] in the receipt it was there with another content.
	VerdictDuplicate
	// VerdictOriginalGone means that the key was used, and its entry has been deleted or trimmed
	// since; nothing was added. Who did not read it in time does not get it.
	VerdictOriginalGone
)

// The numbers are those of the package that makes the verdicts.
var _ = [1]struct{}{}[batch.Verdict(VerdictOriginalGone)-batch.OriginalGone]

var verdictNames = [...]string{"unknown", "added", "duplicate", "original gone"}

// String is for logs and tables.
func (v Verdict) String() string {
	if int(v) < len(verdictNames) {
		return verdictNames[v]
	}
	return "invalid"
}
