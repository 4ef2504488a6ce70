package subscriber

import (
	"context"
	"slices"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// handback gives entries to the consumer from which anybody takes them at once.
type handback struct {
	*shared
	recreate *recreator
	restore  *restorer
}

// unpicked hands back what no handler has.
func (h *handback) unpicked(ctx context.Context) error {
	for batch := range slices.Chunk(h.ledger.Handback.Unpicked(), group.MaxBatch) {
		if _, err := h.give(ctx, group.HandbackConsumer, false, batch); err != nil {
			return err
		}
	}
	return nil
}

// all hands back what is held at the end, and removes the own consumer. What a handler still
// works on stays with the own consumer, and is taken over as that of a dead one.
func (h *handback) all(ctx context.Context) {
	back, stay, gone := h.ledger.Handback.Remains()
	h.report.lostPending(gone...)
	tries, recreated := 2, false
	if h.report.outage.health() != nil {
		tries = 1 // the committer has just tried
	}
	stayLeft, backLeft := stay, back
	for {
		err := h.remains(ctx, &stayLeft, &backLeft)
		switch {
		case err == nil:
			return
		case group.IsNoGroup(err):
			if recreated || !h.recreate.atTheEnd(ctx, slices.Concat(stay, back)) {
				return
			}
			recreated = true
		default:
			if tries--; tries == 0 {
				h.report.error("Entries could not be handed back; other consumers take them over after MinIdle", err,
					watermill.LogFields{fieldEntries: len(backLeft) + len(stayLeft)})
				return
			}
		}
	}
}

// remains gives away what stays with the own consumer, and then what goes back. It leaves in
// the lists what was not given.
func (h *handback) remains(ctx context.Context, stay, back *[]ledger.Release) error {
	if err := h.batches(ctx, h.report.consumer, false, stay); err != nil {
		return err
	}
	return h.batches(ctx, group.HandbackConsumer, true, back)
}

// batches gives a list of entries to a consumer. With leave the last batch, of an empty list
// as well, removes the own consumer.
func (h *handback) batches(ctx context.Context, to string, leave bool, list *[]ledger.Release) error {
	for first := true; first && leave || len(*list) > 0; first = false {
		batch := (*list)[:min(len(*list), group.MaxBatch)]
		isLast := len(batch) == len(*list)
		left, err := h.give(ctx, to, leave && isLast, batch)
		if *list = slices.Concat(left, (*list)[len(batch):]); err != nil {
			return err
		}
	}
	return nil
}

// give gives entries to a consumer, and forgets those that no handler has; with leave the
// own consumer is removed. What turns out not to be pending for us may be pending for nobody,
// since the group was made again after the last heartbeat: it is made pending first, if so. With an error it returns what is left
// to be given.
func (h *handback) give(ctx context.Context, to string, leave bool, batch []ledger.Release) (left []ledger.Release, err error) {
	notOurs, deleted, err := h.release(ctx, to, leave, batch)
	if err != nil {
		return batch, err
	}
	left, lost := h.ledger.Handback.Given(batch, notOurs, deleted)
	h.report.lostPending(lost...)
	if len(left) == 0 {
		return nil, nil
	}
	orphans := make([]*ledger.Entry, len(left))
	for i, r := range left {
		orphans[i] = r.Entry
	}
	if err := h.restore.entries(ctx, orphans...); err != nil {
		return left, err
	}
	if _, deleted, err = h.release(ctx, to, leave, left); err != nil {
		return left, err
	}
	_, lost = h.ledger.Handback.Given(left, nil, deleted) // what is nobody's again is another's, or will be read again
	h.report.lostPending(lost...)
	return nil, nil
}

func (h *handback) release(ctx context.Context, to string, leave bool, batch []ledger.Release) (notOurs, deleted map[string]bool, err error) {
	list := make([]group.Release, len(batch))
	for i, r := range batch {
		list[i] = group.Release{Name: r.Name, Idle: r.Idle, Count: r.Count}
	}
	notOurs, deleted, err = h.group.Release(ctx, to, leave, list)
	if err != nil && server.Classify(err) == server.Ambiguous {
		h.ledger.Handback.MaybeGiven(batch)
	}
	return notOurs, deleted, err
}
