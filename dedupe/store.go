package dedupe

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"
)

// Store gives out claims. Its methods, and those of its claims, are safe for
// concurrent use.
//
// Every transition must survive being sent twice, since replies get lost:
//
//   - Claim with the token of the present claim returns that claim, whose lease begins
//     anew.
//   - Commit with the token of the record succeeds.
//   - Rollback of nothing succeeds, and so does Settle.
type Store interface {
	// Claim asks for the claim of k. What it got is the claim's State. While another
	// holds the claim it looks again for up to o.Wait, never longer.
	//
	// A Claim whose ctx ends leaves nothing behind: the store rolls back what it may
	// have got, as far as it can reach the server; where it can't, the lease ends it.
	// The claim's context comes from ctx and ends with it.
	Claim(ctx context.Context, k Key, o ClaimOptions) (Claim, error)
	// Close ends what the store has running and waits for it. Claims that are held
	// are lost. What the store was given, such as a client, stays open.
	Close() error
}

// ClaimOptions are those of one Claim.
type ClaimOptions struct {
	// Token distinguishes this owner from every other; see [NewToken]. It is made before the
	// claim is first sent, and never used for another.
	Token string
	// Lease is how long the claim is held without a sign of life, by the store's
	// clock. Stores with transactions don't use it.
	Lease time.Duration
	// Retention is how long the record is kept after Commit. It must be at least Lease.
	Retention time.Duration
	// Wait bounds how long Claim waits for another's claim; 0 means not to wait.
	Wait time.Duration
	// Fingerprint says what must be equal in two events of one key; nil matches any.
	// Stores keep a digest of it.
	Fingerprint []byte
	// Group is the consumer group that the event was read by, of at most MaxKeyBytes;
	// empty where that is not known. Stores keep it with the record; one that is named
	// as the key's namespace costs nothing.
	Group string
}

// MinLease is the shortest lease: a renewal, with its reply, must fit in several times.
const MinLease = 10 * time.Millisecond

// Validate reports what a store must refuse. The error matches [ErrInvalid].
func (o ClaimOptions) Validate() error {
	switch {
	case o.Token == "":
		return fmt.Errorf("%w: the token is empty", ErrInvalid)
	case len(o.Token) > 128:
		return fmt.Errorf("%w: the token is longer than 128 bytes", ErrInvalid)
	case o.Lease < MinLease:
		return fmt.Errorf("%w: lease %v is shorter than %v", ErrInvalid, o.Lease, MinLease)
	case o.Retention <= 0:
		return fmt.Errorf("%w: retention %v is not above zero", ErrInvalid, o.Retention)
	case o.Lease > o.Retention:
		return fmt.Errorf("%w: lease %v is longer than retention %v", ErrInvalid, o.Lease, o.Retention)
	case o.Wait < 0:
		return fmt.Errorf("%w: wait %v is negative", ErrInvalid, o.Wait)
	case len(o.Group) > MaxKeyBytes:
		return fmt.Errorf("%w: the group's name has %d bytes, more than %d", ErrInvalid, len(o.Group), MaxKeyBytes)
	}
	return nil
}

// NewToken makes a token that nobody else has.
func NewToken() string { return rand.Text() }

// State is what a Claim found.
type State uint8

const (
	// StateClaimed means that the caller holds the claim, and must Commit or Rollback it.
	StateClaimed State = iota + 1
	// StateDone means that the event was handled before.
	StateDone
	// StateInProgress means that another holds the claim.
	StateInProgress
	// StateConflict means that another event was handled under this key.
	StateConflict
)

var stateNames = [...]string{StateClaimed: "claimed", StateDone: "done", StateInProgress: "in progress", StateConflict: "conflict"}

// String is for logs.
func (s State) String() string {
	if int(s) < len(stateNames) && s != 0 {
		return stateNames[s]
	}
	return "invalid"
}

// ClaimInfo is what the store knows beside the state. What it does not know is zero.
type ClaimInfo struct {
	// CommittedAt is, for StateDone and StateConflict, when the record was made, by the store's
	// clock.
	CommittedAt time.Time
	// Group is, for StateDone and StateConflict, the ClaimOptions.Group of who made the record; empty if
	// that one gave none.
	Group string
	// TookOver means, for StateClaimed, that a former owner's lease ran out: an earlier run
	// ended without a word, and its effects may be there. Stores whose servers remove
	// what ran out can't know it.
	TookOver bool
	// RetryAfter is, for StateInProgress, when the other's claim would run out if it were
	// not renewed.
	RetryAfter time.Duration
}

// Claim is what [Store.Claim] got. Commit, Rollback and Settle use the context that
// they are given, which should not be one that has ended with the message.
type Claim interface {
	// State does not change during the claim's life.
	State() State
	Info() ClaimInfo
	// Context is the one to run the handler under: that of the Claim call, which
	// carries the transaction where there is one. It ends with the cause ErrLeaseLost
	// when the claim is lost, and after Commit and Rollback.
	Context() context.Context
	// Outputs are, for Done, the messages that the handler produced, in order, until
	// they were settled.
	Outputs() [][]byte
	// Commit makes the record. ErrLeaseLost says that the claim was lost first,
	// ErrAborted that its transaction has failed, ErrTooLarge and ErrRefused that the
	// store does not take the record; nothing was recorded then. Any other error says
	// that the store is unavailable and the outcome unknown: the next Claim finds out.
	// Only a claim in StateClaimed can be committed.
	Commit(ctx context.Context, outputs [][]byte) error
	// Rollback gives the claim up. After Commit and in other states it does nothing.
	Rollback(ctx context.Context) error
	// Settle says that the outputs are no longer needed: of a claim that was
	// committed, or is Done.
	Settle(ctx context.Context) error
}
