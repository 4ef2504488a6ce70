package deadletter

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/invalid"
	"github.com/onceward/watermill-idempotent/internal/wmeta"
	"github.com/onceward/watermill-idempotent/publisher"
)

// removeWithin bounds the removal of a letter that was published.
const removeWithin = 5 * time.Second

const defaultStopAfter = 10

// Replay says which letters to publish again, and how. Publisher is required.
type Replay struct {
	// Filter picks the letters; empty, all that there are now.
	Filter Filter
	// Publisher publishes to the topic. It should be a *publisher.Publisher, which recognises
	// what it has published before; another one is ErrPublisher, unless AnyPublisher is set.
	Publisher message.Publisher
	// AnyPublisher allows a publisher of another kind. Then a letter whose reply is lost, or
	// whose program dies before the letter is removed, is published twice.
	AnyPublisher bool
	// Attempt tells deliberate copies of one letter apart: 0 for the first one, 1 for the
	// second, and so on. Without another number a letter that was replayed before, and kept,
	// is recognised and not published again.
	Attempt int
	// By names who replays; it is noted on the entry together with the time.
	By string
	// Keep leaves the letters where they are.
	Keep bool
	// Forget, if set, removes the records of events first, so that a handler that has handled
	// the event runs again.
	Forget *Forget
	// DryRun publishes, forgets and removes nothing, and reports what would be done.
	DryRun bool
	// StopAfter ends the replay after so many failures one after the other; 0 means 10, a
	// negative value never. Letters that can't be decoded don't count.
	StopAfter int
	// OnLetter, if set, is called with the outcome of each letter, in order.
	OnLetter func(Outcome)
}

// Replay publishes letters to their topic again and removes each one after that. It goes on
// after a letter that fails: see Result.Failures. The error says why it did not get through
// all of them: the configuration, the server that could not be read, StopAfter, or ctx.
//
// The entry has the letter's metadata, with "_dead_replayed_at", "_dead_replayed_by" and the count
// "_dead_replays" in addition (not in mode IDMPAuto, where the server would take them for
// content).
//
// Each step can be repeated: the records are forgotten first, then the letter is published,
// then removed. Letters that come while it runs are left out, those that fail again among them.
func (l *Letters) Replay(ctx context.Context, topic string, r Replay) (Result, error) {
	if err := r.validate(topic); err != nil {
		return Result{}, err
	}
	run := replaying{letters: l, topic: topic, Replay: r}
	run.sender, _ = r.Publisher.(sender)
	if run.StopAfter == 0 {
		run.StopAfter = defaultStopAfter
	}
	return l.each(ctx, topic, r.Filter, r.OnLetter, run.one)
}

// sender is what our publisher has, and no other.
type sender interface {
	Send(ctx context.Context, topic string, msgs ...*message.Message) ([]publisher.Receipt, error)
}

func (r Replay) validate(topic string) error {
	var f invalid.Faults
	f.AddIf(topic == "", "the topic is empty")
	if err := r.Filter.Validate(); err != nil {
		f = append(f, err)
	}
	_, ours := r.Publisher.(sender)
	switch {
	case r.Publisher == nil:
		f.Add("Publisher is nil")
	case !ours && !r.AnyPublisher:
		f.Add("Publisher: a %T is %w: a letter whose reply is lost would be published twice; set AnyPublisher to allow that", r.Publisher, ErrPublisher)
	}
	invalid.Negative(&f, "Attempt", r.Attempt)
	if r.Forget != nil {
		r.Forget.validate(&f)
	}
	return f.Err("deadletter: invalid replay")
}

// replaying is a replay under way.
type replaying struct {
	Replay
	letters *Letters
	topic   string
	sender  sender // nil for a publisher of another kind
	failed  int    // one after the other
}

// one replays a letter. The error ends the replay.
func (r *replaying) one(ctx context.Context, letter Letter) (Outcome, error) {
	out := r.try(ctx, letter)
	if out.Err == nil {
		r.failed = 0
		return out, nil
	}
	if out.Action == ActionGone {
		return out, nil
	}
	out.Action = ActionFailed
	if ctx.Err() != nil {
		return out, fmt.Errorf("deadletter: replay: %w", context.Cause(ctx))
	}
	if letter.Err == nil { // else it says nothing of those behind it
		r.failed++
	}
	if letter.Err == nil && r.failed == r.StopAfter {
		return out, fmt.Errorf("deadletter: replay stopped after %d failures one after the other: %w", r.failed, out.Err)
	}
	return out, nil
}

