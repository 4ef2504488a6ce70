package group

import (
	"context"
	"time"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// ListOwn lists entries that are pending for this consumer, at most MaxBatch, from the ID
// given on, as for XPENDING.
func (g *Group) ListOwn(ctx context.Context, from string) ([]Pending, error) {
	reply, err := g.run(ctx, ownScript, 0, g.name, g.consumer, from, MaxBatch)
	if err != nil {
		return nil, err
	}
	return pairs(reply)
}

// Takeover is what was taken over.
type Takeover struct {
	HandedBack, Dead []Pending
	Deleted          []string // gone from the stream
	Time             int64    // of the server, in milliseconds
}

func newTakeover(handedBack, dead, deleted, ms any) (t Takeover, err error) {
	if t.HandedBack, err = pairs(handedBack); err != nil {
		return t, err
	}
	if t.Dead, err = pairs(dead); err != nil {
		return t, err
	}
	t.Deleted, err = texts(deleted)
	t.Time = integer(ms)
	return t, err
}

// TakeOver takes over up to so many entries: those that were handed back, and, where all is
// set, those that were idle for minIdle.
func (g *Group) TakeOver(ctx context.Context, minIdle time.Duration, most int, all bool) (t Takeover, err error) {
	which := "back"
	if all {
		which = "all"
	}
	parts, err := g.run(ctx, takeScript, 4, g.name, g.consumer, minIdle.Milliseconds(), most, HandbackConsumer, which)
	if err != nil {
		return t, err
	}
	return newTakeover(parts[0], parts[1], parts[2], parts[3])
}

// Activation is the answer to asking for the active role.
type Activation struct {
	Takeover
	Others streamid.ID // lowest that is pending for others, zero if none is or one of them is alive
	Alive  int         // how many other consumers are
	Mine   int         // how many entries were pending for this consumer
}

// Activate makes this consumer the active one of the group if no other is alive, and takes
// over what others have left. Where another is alive and leave is set, the consumer is removed
// if nothing is pending for it.
func (g *Group) Activate(ctx context.Context, minIdle time.Duration, most int, leave bool) (a Activation, err error) {
	otherwise := "stay"
	if leave {
		otherwise = "leave"
	}
	parts, err := g.run(ctx, activateScript, 7, g.name, g.consumer, minIdle.Milliseconds(), most, HandbackConsumer, otherwise)
	if err != nil {
		return a, err
	}
	if a.Others, err = optionalID(parts[0]); err != nil {
		return a, err
	}
	a.Alive, a.Mine = int(integer(parts[1])), int(integer(parts[6]))
	a.Takeover, err = newTakeover(parts[2], parts[3], parts[4], parts[5])
	return a, err
}

// Renewal is the answer to renewing entries: those that are pending for others or for
// nobody, and those that are gone from the stream.
type Renewal struct {
	Others, Nobodys, Deleted map[string]bool
	Time                     int64 // of the server, in milliseconds
}

// Renew begins the idle time of these entries again, those that are still ours.
func (g *Group) Renew(ctx context.Context, names []string) (r Renewal, err error) {
	parts, err := g.run(ctx, renewScript, 4, withNames([]any{g.name, g.consumer}, names)...)
	if err != nil {
		return r, err
	}
	s, err := sets(parts[0], parts[1], parts[2])
	if err != nil {
		return r, err
	}
	return Renewal{Others: s[0], Nobodys: s[1], Deleted: s[2], Time: integer(parts[3])}, nil
}

// Restore is an entry that is to be made pending again, with its delivery count and the time
// by the server's clock, in milliseconds, until which nobody can have taken it over.
type Restore struct {
	Name     string
	Count    int
	Deadline int64
}

// Restoration is the answer to making entries pending again: those that are another
// consumer's, that the group will read again, and that are gone from the stream.
type Restoration struct {
	Others, Unread, Deleted map[string]bool
	Time                    int64 // of the server, in milliseconds
}

// Restore makes entries pending again.
func (g *Group) Restore(ctx context.Context, list []Restore) (r Restoration, err error) {
	args := []any{g.name, g.consumer}
	for _, e := range list {
		args = append(args, e.Name, e.Count, e.Deadline)
	}
	parts, err := g.run(ctx, restoreScript, 4, args...)
	if err != nil {
		return r, err
	}
	s, err := sets(parts[0], parts[1], parts[2])
	if err != nil {
		return r, err
	}
	return Restoration{Others: s[0], Unread: s[1], Deleted: s[2], Time: integer(parts[3])}, nil
}
