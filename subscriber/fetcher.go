package subscriber

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/onceward/watermill-idempotent/internal/server"
	"github.com/onceward/watermill-idempotent/subscriber/internal/group"
	"github.com/onceward/watermill-idempotent/subscriber/internal/ledger"
)

// source is where a fetcher reads.
type source interface {
	// read returns no entry where nothing was added within the block time.
	read(ctx context.Context, count int) ([]group.Entry, error)
	// idle is called when nothing was added.
	idle(ctx context.Context) error
}

// fetcher is the goroutine that reads. It fills the ledger until the subscription ends.
type fetcher struct {
	*shared
	source   source
	decoder  *decoder
	recovery *recovery
	recreate *recreator
	handback *handback

	average   int              // size of an entry
	arrivals  []ledger.Arrival // room for those of one read
	batch     batchSize        // how many it asks for
	isStandby bool             // it has logged so
}

func (f *fetcher) run(ctx context.Context) {
	retry := newRetry()
	f.mustRecover.Store(true) // takes over what is there before anything new
	for !f.isEnding() {
		err := f.step(ctx)
		if err == nil {
			retry.Reset()
			continue
		}
		if group.IsNoGroup(err) && !f.cfg.FanOut {
			if err = f.recreate.again(ctx); err == nil {
				continue
			}
		}
		f.mustRecover.Store(true)
		f.report.outage.failed(doRead, err)
		f.pause(retry.NextBackOff())
	}
}

// step does the next thing that is to be done: stand by, recover, wait for room,
// or read.
func (f *fetcher) step(ctx context.Context) error {
	if f.ledger.Role.MustAsk() {
		return f.askToBeActive(ctx)
	}
	if !f.cfg.FanOut && f.mustRecover.Load() {
		// Cleared first: a failure on another goroutine during the recovery asks for
		// another one.
		f.mustRecover.Store(false)
		if err := f.recover(ctx); err != nil {
			return err
		}
		f.report.outage.over(doRead)
	}
	if f.recovery.lateArrival.Swap(false) {
		// As suspects: it may be a takeover that has come late.
		if err := f.recovery.recoverOwn(ctx, true); err != nil {
			return err
		}
	}
	room := f.ledger.Intake.Free(f.average)
	if room == 0 {
		select {
		case <-f.ledger.Signals.Room:
		case <-f.stopping:
		}
		return nil
	}
	return f.read(ctx, f.batch.atMost(room))
}

func (f *fetcher) read(ctx context.Context, count int) error {
	sent := f.ledger.Now()
	entries, err := f.source.read(ctx, count)
	if err != nil {
		if server.Classify(err) == server.Ambiguous {
			f.batch.noReply(count)
		}
		return err
	}
	f.batch.came(count, len(entries))
	f.report.outage.over(doRead)
	if len(entries) == 0 {
		return f.source.idle(ctx)
	}
	total := 0
	for _, e := range entries {
		total += group.Size(e.Pairs)
		f.arrivals = append(f.arrivals, f.decoder.arrival(e))
	}
	f.arrivals[len(entries)-1].Print = fingerprint(entries[len(entries)-1].Pairs)
	f.measure(total, len(entries))
	f.ledger.Intake.Add(f.arrivals, sent)
	clear(f.arrivals)
	f.arrivals = f.arrivals[:0]
	return nil
}

// measure follows the size of entries, upwards at once and downwards slowly.
func (f *fetcher) measure(total, entries int) {
	now := total / entries
	if now >= f.average {
		f.average = now
	} else {
		f.average -= (f.average - now) / 8
	}
}

// recover finds what is pending for this consumer without its knowledge, since a reply
// was lost, and takes over what others have left, before anything new is read.
func (f *fetcher) recover(ctx context.Context) error {
	if err := f.recovery.recoverOwn(ctx, false); err != nil {
		return err
	}
	if _, err := f.recreate.observe(ctx); err != nil {
		return err
	}
	if f.cfg.Order != OrderNone {
		return nil // askToBeActive does it
	}
	for {
		found, err := f.recovery.takeOver(ctx, true)
		if err != nil {
			return err
		}
		if found == 0 || f.ledger.Intake.Spare() == 0 {
			return nil
		}
	}
}

// One subscription of a group is active when an order is to be kept: the one whose
// consumer the group has (activate.lua). Others have none and ask again and again. The
// active one gives a sign of life with each poll; where it could not for as long as
// another waits before it takes its place, it stands by, by its own clock. Where two
// are active all the same, since a process stood still between the look at its clock and
// a read, or since somebody reads the group without an order, it gives back what no
// handler has, and stands by.

// askToBeActive is what the fetcher does while the subscription is not active.
func (f *fetcher) askToBeActive(ctx context.Context) error {
	if f.mustRecover.Swap(false) {
		if err := f.recovery.recoverOwn(ctx, false); err != nil {
			f.mustRecover.Store(true)
			return err
		}
	}
	alive, found, err := f.recovery.activate(ctx, true)
	if err != nil {
		return err
	}
	f.report.outage.over(doRead)
	f.report.outage.over(doTakeOver) // the maintainer's, which does not ask meanwhile
	if alive > 0 {
		if !f.isStandby {
			f.report.info("Another consumer of the group is active: standing by", nil)
		}
		f.isStandby = true
		if err := f.handback.unpicked(ctx); err != nil {
			f.mustRecover.Store(true)
			return err
		}
	}
	if !f.ledger.Role.MustAsk() {
		f.isStandby = false
	} else if found < (f.cfg.ReadAhead+1)/2 {
		f.pause(f.pollEvery()) // not a script for every entry that makes room
	}
	return nil
}

// groupSource reads a group.
type groupSource struct {
	group *group.Group
	block time.Duration
}

func (s groupSource) read(ctx context.Context, count int) ([]group.Entry, error) {
	return s.group.Read(ctx, count, s.block)
}

func (groupSource) idle(context.Context) error { return nil }

var printSeed = maphash.MakeSeed()

// fingerprint tells entries of one ID apart, in this process.
func fingerprint(pairs []string) uint64 {
	var h maphash.Hash
	h.SetSeed(printSeed)
	for _, p := range pairs {
		_, _ = h.WriteString(p)
		_ = h.WriteByte(0)
	}
	return h.Sum64()
}
