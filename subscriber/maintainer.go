package subscriber

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// maintainer is the goroutine that renews what the ledger holds, until nothing more can start.
// Until the subscription ends it also takes over what others have left, removes dead consumers,
// and looks for entries that were trimmed unread.
type maintainer struct {
	*shared
	recovery *recovery
	recreate *recreator
	drained  <-chan struct{} // closed: nothing more can start

	polls     int
	lookAgain bool // soon after a look at the group has failed, once
}

func (m *maintainer) run(ctx context.Context) {
	poll := time.NewTicker(m.pollEvery())
	defer poll.Stop()
	beat := time.NewTimer(m.cfg.Heartbeat)
	defer beat.Stop()
	for !isClosed(m.drained) { // first: with a server that does not answer, others are always due
		select {
		case <-m.drained:
		case <-beat.C:
			beat.Reset(m.heartbeat(ctx))
			if !m.isEnding() {
				// Every consumer of the group sweeps: once in a while is enough.
				m.lookAgain = !m.look(ctx, rand.IntN(2) == 0)
			}
		case <-m.ledger.Signals.Verify:
			beat.Reset(m.heartbeat(ctx))
			// What could not be renewed asks again at once; the server may need a moment.
			select {
			case <-poll.C:
			case <-m.drained:
			}
		case <-poll.C:
			if !m.isEnding() {
				m.poll(ctx)
			}
		}
	}
}

// poll takes over what others have left.
func (m *maintainer) poll(ctx context.Context) {
	if m.lookAgain {
		m.lookAgain = false
		m.look(ctx, true)
	}
	if m.cfg.Order != OrderNone {
		if !m.ledger.Role.MustAsk() { // else the fetcher does it
			_, _, err := m.recovery.activate(ctx, false)
			m.did(doTakeOver, err)
		}
		return
	}
	m.polls++
	all, what := m.polls%m.pollsForAll() == 0, doTakeOver+" what was handed back"
	if all {
		what = doTakeOver + " what the dead have"
	}
	_, err := m.recovery.takeOver(ctx, all)
	m.did(what, err)
}

// pollsForAll is how many times a subscription looks for entries that were handed back
// before it looks through all that is pending in the group, about every eighth of
// MinIdle.
func (m *maintainer) pollsForAll() int { return max(int(m.cfg.MinIdle/8/m.pollEvery()), 1) }

// heartbeat renews everything that is held, and returns when to do it again.
func (m *maintainer) heartbeat(ctx context.Context) time.Duration {
	for batch := range slices.Chunk(m.ledger.Ownership.Held(), group.MaxBatch) {
		if err := m.renew(ctx, batch); err != nil {
			m.did(doRenew, err)
			return min(m.cfg.Heartbeat, max(m.cfg.MinIdle/20, 10*time.Millisecond))
		}
	}
	m.did(doRenew, nil)
	return m.cfg.Heartbeat
}

func (m *maintainer) renew(ctx context.Context, batch []*ledger.Entry) error {
	sent := m.ledger.Now()
	r, err := m.group.Renew(ctx, names(batch))
	if err != nil {
		return err
	}
	m.ledger.Ownership.SetClock(r.Time)
	m.report.ended(m.ledger.Ownership.Renewed(batch, sent,
		ledger.Verdict{Others: r.Others, Nobodys: r.Nobodys, Deleted: r.Deleted}))
	return nil
}

func names(list []*ledger.Entry) []string {
	out := make([]string, len(list))
	for i, e := range list {
		out[i] = e.Name()
	}
	return out
}

// look does what need not be done often, and removes dead consumers if it is to sweep. It
// tells whether all was done.
func (m *maintainer) look(ctx context.Context, sweep bool) bool {
	mine, err := m.recreate.observe(ctx)
	m.did(doLook, err)
	ok := err == nil
	if mine > 0 {
		m.recovery.lateArrival.Store(true)
		ledger.Notify(m.ledger.Signals.Room)
	}
	if !sweep {
		return ok
	}
	err = m.group.Sweep(ctx, 2*m.cfg.MinIdle)
	m.did(doLook+": its dead consumers", err)
	return ok && err == nil
}

// leaseClock is the goroutine that ends the contexts of messages whose entries could not be
// renewed in time. It talks to nobody, so that a server that does not answer can't hold it up.
type leaseClock struct {
	*shared
	drained <-chan struct{}
}

func (c *leaseClock) run() {
	tick := time.NewTicker(max(ledger.LeaseMargin(c.cfg.MinIdle)/4, time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-c.drained:
			return
		case <-tick.C:
			c.report.ownershipLost(c.ledger.Ownership.Expire()...)
		}
	}
}