func (r *replaying) try(ctx context.Context, letter Letter) Outcome {
	out := Outcome{Letter: letter, Action: ActionReplayed, Err: letter.Err}
	if out.Err != nil {
		return out
	}
	if out.Err = r.there(ctx, letter); out.Err != nil {
		if errors.Is(out.Err, ErrNotFound) {
			out.Action = ActionGone
		}
		return out
	}
	msg := r.message(letter)
	if r.Forget != nil {
		out.Forgotten, out.HandledAt, out.Err = r.Forget.run(ctx, r.topic, letter, msg, r.DryRun)
	}
	if out.Err != nil || r.DryRun {
		return out
	}
	if out.Receipt, out.Err = r.publish(ctx, msg); out.Err != nil {
		return out
	}
	// The server says Duplicate of our own first try too, in one mode.
	if out.Receipt.Verdict >= publisher.VerdictDuplicate && !out.Receipt.Resent {
		out.Action = ActionAlreadyReplayed
	}
	if r.Keep {
		return out
	}
	// Also where ctx has ended meanwhile: else the letter would be there, and published.
	removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	if _, err := r.letters.remove(removing, r.topic, letter.ID); err != nil {
		out.Err = fmt.Errorf("published as %s, but still a dead letter (replay it again to remove it): %w", out.Receipt.EntryID, err)
	}
	return out
}

// there looks whether a letter that was read, in a batch perhaps long ago, is still there:
// what another operator has dropped since is not published.
func (r *replaying) there(ctx context.Context, letter Letter) error {
	_, err := r.letters.Get(ctx, r.topic, letter.ID)
	return err
}

// message is what is published.
func (r *replaying) message(letter Letter) *message.Message {
	msg := letter.Message()
	// The origin tells the replay from the event's first publish. A letter that does not say it,
	// written by hand or by other code, would be taken for that one's duplicate, and be removed.
	if msg.Metadata[wmeta.DeadOrigin] == "" {
		msg.Metadata[wmeta.DeadOrigin] = r.topic + " " + letter.ID
	}
	for range r.Attempt {
		eventkey.NextAttempt(msg)
	}
	msg.Metadata[wmeta.DeadReplays] = strconv.Itoa(letter.Replays + 1)
	msg.Metadata[wmeta.DeadReplayedAt] = time.Now().UTC().Format(time.RFC3339)
	delete(msg.Metadata, wmeta.DeadReplayedBy) // of an earlier one
	if r.By != "" {
		msg.Metadata[wmeta.DeadReplayedBy] = r.By
	}
	return msg
}

func (r *replaying) publish(ctx context.Context, msg *message.Message) (publisher.Receipt, error) {
	if r.sender == nil {
		msg.SetContext(ctx)
		err := r.Publisher.Publish(r.topic, msg)
		receipt, _ := publisher.ReceiptOf(msg) // of ours, where it is inside of another one
		return receipt, err
	}
	receipts, err := r.sender.Send(ctx, r.topic, msg)
	var receipt publisher.Receipt
	if len(receipts) == 1 {
		receipt = receipts[0]
	}
	if err != nil && receipt.Err != nil {
		err = receipt.Err // without the list of messages, which is of this one
	}
	return receipt, err
}

// Drop says which letters to remove for good.
type Drop struct {
	// Filter picks the letters; empty, all that there are now.
	Filter Filter
	// DryRun removes nothing, and reports what would be removed.
	DryRun bool
	// OnLetter, if set, is called with the outcome of each letter, in order.
	OnLetter func(Outcome)
}

// Drop removes letters without publishing them.
func (l *Letters) Drop(ctx context.Context, topic string, d Drop) (Result, error) {
	var f invalid.Faults
	f.AddIf(topic == "", "the topic is empty")
	if err := d.Filter.Validate(); err != nil {
		f = append(f, err)
	}
	if err := f.Err("deadletter: invalid drop"); err != nil {
		return Result{}, err
	}
	return l.each(ctx, topic, d.Filter, d.OnLetter, func(ctx context.Context, letter Letter) (Outcome, error) {
		out := Outcome{Letter: letter, Action: ActionDropped}
		if d.DryRun {
			return out, nil
		}
		switch n, err := l.remove(ctx, topic, letter.ID); {
		case err != nil:
			out.Action, out.Err = ActionFailed, err // the server would refuse the next one as well
		case n == 0:
			out.Action, out.Err = ActionGone, ErrNotFound
		}
		if out.Action == ActionFailed {
			return out, out.Err
		}
		return out, nil
	})
}
