package subscriber

import (
	"context"
	"time"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wait"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// ackLinger is how long the first acknowledgement waits for others.
const ackLinger = time.Millisecond

// flush is the end of the committer and of the dead letters: all there is to report is in
// the ledger.
type flush struct {
	all   chan struct{} // closed then
	until time.Time     // how long they try; set before all is closed
}

// gaveUp tells whether to end, after so many failures during the flush: a server that does
// not answer costs the client's time-out with each try.
func (f *flush) gaveUp(err error, failures int) bool {
	hangs := server.Classify(err) == server.Ambiguous
	return (hangs || failures > 1) && time.Now().After(f.until)
}

// pause waits before another try, and no longer than a moment once all is there.
func (f *flush) pause(d time.Duration) {
	if !wait.For(context.Background(), f.all, d) {
		wait.For(context.Background(), nil, min(d, minRetry))
	}
}

// committer is the goroutine that reports to the server what became of entries:
// acknowledgements, counts of those that wait, and those that are to be pending again. It
// ends after the flush, when all is reported, or the server does not listen and
// CloseTimeout is over.
type committer struct {
	*shared
	flush   *flush
	restore *restorer
}

func (c *committer) run(ctx context.Context) {
	retry := newRetry()
	var todo ledger.Todo
	for failures := 0; ; {
		if todo.IsEmpty() {
			select {
			case <-c.ledger.Signals.Commit:
				c.linger()
			case <-c.flush.all:
			}
		}
		flushing := isClosed(c.flush.all)
		c.ledger.Commits.Take(&todo)
		if todo.IsEmpty() {
			if flushing {
				return
			}
			continue
		}
		err := c.commit(ctx, &todo)
		c.did(doCommit, err)
		switch {
		case err == nil:
			retry.Reset()
			continue
		case group.IsNoGroup(err):
			c.drop(&todo)
			continue
		case flushing:
			if failures++; c.flush.gaveUp(err, failures) {
				c.report.error("Redis does not take acknowledgements; unacknowledged entries will be redelivered", err,
					watermill.LogFields{fieldEntries: len(todo.Acks)})
				return
			}
		}
		c.flush.pause(retry.NextBackOff())
	}
}

// linger waits a moment for more acknowledgements, unless it is urgent or there are
// enough.
func (c *committer) linger() {
	if c.ledger.Commits.IsUrgent() {
		return
	}
	timer := time.NewTimer(ackLinger)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-c.ledger.Signals.Commit: // the batch is full, or it is urgent
	case <-c.flush.all:
	}
}

// drop forgets what concerns a group that does not exist any more: there is nothing to
// acknowledge, and what it held will be read again, or found again by a heartbeat.
func (c *committer) drop(todo *ledger.Todo) {
	c.ledger.Commits.Done(todo.Acks...)
	c.ledger.Commits.CountsDropped(todo.Counts)
	*todo = ledger.Todo{}
}

// commit reports to the server, and leaves in todo what is still to be reported.
func (c *committer) commit(ctx context.Context, todo *ledger.Todo) error {
	if err := inBatches(&todo.Restores, group.MaxBatch, func(batch []*ledger.Entry) error { return c.restore.entries(ctx, batch...) }); err != nil {
		return err
	}
	if err := inBatches(&todo.Acks, group.MaxBatch, func(batch []*ledger.Entry) error { return c.ack(ctx, batch) }); err != nil {
		return err
	}
	return inBatches(&todo.Counts, group.MaxBatch/2, func(batch []*ledger.Entry) error { return c.writeCounts(ctx, batch) })
}

// inBatches calls do for the list in batches, and leaves in it what was not done.
func inBatches(list *[]*ledger.Entry, size int, do func(batch []*ledger.Entry) error) error {
	for len(*list) > 0 {
		batch := (*list)[:min(len(*list), size)]
		if err := do(batch); err != nil {
			return err
		}
		*list = (*list)[len(batch):]
	}
	*list = nil
	return nil
}

// ack acknowledges. Entries that turn out not to be ours are refused by the script.
func (c *committer) ack(ctx context.Context, batch []*ledger.Entry) error {
	others, nobodys, err := c.group.Ack(ctx, names(batch), c.ledger.Commits.Deadline(batch), c.cfg.DeleteOnAck)
	if err != nil {
		if server.Classify(err) == server.Ambiguous {
			c.ledger.Commits.AckSent(batch)
		}
		return err
	}
	c.report.ownershipLost(c.ledger.Commits.Acked(batch, others, nobodys)...)
	return nil
}

// writeCounts writes the delivery counts of entries that wait.
func (c *committer) writeCounts(ctx context.Context, batch []*ledger.Entry) error {
	counts := c.ledger.Commits.NextCounts(batch)
	deleted, err := c.group.WriteCounts(ctx, names(batch), counts)
	if err != nil {
		return err
	}
	c.report.lostPending(c.ledger.Commits.CountsWritten(batch, counts, deleted)...)
	return nil
}
