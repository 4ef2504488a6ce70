package subscriber

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/onceward/watermill-idempotent/internal/wait"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// shared is what the workers of a subscription have in common.
type shared struct {
	cfg    *Config
	topic  string
	group  *group.Group
	ledger *ledger.Ledger
	report *reporter

	stopping chan struct{} // closed: nothing more is read, handed out or taken over
	// mustRecover makes the fetcher look for pending entries of its own before it reads on.
	mustRecover atomic.Bool
}

// Pauses after failed commands.
const (
	minRetry     = 50 * time.Millisecond
	maxRetry     = time.Second
	preparePause = 4 * minRetry
)

func newRetry() *backoff.ExponentialBackOff {
	b := backoff.NewExponentialBackOff()
	b.InitialInterval, b.MaxInterval = minRetry, maxRetry
	return b
}

// isEnding tells that the subscription ends: nothing more is read, handed out or taken over.
func (s *shared) isEnding() bool { return isClosed(s.stopping) }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// pause waits, or until the subscription ends.
func (s *shared) pause(d time.Duration) { wait.For(context.Background(), s.stopping, d) }

// askRecovery makes the fetcher recover before it reads on, also while it waits for room:
// of a missing group nothing can be committed, so room might never come.
func (s *shared) askRecovery() {
	s.mustRecover.Store(true)
	ledger.Notify(s.ledger.Signals.Room)
}

// did notes what came of something that a worker has done that is not the fetcher. The
// fetcher makes a missing group again.
func (s *shared) did(what string, err error) {
	if group.IsNoGroup(err) {
		s.noteGroupMissing()
		err = nil
	}
	if err != nil {
		s.report.outage.failed(what, err)
	} else {
		s.report.outage.over(what)
	}
}

// noteGroupMissing is called by who finds the group missing. The fetcher makes it again.
func (s *shared) noteGroupMissing() {
	s.ledger.Ownership.Unverify()
	s.askRecovery()
}

// pollEvery is how often a subscription looks for entries that were handed back or
// whose consumers died.
func (s *shared) pollEvery() time.Duration {
	return max(min(time.Second, s.cfg.MinIdle/8), 5*time.Millisecond)
}
