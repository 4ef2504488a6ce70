// Package ledger keeps the entries that a subscription holds, and decides which goes out
// next. It does no I/O and has no goroutine: who talks to the server reports here what came
// of it, event by event.
//
// One lock guards all of it. Each worker of a subscription has a face of its own:
//
//	[Intake]     the fetcher: what comes in, and how much may
//	[Dispatch]   the dispatcher: what goes out
//	[Outcomes]   the same: what became of it
//	[Commits]    the committer and the dead letters: what the server has yet to learn
//	[Ownership]  the maintainer: whose the entries are
//	[Role]       active or standing by, under an order
//	[Progress]   how far the group has come, for when it has to be made again
//	[Handback]   what is given away
package ledger

import (
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// Settings are what a subscription is configured to do.
type Settings struct {
	Topic, Group, Consumer       string
	FanOut                       bool
	Ordered                      bool // entries of one key go out one after the other
	MaxInFlight                  int
	ReadAhead, ReadAheadBytes    int
	MaxHeld                      int
	MinIdle                      time.Duration
	MaxDeliveries                int
	RedeliverAfter, RedeliverMax time.Duration
}

// Ledger has the faces of one ledger.
type Ledger struct {
	Intake    Intake
	Dispatch  Dispatch
	Outcomes  Outcomes
	Commits   Commits
	Ownership Ownership
	Role      Role
	Progress  Progress
	Handback  Handback
	Signals   *Signals

	core *core
}

// Signals wake the workers, each channel one of them; their capacity is 1.
type Signals struct {
	Wake        chan struct{} // the worker that waits for an entry: something changed
	Recall      chan struct{} // the worker that offers one: ask whether it may stay
	Room        chan struct{} // the fetcher: there may be room
	Commit      chan struct{} // the committer: there is something to report to the server
	DeadLetters chan struct{} // the goroutine of the dead letters, the same
	Verify      chan struct{} // the maintainer: entries need to be renewed before they may go out
	Idle        chan struct{} // whoever ends the subscription: nothing is in flight
}

// Notify sends a signal that may be there already.
func Notify(signal chan struct{}) {
	select {
	case signal <- struct{}{}:
	default:
	}
}

// Instant is a point in time by the local monotonic clock, counted from the ledger's
// beginning.
type Instant time.Duration

// Forever is never reached.
const Forever = Instant(1<<63 - 1)

// New makes an empty ledger.
func New(s Settings) *Ledger {
	signal := func() chan struct{} { return make(chan struct{}, 1) }
	c := &core{
		set: s, begin: time.Now(), lease: s.MinIdle - LeaseMargin(s.MinIdle),
		entries: make(map[streamid.ID]*Entry), lanes: make(lanes),
		out: out{byWorker: make([]*Entry, s.MaxInFlight)},
		signals: Signals{
			Wake: signal(), Recall: signal(), Room: signal(), Commit: signal(),
			DeadLetters: signal(), Verify: signal(), Idle: signal(),
		},
	}
	return &Ledger{
		Intake: Intake{c}, Dispatch: Dispatch{c}, Outcomes: Outcomes{c}, Commits: Commits{c}, Ownership: Ownership{c},
		Role: Role{c}, Progress: Progress{c}, Handback: Handback{c}, Signals: &c.signals, core: c,
	}
}

// Now is the time by the ledger's clock.
func (l *Ledger) Now() Instant { return l.core.now() }

// LeaseMargin is how much earlier than the server's our clock ends ownership: for
// clocks that run at different speeds, and for our own timers.
func LeaseMargin(minIdle time.Duration) time.Duration { return minIdle / 10 }
