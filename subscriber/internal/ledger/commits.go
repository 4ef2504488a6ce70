package ledger

// Commits is the face of a ledger for the committer and the dead letters.
type Commits struct{ c *core }

// ackBatch is how many acknowledgements don't wait for more.
const ackBatch = 256

// todo is what the server has yet to learn.
type todo struct {
	restores, acks, counts, deadLetters []*Entry

	urgent bool // acknowledgements must not wait for company
}

// Todo is what the committer has to report: entries that are to be pending again, that are
// acknowledged, and whose delivery count the server must know.
type Todo struct{ Restores, Acks, Counts []*Entry }

// IsEmpty tells that there is nothing.
func (t *Todo) IsEmpty() bool { return len(t.Restores)+len(t.Acks)+len(t.Counts) == 0 }

// Take adds what there is for the committer.
func (m Commits) Take(t *Todo) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Restores = append(t.Restores, c.todo.restores...)
	t.Acks = append(t.Acks, c.todo.acks...)
	t.Counts = append(t.Counts, c.todo.counts...)
	for _, e := range c.todo.restores {
		e.owner.restoring = false
	}
	c.todo.restores, c.todo.acks, c.todo.counts, c.todo.urgent = nil, nil, nil, false
}

// IsUrgent tells that acknowledgements must not wait for company.
func (m Commits) IsUrgent() bool {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return m.c.todo.urgent
}

// DeadLetter is an entry that is to become one.
type DeadLetter struct {
	Entry   *Entry
	Name    string
	Reason  string
	Failure error
	Count   int // of its deliveries
}

// TakeDeadLetters takes what there is for the dead letters.
func (m Commits) TakeDeadLetters() []DeadLetter {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]DeadLetter, len(c.todo.deadLetters))
	for i, e := range c.todo.deadLetters {
		list[i] = DeadLetter{Entry: e, Name: e.name, Reason: e.attempt.reason, Failure: e.attempt.failure, Count: e.counts.deliveries}
	}
	c.todo.deadLetters = nil
	return list
}

// Done forgets entries of which there is nothing left to report.
func (m Commits) Done(list ...*Entry) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for _, e := range list {
		m.c.done(e)
	}
}

// AckSent notes that the acknowledgement of these entries may have been run.
func (m Commits) AckSent(list []*Entry) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	for _, e := range list {
		e.owner.acked = true
	}
}

// Acked takes in which acknowledgements the server has refused, since the entries are
// pending for others or for nobody, and forgets all of these entries.
func (m Commits) Acked(list []*Entry, others, nobodys map[string]bool) (refused []Ended) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range list {
		if others[e.name] {
			c.yield()
		}
		// After a lost reply it may be our own first try that has done it; in a group that
		// was made again there may be nothing to acknowledge.
		if others[e.name] || nobodys[e.name] && !e.owner.acked && e.owner.state != unverified {
			refused = append(refused, Ended{Name: e.name, Refused: true})
		}
		c.done(e)
	}
	return refused
}

// IsDeleted tells whether an entry is known to be gone from the stream.
func (m Commits) IsDeleted(e *Entry) bool {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	return e.owner.state == deleted
}

// NextCounts are the delivery counts that the server should have.
func (m Commits) NextCounts(list []*Entry) []int {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	counts := make([]int, len(list))
	for i, e := range list {
		counts[i] = e.nextCount()
	}
	return counts
}

// CountsWritten takes in that the server has these counts of the entries, but for those
// that are gone from the stream. It returns the IDs of those that are lost with that.
func (m Commits) CountsWritten(list []*Entry, counts []int, gone map[string]bool) (lost []string) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, e := range list {
		e.counts.server = counts[i]
		lost = append(lost, m.countWritten(e, gone[e.name])...)
	}
	Notify(c.signals.Wake)
	return lost
}

// CountsDropped takes in that the counts can't be written: the group is gone.
func (m Commits) CountsDropped(list []*Entry) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range list {
		m.countWritten(e, false)
	}
	Notify(c.signals.Wake)
}

func (m Commits) countWritten(e *Entry, isGone bool) (lost []string) {
	c := m.c
	e.counts.writing = false
	c.rejoin(e)
	if isGone && e.stage != done {
		lost = c.vanished(e)
	}
	if e.counts.overdue && e.stage == waiting {
		e.counts.overdue = false
		c.readyLowest(e)
	}
	return lost
}

// Orphan is an entry that is to be made pending again, with its delivery count and the
// time by the server's clock, in milliseconds, until which nobody can have taken it over.
type Orphan struct {
	Entry    *Entry
	Name     string
	Count    int
	Deadline int64
}

// Orphans makes orphans of entries, but for those that were acknowledged meanwhile.
func (m Commits) Orphans(list ...*Entry) []Orphan {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	orphans := make([]Orphan, 0, len(list))
	for _, e := range list {
		if !e.isHandled() {
			orphans = append(orphans, Orphan{e, e.name, e.counts.server, c.clock.at(e.owner.until)})
		}
	}
	return orphans
}

// Restoration is what the server found when it made entries pending again: those that are
// another consumer's, that the group will read again, and that are no longer in the stream.
// The others are pending for us.
type Restoration struct{ Others, Unread, Deleted map[string]bool }

// Restored takes in what came of a command that was sent at the time given.
func (m Commits) Restored(list []Orphan, r Restoration, sent Instant) (ended []Ended, lost []string) {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	var toRead []*Entry
	for _, o := range list {
		e := o.Entry
		switch {
		case e.stage == done:
		case !r.Others[o.Name] && !r.Unread[o.Name] && !r.Deleted[o.Name]:
			e.confirm(c.leaseFrom(sent), c.now())
		case e.owner.seen > sent: // it came by another way meanwhile
		case r.Unread[o.Name]:
			toRead = append(toRead, e)
		case r.Deleted[o.Name]:
			lost = append(lost, c.vanished(e)...)
		default:
			ended = append(ended, c.takenAway(e)...)
		}
	}
	c.forget(toRead)
	Notify(c.signals.Wake)
	Notify(c.signals.Room)
	return ended, lost
}

// Deadline is until when, by the server's clock in milliseconds, nobody can have
// taken one of these entries over; 0 if that is unknown.
func (m Commits) Deadline(list []*Entry) int64 {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	until := Forever
	for _, e := range list {
		if e.owner.state == anothers || e.owner.state == unverified {
			return 0
		}
		until = min(until, e.owner.until)
	}
	return c.clock.at(until)
}
