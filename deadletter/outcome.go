package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/publisher"
)

// maxFailures bounds Result.Failures.
const maxFailures = 100

// Action is what became of a letter.
type Action uint8

const (
	// ActionFailed means that it could not be published, or not be removed, and Outcome.Err
	// says why. It is still there.
	ActionFailed Action = iota
	// ActionReplayed means that it was published.
	ActionReplayed
	// ActionAlreadyReplayed means that an earlier replay had published it; now it was removed, too.
	ActionAlreadyReplayed
	// ActionDropped means that it was removed without being published.
	ActionDropped
	// ActionGone means that it was not there: a letter of Filter.IDs that was never there, or one
	// that another has replayed or dropped, or that was trimmed away. Nothing was done.
	ActionGone
)

var actionNames = [...]string{"failed", "replayed", "already replayed", "dropped", "gone"}

// String is for logs and tables.
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "invalid"
}

// Outcome is what became of one letter; in a dry run, what would become of it.
type Outcome struct {
	Letter Letter
	Action Action
	// Receipt is the publisher's; zero with another publisher, and in a dry run.
	Receipt publisher.Receipt
	// Forgotten are the records that were removed.
	Forgotten []dedupe.Key
	// HandledAt is when a record was made that is newer than the letter and therefore stays, so that the
	// handler will skip the entry; zero if there is none.
	HandledAt time.Time
	// Err is why it failed; ErrNotFound for ActionGone.
	Err error
	// Done and Total count letters: those that the filter has looked at, and about how many
	// there are to look at.
	Done, Total int64
}

// Result counts what was done; in a dry run, what would be done.
type Result struct {
	// Matched is how many letters the filter let through.
	Matched                                          int64
	Replayed, AlreadyReplayed, Dropped, Gone, Failed int64
	// Forgotten is how many records were removed, HandledSince how many letters had a
	// record that is newer and stays.
	Forgotten, HandledSince int64
	// Failures are the first 100 that failed. Their letters have no payload.
	Failures []Outcome
}

// Err is nil if no letter failed; else it joins the Failures.
func (r Result) Err() error {
	if r.Failed == 0 {
		return nil
	}
	faults := make([]error, 0, len(r.Failures)+1)
	for _, f := range r.Failures {
		faults = append(faults, fmt.Errorf("%s: %w", f.Letter.ID, f.Err))
	}
	if more := r.Failed - int64(len(r.Failures)); more > 0 {
		faults = append(faults, fmt.Errorf("and %d more", more))
	}
	return fmt.Errorf("deadletter: %d letters failed: %w", r.Failed, errors.Join(faults...))
}

func (r *Result) add(out Outcome) {
	r.Matched++
	switch out.Action {
	case ActionReplayed:
		r.Replayed++
	case ActionAlreadyReplayed:
		r.AlreadyReplayed++
	case ActionDropped:
		r.Dropped++
	case ActionGone:
		r.Gone++
	case ActionFailed:
		r.Failed++
		if len(r.Failures) < maxFailures {
			out.Letter.Payload = nil // which may be large
			r.Failures = append(r.Failures, out)
		}
	}
	r.Forgotten += int64(len(out.Forgotten))
	if !out.HandledAt.IsZero() {
		r.HandledSince++
	}
}

// each calls do with each letter of the filter; one of Filter.IDs that is not there is gone.
// An error of do ends it.
func (l *Letters) each(ctx context.Context, topic string, f Filter, tell func(Outcome), do func(context.Context, Letter) (Outcome, error)) (Result, error) {
	var result Result
	var looked int64
	total := int64(len(f.IDs))
	if total == 0 {
		var err error
		if total, err = l.Len(ctx, topic); err != nil {
			return result, err
		}
	}
	for letter, err := range l.list(ctx, topic, f, &looked) {
		if err != nil && !errors.Is(err, ErrNotFound) {
			return result, err
		}
		out, ends := Outcome{Letter: letter, Action: ActionGone, Err: err}, error(nil)
		if err == nil {
			out, ends = do(ctx, letter)
		}
		result.add(out)
		if tell != nil {
			out.Done, out.Total = looked, max(total, looked)
			tell(out)
		}
		if ends != nil {
			return result, ends
		}
	}
	return result, nil
}
