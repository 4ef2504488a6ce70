package ledger

import "github.com/onceward/watermill-idempotent/internal/streamid"

// Role is the face of a ledger for whoever asks to be the active consumer of the group. One
// subscription of a group is active when an order is to be kept; the others stand by.
type Role struct{ c *core }

// role says whether a subscription that keeps an order may hand out and read.
type role struct {
	active bool
	until  Instant // when that ends by our own clock
	// others is the lowest ID that is pending for other consumers, zero if there is none.
	// What lies above it has to wait: entries of the same key may come back in parts, in
	// any number of steps. Nothing new is read meanwhile.
	others streamid.ID
	// losses counts how often the role was lost, since another consumer is active or has
	// entries: an answer to an earlier question does not give it back.
	losses int
}

// isBelowOthers tells that nothing lower is pending for another consumer.
func (r *role) isBelowOthers(e *Entry) bool { return r.others.IsZero() || r.others.After(e.id) }

// Activate makes the subscription active for what lies below the lowest ID that is pending
// for others, and says until when that is good without another sign of life. losses is what
// [Role.Losses] gave before the server was asked, at the time given.
func (r Role) Activate(sent Instant, others streamid.ID, losses int) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.role.losses != losses {
		return
	}
	c.role.active, c.role.until, c.role.others = true, c.leaseFrom(sent), others
	c.roleChanged()
}

// StandBy ends the active role, if the subscription has it, and tells so.
func (r Role) StandBy() (wasActive bool) {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	wasActive = c.role.active
	c.yield()
	return wasActive
}

// yield ends the active role of an ordered subscription: another consumer is active, or an
// entry turned out to be another's, and before the server has said how much is, nothing may
// overtake it.
func (c *core) yield() {
	if c.set.Ordered {
		c.role.active = false
		c.role.losses++
		c.roleChanged()
	}
}

func (c *core) roleChanged() {
	Notify(c.signals.Recall)
	Notify(c.signals.Wake)
	Notify(c.signals.Room)
}

// Losses counts how often the role was lost.
func (r Role) Losses() int {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return r.c.role.losses
}

// isStandby tells that nothing may go out now.
func (c *core) isStandby() bool {
	return c.set.Ordered && (!c.role.active || c.now() >= c.role.until)
}

// mayRead tells that nothing new is to wait for what others have.
func (c *core) mayRead() bool { return !c.isStandby() && c.role.others.IsZero() }

// MustAsk tells that the subscription has to ask for the active role before it reads on.
func (r Role) MustAsk() bool {
	r.c.mu.Lock()
	defer r.c.mu.Unlock()
	return !r.c.mayRead() && !r.c.stopping
}
