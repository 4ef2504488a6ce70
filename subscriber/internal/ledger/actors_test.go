package ledger

import (
	"slices"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// actor is a goroutine of a subscription: it has one command under way at a time.
type actor int

const (
	fetcher actor = iota
	maintainer
	dispatcher
	committer
	deadLetters
	actorCount
)

// failure is why a command had no reply.
type failure int

const (
	refused failure = iota
	ambiguous
	noGroup
)

// next lets an actor go on with what it is at; it is false where it is at nothing.
func (w *world) next(a actor) bool {
	f := w.actors[a]
	w.actors[a] = nil
	if f != nil {
		f()
	}
	return f != nil
}

// call sends a command, which the server runs now or later, and whose reply comes now or
// later or never. run is false where the group is missing. With mayBeLate the server may
// run it after the client has given up.
func (w *world) call(a actor, mayBeLate bool, run func() bool, reply func(), failed func(failure)) {
	fail := func(f failure) {
		if f == noGroup {
			w.groupMissing()
		}
		failed(f)
	}
	atServer := func() {
		fate := 13
		if !w.calm {
			fate = w.draw("fate", 14)
		}
		switch {
		case fate == 1:
			fail(refused)
		case fate == 2 || fate == 3 && !mayBeLate:
			fail(ambiguous)
		case fate == 3:
			w.late = append(w.late, run)
			fail(ambiguous)
		case fate == 4 || fate == 5:
			run()
			fail(ambiguous)
		case !run():
			fail(noGroup)
		case fate > 5 && fate < 11:
			w.actors[a] = reply
		default:
			reply()
		}
	}
	if !w.calm && w.draw("on its way", 4) == 1 {
		w.actors[a] = atServer
	} else {
		atServer()
	}
}

// inGroup is a command that needs the group.
func (w *world) inGroup(do func()) func() bool {
	return func() bool {
		if w.s.exists {
			do()
		}
		return w.s.exists
	}
}

// groupMissing is what any actor does that finds the group missing.
func (w *world) groupMissing() {
	w.unverify()
	w.mustRecover = true
}

func (w *world) unverify() {
	w.l.Ownership.Unverify()
	for _, tr := range w.held {
		tr.verified = false
	}
}

// groupGone is called before an operator destroys the group; not in every world.
func (w *world) groupGone() {
	w.isQuiet = false
	for _, tr := range w.held {
		tr.dropped = true
	}
}

// fetch is the fetcher.
func (w *world) fetch() {
	if w.next(fetcher) || w.stopped {
		return
	}
	if !w.mustRecover && !w.lateArrival && !w.l.Role.MustAsk() {
		w.read()
		return
	}
	delete(w.asleep, fetcher) // it was woken for that
	switch {
	case w.mustRecover:
		w.mustRecover = false
		w.own(false)
	case w.l.Role.MustAsk():
		w.activate(fetcher, true)
	default:
		w.lateArrival = false
		w.own(true)
	}
}

func (w *world) fetchFailed(f failure) {
	w.mustRecover = true
	if f == noGroup {
		w.recreate()
	}
}

func (w *world) read() {
	awoke := !w.isAsleep(fetcher, w.l.Signals.Room)
	room := w.l.Intake.Free(10)
	switch {
	case room == 0:
		w.sleeps(fetcher, Forever)
		return
	case !awoke && !slices.ContainsFunc(slices.Collect(keys(w.held)), func(e *Entry) bool { return e.stage == committing }):
		w.t.Fatalf("there is room for %d, and the fetcher was not woken", room)
	case w.l.core.set.Ordered && (!w.active || w.l.Now() >= w.until || w.others != 0):
		w.t.Fatalf("%d may be read; active %v, others have %d", room, w.active, w.others)
	case len(w.l.core.entries)+room > w.l.core.set.MaxHeld:
		w.t.Fatalf("room for %d beside %d, of %d", room, len(w.l.core.entries), w.l.core.set.MaxHeld)
	}
	sent := w.l.Now()
	var ids []uint64
	w.call(fetcher, true, w.inGroup(func() { ids = w.s.read(me, room) }), func() {
		var list []Arrival
		for _, id := range ids {
			a := Arrival{ID: streamid.ID{MS: id}, Name: entryName(id), Count: 1}
			if isBad(id) {
				a.Reason = ReasonUndecodable
			} else {
				a.Msg, a.Size, a.Key, a.HasKey = message.NewMessage("", nil), 10, w.key(id), w.order != "none"
				a.Delay = published(a.Msg)
			}
			list = append(list, a)
		}
		if len(list) > 0 {
			list[len(list)-1].Print = 1
		}
		w.takeIn(list, sent)
	}, w.fetchFailed)
}

// isBad tells that an entry can't be decoded.
func isBad(id uint64) bool { return id%11 == 5 }

// takeIn adds what has arrived.
func (w *world) takeIn(list []Arrival, sent Instant) {
	if len(list) == 0 {
		return
	}
	isRead := list[0].Count == 1 && !list[0].Recovered
	position, known := w.l.core.progress.position, w.l.core.progress.known
	if isRead && known && !list[0].ID.After(position) { // of a group that was made again
		for _, tr := range w.held {
			tr.verified = false
		}
	}
	w.l.Intake.Add(list, sent)
	for _, a := range list {
		e := w.l.core.entries[a.ID]
		if e == nil {
			w.t.Fatalf("%s is not taken in", a.Name)
		}
		tr := w.held[e]
		if tr == nil {
			tr = &tracked{
				e: e, id: a.ID.MS, gen: w.knownGen, inOrder: a.HasKey && a.Reason == "", addedAt: w.seq, recovered: a.Recovered, suspect: a.Suspect && a.Reason == "",
				dropped: !w.isQuiet, came: a.Delay,
			}
			if a.Recovered {
				tr.counted = max(a.Count-1, 0)
			}
			w.cautious = w.cautious || tr.suspect
			w.held[e] = tr
		}
		tr.others = false
		w.ours(tr, sent)
	}
	for e, tr := range w.held {
		if !tr.verified && !tr.deleted && e.owner.state == owned {
			w.t.Fatalf("%s counts as ours, after a group was read that was made again", e.name)
		}
	}
}

// adopt takes in entries that were not read as new.
func (w *world) adopt(found []foundEntry, isSuspect bool, sent Instant) {
	var list []Arrival
	for _, f := range found {
		a := Arrival{
			ID: streamid.ID{MS: f.id}, Name: entryName(f.id), Count: f.count, Recovered: true, Suspect: isSuspect,
			Key: w.key(f.id), HasKey: w.order != "none",
		}
		if w.order == "key" && isBad(f.id) {
			a.Key, a.HasKey, a.Reason = "", false, ReasonUndecodable
		}
		list = append(list, a)
	}
	w.takeIn(list, sent)
}

// own finds what is pending for us without our knowledge.
func (w *world) own(isSuspect bool) {
	w.l.Intake.Watch()
	was := w.unconfirmed
	w.unconfirmed = false
	sent := w.l.Now()
	var found []foundEntry
	w.call(fetcher, false, w.inGroup(func() { found = w.s.own(me) }), func() {
		found = slices.DeleteFunc(found, func(f foundEntry) bool { return w.l.Intake.Knows(streamid.ID{MS: f.id}) })
		w.adopt(found, isSuspect || was || w.takeovers > 0 || w.unconfirmed, sent)
		w.l.Intake.Unwatch()
	}, func(f failure) {
		w.unconfirmed = w.unconfirmed || was
		w.l.Intake.Unwatch()
		w.fetchFailed(f)
	})
}

// maintain is the maintainer.
func (w *world) maintain() {
	if w.next(maintainer) {
		return
	}
	switch w.draw("maintains", 5) {
	case 0, 1:
		w.heartbeat()
	case 2:
		w.look()
	default:
		if !w.stopped {
			w.takeOver(maintainer, w.draw("all", 2) == 0)
		}
	}
}

func (w *world) heartbeat() {
	list := w.l.Ownership.Held()
	sent := w.l.Now()
	ids := idsOf(list)
	if !slices.IsSorted(ids) {
		w.t.Fatalf("%v are to be renewed, not in order", ids)
	}
	var v Verdict
	var ms int64
	w.call(maintainer, false, w.inGroup(func() { v, ms = w.s.heartbeat(ids), w.s.ms() }), func() {
		w.l.Ownership.SetClock(ms)
		was := w.before(list)
		w.l.Ownership.Renewed(list, sent, v)
		for i, e := range list {
			tr := w.held[e]
			isOthers, isNobodys, isDeleted := v.Others[e.name], v.Nobodys[e.name], v.Deleted[e.name]
			switch {
			case tr == nil:
			case !isOthers && !isNobodys && !isDeleted:
				w.ours(tr, sent)
			case tr.seen > sent: // it has come again since
			case isNobodys && !tr.given:
				tr.verified = tr.verified && tr.deleted
			case isNobodys || isOthers:
				w.isAnothers(tr, was[i].stage)
			default:
				w.isDeleted(tr, was[i].stage, was[i].hasMessage)
			}
		}
	}, func(failure) {})
}

type before struct {
	stage      stage
	hasMessage bool
}

func (w *world) before(list []*Entry) (out []before) {
	for _, e := range list {
		out = append(out, before{e.stage, e.msg != nil})
	}
	return out
}

func idsOf(list []*Entry) (ids []uint64) {
	for _, e := range list {
		ids = append(ids, e.id.MS)
	}
	return ids
}

// look asks how far the group is.
func (w *world) look() {
	asked := w.l.Progress.Ask()
	var delivered, lowest uint64
	var others bool
	var mine int
	w.call(maintainer, false, w.inGroup(func() { delivered, lowest, others, mine = w.s.info() }), func() {
		w.l.Progress.Note(asked, streamid.ID{MS: delivered}, streamid.ID{MS: lowest}, others)
		w.lateArrival = w.lateArrival || mine > 0
	}, func(failure) {})
}

// takeOver takes over what others have left.
func (w *world) takeOver(a actor, all bool) {
	if w.l.core.set.Ordered {
		if !w.l.Role.MustAsk() {
			w.activate(a, false)
		}
		return
	}
	most := w.l.Intake.Spare()
	if most == 0 {
		return
	}
	w.takeovers++
	sent := w.l.Now()
	var back, dead []foundEntry
	var ms int64
	w.call(a, true, w.inGroup(func() {
		back, dead = w.s.take(me, most, all)
		ms = w.s.ms()
	}), func() {
		w.l.Ownership.SetClock(ms)
		w.adopt(back, false, sent)
		w.adopt(dead, true, sent)
		w.takeovers--
	}, func(failure) {
		w.mustRecover = true
		w.takeovers--
		w.unconfirmed = w.unconfirmed || all
	})
}

// activate asks for the active role.
func (w *world) activate(a actor, leave bool) {
	w.takeovers++
	sent, most, losses, size := w.l.Now(), w.l.Intake.Spare(), w.l.Role.Losses(), w.l.Ownership.Size()
	learned := w.losses
	var answer activation
	var ms int64
	w.call(a, true, w.inGroup(func() { answer, ms = w.s.activate(most), w.s.ms() }), func() {
		w.l.Ownership.SetClock(ms)
		w.adopt(answer.back, false, sent)
		w.adopt(answer.dead, true, sent)
		switch {
		case answer.alive:
			w.standBy()
			if a == fetcher {
				w.giveUnpicked()
			}
		case leave && answer.mine > size:
			w.unconfirmed, w.mustRecover = true, true
			w.standBy()
		default:
			w.l.Role.Activate(sent, streamid.ID{MS: answer.others}, losses)
			if learned == w.losses {
				w.active, w.until, w.others = true, w.l.core.leaseFrom(sent), answer.others
			}
		}
		w.takeovers--
	}, func(f failure) {
		w.takeovers--
		w.mustRecover, w.unconfirmed = true, true
		if a == fetcher {
			w.fetchFailed(f)
		}
	})
}

func (w *world) standBy() {
	w.l.Role.StandBy()
	if w.l.core.set.Ordered {
		w.learnsOfOthers()
	}
}

// recreate makes the group again.
func (w *world) recreate() {
	isNew := w.s.gen != w.knownGen
	u := w.l.Progress.FirstUnhandled()
	start := uint64(0)
	if !isNew && u.Known {
		start = u.From.MS // a sequence number is that of the ID before
	}
	w.unverify()
	if created := w.s.create(start); !created && !isNew {
		asked := w.l.Progress.Ask()
		delivered, lowest, others, _ := w.s.info()
		w.l.Progress.Note(asked, streamid.ID{MS: delivered}, streamid.ID{MS: lowest}, others)
		return
	}
	for _, tr := range w.held {
		if !isNew && u.Known && !tr.acked && tr.gen == w.s.gen && tr.id <= start {
			w.t.Fatalf("the group is made again from %d, and %s is not handled", start, tr.e.name)
		}
	}
	w.excuseSkipped(start)
	w.toBeReadAgain(slices.Collect(keys(w.held))...)
	w.l.Progress.Reset(isNew)
	w.l.Progress.Restart(streamid.ID{MS: start}, u.Known || isNew)
	if isNew {
		for _, tr := range w.held {
			tr.deleted, tr.lease = tr.deleted || !tr.others, Forever
		}
	}
	w.knownGen = w.s.gen
}

func keys(m map[*Entry]*tracked) func(func(*Entry) bool) {
	return func(yield func(*Entry) bool) {
		for e := range m {
			if !yield(e) {
				return
			}
		}
	}
}

// commit is the committer.
func (w *world) commit() {
	if w.next(committer) {
		return
	}
	w.takeTodo()
	switch {
	case len(w.todo.Restores) > 0:
		w.restore(committer, w.todo.Restores, func() { w.todo.Restores = nil }, w.commitFailed)
	case len(w.todo.Acks) > 0:
		w.acknowledge()
	case len(w.todo.Counts) > 0:
		w.writeCounts()
	}
}

func (w *world) takeTodo() {
	asleep := w.isAsleep(committer, w.l.Signals.Commit)
	n := len(w.todo.Acks)
	w.l.Commits.Take(&w.todo)
	switch {
	case !slices.Equal(w.todo.Acks[n:], w.ackQueue):
		w.t.Fatalf("acknowledgements come as %v, given were %v", idsOf(w.todo.Acks[n:]), idsOf(w.ackQueue))
	case w.todo.IsEmpty():
		w.sleeps(committer, Forever)
	case asleep:
		w.t.Fatalf("there is something to commit, and the committer was not woken")
	}
	w.ackQueue = nil
}

func (w *world) commitFailed(f failure) {
	if f != noGroup {
		return
	}
	w.l.Commits.Done(w.todo.Acks...)
	w.l.Commits.CountsDropped(w.todo.Counts)
	for _, e := range w.todo.Acks {
		delete(w.held, e)
	}
	w.countsKnown(w.todo.Counts)
	w.todo = Todo{}
}

// countsKnown notes that nobody waits for these counts any more.
func (w *world) countsKnown(list []*Entry) {
	for _, e := range list {
		if tr := w.held[e]; tr != nil && e.stage != picked {
			tr.alone = false
		}
	}
}

func (w *world) acknowledge() {
	list := w.todo.Acks
	ids, deadline := idsOf(list), w.l.Commits.Deadline(list)
	var others, nobodys []uint64
	w.call(committer, false, w.inGroup(func() { others, nobodys = w.s.ack(ids, deadline) }), func() {
		for _, e := range w.l.Commits.Acked(list, names(others), names(nobodys)) {
			id := idNamed(list, e.Name)
			if w.isQuiet && w.s.handled[id] == me {
				w.t.Fatalf("the acknowledgement of %s counts as refused, and was accepted", e.Name)
			}
		}
		if len(others) > 0 {
			w.learnsOfOthers()
		}
		for _, e := range list {
			delete(w.held, e)
		}
		w.todo.Acks = nil
	}, func(f failure) {
		if f == ambiguous {
			w.l.Commits.AckSent(list)
		}
		w.commitFailed(f)
	})
}

func idNamed(list []*Entry, name string) uint64 {
	return list[slices.IndexFunc(list, func(e *Entry) bool { return e.name == name })].id.MS
}

func (w *world) writeCounts() {
	list := w.todo.Counts
	counts := w.l.Commits.NextCounts(list)
	var releases []released
	for i, e := range list {
		releases = append(releases, released{e.id.MS, 0, counts[i]})
	}
	var absent, deleted []uint64
	w.call(committer, false, w.inGroup(func() {
		absent, deleted = w.s.release(me, releases)
		for _, id := range absent {
			w.overtaken[id] = true // not written, and nobody is told
		}
	}), func() {
		isGone := names(deleted)
		was := w.before(list)
		w.l.Commits.CountsWritten(list, counts, isGone)
		w.countsKnown(list)
		for i, e := range list {
			if tr := w.held[e]; tr != nil && isGone[e.name] {
				w.isDeleted(tr, was[i].stage, was[i].hasMessage)
			}
		}
		w.todo.Counts = nil
	}, func(f failure) {
		for _, e := range list {
			w.overtaken[e.id.MS] = true // it is written again, maybe when the entry has come anew
		}
		w.commitFailed(f)
	})
}

// restore makes entries pending again.
func (w *world) restore(a actor, list []*Entry, then func(), failed func(failure)) {
	orphans := w.l.Commits.Orphans(list...)
	sent := w.l.Now()
	var found Restoration
	var ms int64
	w.call(a, false, w.inGroup(func() { found, ms = w.s.restore(orphans), w.s.ms() }), func() {
		w.l.Ownership.SetClock(ms)
		var restored []*Entry
		for _, o := range orphans {
			restored = append(restored, o.Entry)
		}
		was := w.before(restored)
		w.l.Commits.Restored(orphans, found, sent)
		for i, e := range restored {
			tr := w.held[e]
			switch {
			case tr == nil:
			case !found.Others[e.name] && !found.Unread[e.name] && !found.Deleted[e.name]:
				w.ours(tr, sent)
			case tr.seen > sent:
			case found.Unread[e.name]:
				if isWithNobody(was[i].stage) {
					delete(w.held, e)
				}
			case found.Deleted[e.name]:
				w.isDeleted(tr, was[i].stage, was[i].hasMessage)
			default:
				w.isAnothers(tr, was[i].stage)
			}
		}
		then()
	}, failed)
}

// moveDead is the goroutine of the dead letters.
func (w *world) moveDead() {
	if w.next(deadLetters) {
		return
	}
	asleep := w.isAsleep(deadLetters, w.l.Signals.DeadLetters)
	list := w.l.Commits.TakeDeadLetters()
	for _, d := range list {
		w.checkDeadLetter(d)
	}
	w.dead = append(w.dead, list...)
	switch {
	case len(w.dead) == 0:
		w.sleeps(deadLetters, Forever)
	case asleep && len(list) > 0:
		w.t.Fatalf("there are dead letters, and their goroutine was not woken")
	default:
		w.moveOne(false)
	}
}

func (w *world) checkDeadLetter(d DeadLetter) {
	tr, most := w.held[d.Entry], w.l.core.set.MaxDeliveries
	switch {
	case tr == nil:
		w.t.Fatalf("%s becomes a dead letter, and is not held", d.Name)
	case d.Count != tr.counted:
		w.t.Fatalf("%s is a dead letter with count %d, want %d", d.Name, d.Count, tr.counted)
	case d.Reason == ReasonMaxDeliveries && (most == 0 || tr.counted < most):
		w.t.Fatalf("%s is a dead letter after %d deliveries of %d", d.Name, tr.counted, most)
	case d.Reason == ReasonUndecodable && !isBad(tr.id), d.Reason == "":
		w.t.Fatalf("%s is a dead letter for %q", d.Name, d.Reason)
	}
}

func (w *world) moveOne(wasRestored bool) {
	d := w.dead[0]
	var result string
	w.call(deadLetters, false, w.inGroup(func() { result = w.s.deadLetter(d.Entry.id.MS) }), func() {
		switch {
		case result == isNobody && !wasRestored && !w.l.Commits.IsDeleted(d.Entry):
			w.restore(deadLetters, []*Entry{d.Entry}, func() { w.moveOne(true) }, func(failure) {})
			return
		case result == isOthers || result == isNobody:
			if !w.l.Commits.IsDeleted(d.Entry) {
				w.standBy()
			}
		}
		w.l.Commits.Done(d.Entry)
		delete(w.held, d.Entry)
		w.dead = w.dead[1:]
	}, func(failure) {})
}
