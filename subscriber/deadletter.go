package subscriber

import (
	"context"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/internal/wire"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// maxErrorText bounds what a handler's error takes in a dead letter, in bytes.
const maxErrorText = 4096

// deadLetters is the goroutine that moves entries to the dead letters. Acknowledgements
// don't wait for it. It ends after the flush, as the committer does.
type deadLetters struct {
	*shared
	flush   *flush
	restore *restorer
}

func (d *deadLetters) run(ctx context.Context) {
	retry := newRetry()
	var queue []ledger.DeadLetter
	for failures := 0; ; {
		flushing := isClosed(d.flush.all)
		queue = append(queue, d.ledger.Commits.TakeDeadLetters()...)
		if len(queue) == 0 {
			if flushing {
				return
			}
			d.await(nil)
			continue
		}
		var err error
		if queue, err = d.move(ctx, queue); err == nil {
			retry.Reset()
			continue
		}
		if flushing {
			// Those of a group that is gone stay in the ledger: handing back makes it again.
			if failures++; group.IsNoGroup(err) || d.flush.gaveUp(err, failures) {
				d.report.error("Dead letters were not written; their entries will be redelivered", err,
					watermill.LogFields{fieldEntries: len(queue)})
				return
			}
			d.flush.pause(retry.NextBackOff())
			continue
		}
		timer := time.NewTimer(retry.NextBackOff())
		d.await(timer.C)
		timer.Stop()
	}
}

// await waits for more dead letters, the time of another try, or the flush.
func (d *deadLetters) await(again <-chan time.Time) {
	select {
	case <-d.ledger.Signals.DeadLetters:
	case <-again:
	case <-d.flush.all:
	}
}

// move moves entries to the dead letters, and returns those that the server did not take.
func (d *deadLetters) move(ctx context.Context, queue []ledger.DeadLetter) (left []ledger.DeadLetter, failed error) {
	for i, dead := range queue {
		err := d.moveOne(ctx, dead, false)
		if err == nil {
			continue
		}
		failed = fmt.Errorf("dead letter of %s: %w", dead.Name, err)
		left = append(left, dead)
		// The server may refuse one and take the next. One that does not answer would
		// keep us waiting for each.
		if group.IsNoGroup(err) || server.MayBeAnother(err) {
			left = append(left, queue[i+1:]...)
			break
		}
	}
	switch {
	case failed == nil:
		d.report.deadLetters.over(doCommit)
	case group.IsNoGroup(failed):
		d.noteGroupMissing()
	default:
		// Apart from the outage of the connection: reading goes on meanwhile.
		d.report.deadLetters.failed(doCommit, failed)
	}
	return left, failed
}

// moveOne moves an entry to the dead letters. restored tells that it was not pending and
// that this was mended if it could be.
func (d *deadLetters) moveOne(ctx context.Context, dead ledger.DeadLetter, restored bool) error {
	ev := DeadLetterEvent{Topic: d.topic, Group: d.cfg.Group, EntryID: dead.Name, Reason: dead.Reason, Err: dead.Failure, Count: dead.Count}
	if d.cfg.FanOut {
		d.report.deadLetter(ev)
		d.ledger.Commits.Done(dead.Entry)
		return nil
	}
	result, id, err := d.group.DeadLetter(ctx, dead.Name, d.cfg.DeadLetterMaxLen, d.cfg.DeleteOnAck,
		wire.FieldDeadReason, dead.Reason, wire.FieldDeadError, errorText(dead.Failure), wire.FieldDeadCount, dead.Count,
		wire.FieldDeadGroup, d.cfg.Group, wire.FieldDeadOrigin, d.topic+" "+dead.Name,
		wire.FieldDeadAt, time.Now().UTC().Format(time.RFC3339))
	if err != nil {
		return err
	}
	switch {
	case result == group.NoEntry, result != group.Moved && d.ledger.Commits.IsDeleted(dead.Entry):
		d.report.lostPending(dead.Name)
	case result == group.NotPending && !restored: // its group was made again
		if err := d.restore.entries(ctx, dead.Entry); err != nil {
			return err
		}
		return d.moveOne(ctx, dead, true)
	case result != group.Moved:
		d.ledger.Role.StandBy()
		d.report.ownershipLost(ledger.Ended{Name: dead.Name})
	default:
		ev.DeadLetterTopic, ev.DeadLetterID = DeadLetterTopic(d.topic), id
		d.report.deadLetter(ev)
	}
	d.ledger.Commits.Done(dead.Entry)
	return nil
}

// errorText is an error as valid UTF-8 of a bounded length.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	text := strings.ToValidUTF8(err.Error(), "\uFFFD")
	if len(text) <= maxErrorText {
		return text
	}
	end := maxErrorText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}
