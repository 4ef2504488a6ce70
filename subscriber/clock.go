package subscriber

import "time"

// serverClock is what the server's clock said, and when the answer had arrived by ours:
// at that moment it said so or more.
type serverClock struct {
	ms int64
	at instant
}

// setClock takes in the server's time from the reply of a script.
func (b *book) setClock(ms any) {
	n, ok := ms.(int64)
	if !ok {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clock = serverClock{ms: n, at: b.now()}
}

// serverDeadline is until when, by the server's clock in milliseconds, nobody can have
// taken one of these entries over; 0 if that is unknown. The lease was counted from
// before the command was sent that renewed them, and the server's clock reads at least
// as much as is reckoned here, so this errs to the safe side; clocks that run at
// different speeds are what the lease's margin is for.
func (b *book) serverDeadline(list []*entry) int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	until := forever
	for _, e := range list {
		if e.gone || e.doubt {
			return 0
		}
		until = min(until, e.until)
	}
	return b.deadline(until)
}

func (b *book) deadline(until instant) int64 {
	if b.clock.ms == 0 || until == forever {
		return 0
	}
	return b.clock.ms + time.Duration(until-b.clock.at).Milliseconds()
}
