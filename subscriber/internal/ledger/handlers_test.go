package ledger

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

// handout is an entry that was picked.
type handout struct {
	e       *Entry
	tr      *tracked
	msg     *message.Message
	came    Delay // what the message came with
	offered bool
	taken   bool
	cause   error // of the end of its context
}

// published is what every message comes with: a delay that another service has asked for,
// of the message which this one is a copy of.
func published(msg *message.Message) Delay {
	return setDelay(msg, Delay{Until: "2000-01-01T00:00:00Z", For: "5s"})
}

func setDelay(msg *message.Message, d Delay) Delay {
	msg.Metadata.Set(wmeta.DelayedUntil, d.Until)
	msg.Metadata.Set(wmeta.DelayedFor, d.For)
	return d
}

// dispatch is the dispatcher.
func (w *world) dispatch() {
	worker := slices.Index(w.workers, nil)
	if w.next(dispatcher) || w.stopped || worker < 0 {
		return
	}
	asleep := w.isAsleep(dispatcher, w.l.Signals.Wake)
	p, until := w.l.Dispatch.Next(worker)
	if p.Entry == nil {
		w.sleeps(dispatcher, until)
		return
	}
	if asleep {
		w.t.Fatalf("%s may go out, and the dispatcher was not woken", p.Entry.name)
	}
	h := &handout{e: p.Entry, tr: w.checkPicked(p.Entry), msg: p.Msg}
	h.tr.counted++
	h.came = h.tr.came
	w.workers[worker] = h
	if p.Prepare {
		w.prepare(h)
	} else {
		w.offer(h)
	}
}

func (w *world) workerOf(h *handout) int { return slices.Index(w.workers, h) }

// prepare fetches the message and writes the count.
func (w *world) prepare(h *handout) {
	sent := w.l.Now()
	count, delay := w.l.Dispatch.OutCount(h.e)
	var result string
	w.call(dispatcher, false, w.inGroup(func() { result = w.s.prepare(h.tr.id, count) }), func() {
		switch {
		case result == isNobody:
			w.withdrawn(h, w.l.Dispatch.Question)
			h.tr.verified = false
		case result == isOthers:
			w.learnsOfOthers()
			w.dropped(h, true)
		case result == isGone:
			w.dropped(h, false)
		case isBad(h.tr.id):
			w.workers[w.workerOf(h)] = nil
			h.tr.counted--
			h.tr.alone = false
			w.l.Dispatch.Undecodable(h.e, errors.New("no message"))
		default:
			h.msg = message.NewMessage("", nil)
			if came := published(h.msg); delay.Until == "" {
				delay = came
			} else {
				setDelay(h.msg, delay)
			}
			h.tr.came, h.came = delay, delay
			w.l.Dispatch.Prepared(h.e, h.msg, 10, delay, sent)
			w.ours(h.tr, sent)
			w.offer(h)
		}
	}, func(failure) {
		w.withdrawn(h, func(e *Entry) bool { return w.l.Dispatch.Postpone(e, 200*time.Millisecond) })
	})
}

func (w *world) dropped(h *handout, isAnothers bool) {
	w.workers[w.workerOf(h)] = nil
	delete(w.held, h.e)
	w.l.Dispatch.Drop(h.e, isAnothers)
}

// withdrawn takes back what was not handed out.
func (w *world) withdrawn(h *handout, withdraw func(*Entry) bool) {
	tr := h.tr
	isOld := w.l.core.entries[h.e.id] != h.e
	isLost := tr.deleted && !tr.others && (h.e.msg == nil || w.stopped || isOld)
	w.workers[w.workerOf(h)] = nil
	tr.counted--
	tr.alone = false
	if tr.others || isLost {
		delete(w.held, h.e)
	}
	if got := withdraw(h.e); got != isLost {
		w.t.Fatalf("%s is withdrawn and lost: %v, want %v", h.e.name, got, isLost)
	}
}

// offer puts a message into the channel.
func (w *world) offer(h *handout) {
	if !w.l.Dispatch.Offer(h.e, func(cause error) { h.cause = cause }) {
		w.withdrawn(h, w.l.Dispatch.Withdraw)
		return
	}
	h.offered = true
	w.checkOffered(h.tr, true)
	if !w.calm && w.draw("nobody takes it", 3) == 0 {
		w.actors[dispatcher] = func() { w.stay(h) }
	} else {
		h.taken = true
	}
}

// stay is what becomes of a message that nobody has taken yet.
func (w *world) stay(h *handout) {
	select {
	case <-w.l.Signals.Recall:
		if !w.l.Dispatch.MayStay(h.e) {
			h.offered = false
			w.withdrawn(h, w.l.Dispatch.Withdraw)
			return
		}
	default:
	}
	if h.cause != nil {
		w.t.Fatalf("%s is taken when its context has ended", h.e.name)
	}
	w.checkOffered(h.tr, false)
	h.taken = true
}

// handle is a handler that settles its message.
func (w *world) handle() {
	var with []int
	for n, h := range w.workers {
		if h != nil && h.taken {
			with = append(with, n)
		}
	}
	if len(with) > 0 {
		w.settle(with[w.draw("worker", len(with))])
	}
}

// asked is what a handler asks for before it settles its message.
type asked struct {
	acked   bool
	failed  bool
	delayed bool
	delay   time.Duration
	counts  bool // a failure was noted before the delay
	reason  string
	request time.Duration // by metadata, 0 for none
}

func (w *world) ask(h *handout) asked {
	a := asked{acked: w.calm || w.draw("acked", 2) == 0}
	for range 2 {
		if w.calm {
			break
		}
		switch w.draw("asks", 12) {
		case 0:
			h.e.Failed(errors.New("no funds"))
			a.failed = true
		case 1, 2:
			a.delay = time.Duration(w.draw("delay", 3)) * 5 * time.Second
			a.delayed, a.counts = true, a.failed
			h.e.Delay(a.delay)
		case 3:
			a.reason = ReasonRejected
			h.e.Reject("", nil)
			a.failed = false
		}
	}
	if !a.acked && w.draw("by metadata", 3) == 0 {
		a.request = 3 * time.Second
		setDelay(h.msg, Delay{Until: time.Now().UTC().Add(a.request).Format(time.RFC3339), For: a.request.String()})
	}
	return a
}

// settle settles a message, and compares what comes of it with what should.
func (w *world) settle(worker int) {
	h := w.workers[worker]
	a := w.ask(h)
	isSuspect := h.tr.suspect
	want := w.expected(h, a)
	got := w.l.Outcomes.Settle(h.e, a.acked, h.msg)
	w.workers[worker] = nil
	if got.Settlement != want.Settlement || got.Count != want.Count || got.Lost != want.Lost || (got.Redelivery == nil) != (want.Redelivery == nil) {
		w.t.Fatalf("%s, %+v, %+v: %+v %+v, want %+v %+v", h.e.name, *h.tr, a, got, got.Redelivery, want, want.Redelivery)
	}
	if r := want.Redelivery; r != nil && (got.Redelivery.Delayed != r.Delayed || got.Redelivery.Count != r.Count || got.Redelivery.After > r.After || got.Redelivery.After < r.After*3/4 || r.Delayed && got.Redelivery.After != r.After) {
		w.t.Fatalf("%s, %+v: redelivery %+v, want %+v", h.e.name, a, *got.Redelivery, *r)
	}
	if isSuspect {
		w.cautious = false
		if !w.l.Commits.IsUrgent() {
			w.t.Fatalf("%s was suspected, and the committer may wait", h.e.name)
		}
	}
}

// expected is the outcome that a settlement should have; it notes what comes of it.
func (w *world) expected(h *handout, a asked) Outcome {
	tr := h.tr
	set := &w.l.core.set
	out := Outcome{Count: tr.counted}
	wasSuspect := tr.suspect
	tr.suspect = false
	isUncounted := false
	var after time.Duration
	isDelayed := false
	switch isHandled := a.acked && a.reason == "" && !a.delayed; {
	case tr.deleted && !tr.others && !isHandled:
		out.Settlement, out.Lost = Interrupted, true
		delete(w.held, tr.e)
		return out
	case a.reason != "":
		out.Settlement = Rejected
		tr.alone = false
		return out
	case isHandled:
		out.Settlement = Acked
		w.excuse(tr)
		if tr.deleted {
			delete(w.held, tr.e)
		} else {
			tr.acked = true
			w.ackQueue = append(w.ackQueue, tr.e)
		}
		return out
	case tr.others:
		out.Settlement = Interrupted
		delete(w.held, tr.e)
		return out
	case a.delayed && (!a.counts || h.cause != nil):
		out.Settlement, isUncounted, after, isDelayed = Delayed, true, a.delay, true
	case h.cause != nil:
		out.Settlement, isUncounted, after = Interrupted, true, set.RedeliverAfter
	case set.MaxDeliveries > 0 && tr.counted >= set.MaxDeliveries:
		out.Settlement = Nacked
		tr.alone = false
		return out
	case a.delayed:
		out.Settlement, after, isDelayed = Nacked, a.delay, true
	case a.request > 0:
		out.Settlement, after, isDelayed = Nacked, a.request, true
		tr.came = Delay{} // another spelling of what it has asked for
	default:
		out.Settlement, after = Nacked, min(set.RedeliverAfter<<(tr.counted-1), set.RedeliverMax)
	}
	if isUncounted {
		tr.counted--
		tr.suspect = wasSuspect
	}
	if tr.deleted || tr.e.counts.server == tr.counted+1 {
		tr.alone = false // the server knows
	}
	out.Redelivery = &Redelivery{Count: tr.counted, After: after, Delayed: isDelayed}
	return out
}

// sorted brings what a map has given into an order.
func sorted(list []Release) []Release {
	slices.SortFunc(list, func(a, b Release) int { return byID(a.Entry, b.Entry) })
	return list
}

func toServer(list []Release) (out []released) {
	for _, r := range list {
		out = append(out, released{r.Entry.id.MS, r.Idle, r.Count})
	}
	return out
}

func (w *world) checkReleases(list []Release) {
	for _, r := range list {
		tr := w.held[r.Entry]
		switch {
		case tr == nil:
			w.t.Fatalf("%s is handed back, and not held", r.Name)
		case r.Count != tr.counted+1 && r.Entry.stage != committing:
			w.t.Fatalf("%s is handed back with count %d after %d deliveries", r.Name, r.Count, tr.counted)
		case r.Entry.stage == waiting && w.l.Now() < r.Entry.due && r.Idle > max(testMinIdle-time.Duration(r.Entry.due-w.l.Now()), 0):
			w.t.Fatalf("%s is handed back with idle time %v and has to wait", r.Name, r.Idle)
		}
	}
}

// giveUnpicked hands back what no handler has, of a consumer that stands by.
func (w *world) giveUnpicked() {
	list := sorted(w.l.Handback.Unpicked())
	for _, r := range list {
		if !isWithNobody(r.Entry.stage) {
			w.t.Fatalf("%s is handed back, and somebody works on it", r.Name)
		}
	}
	w.checkReleases(list)
	if len(list) > 0 {
		w.give(list, func(left []Release) {
			var entries []*Entry
			for _, r := range left {
				entries = append(entries, r.Entry)
			}
			w.restore(fetcher, entries, func() { w.give(left, func(left []Release) { w.given(left, nil, nil) }) }, w.fetchFailed)
		})
	}
}

func (w *world) give(list []Release, onLeft func([]Release)) {
	var absent, deleted []uint64
	w.call(fetcher, false, w.inGroup(func() { absent, deleted = w.s.release(handback, toServer(list)) }), func() {
		if left := w.given(list, names(absent), names(deleted)); len(left) > 0 {
			onLeft(left)
		}
	}, func(f failure) {
		if f == ambiguous {
			w.l.Handback.MaybeGiven(list)
			for _, r := range list {
				if tr := w.held[r.Entry]; tr != nil {
					tr.given, tr.verified = true, false
					w.overtaken[tr.id] = true // it may come back with the count that it was given with
				}
			}
		}
		w.fetchFailed(f)
	})
}

// given notes what was given away, and returns what was not.
func (w *world) given(list []Release, absent, deleted map[string]bool) []Release {
	var want []string
	for _, r := range list {
		tr := w.held[r.Entry]
		switch {
		case tr == nil:
		case absent[r.Name] && !tr.given:
			want = append(want, r.Name)
		default:
			if deleted[r.Name] {
				tr.deleted, tr.lease = tr.deleted || !tr.others, Forever
			}
			w.toBeReadAgain(r.Entry)
		}
	}
	left, _ := w.l.Handback.Given(list, absent, deleted)
	var got []string
	for _, r := range left {
		if w.held[r.Entry] != nil {
			got = append(got, r.Name)
		}
	}
	if !slices.Equal(got, want) {
		w.t.Fatalf("%v were not given, want %v", got, want)
	}
	return left
}

// handBackAll hands back what is held at the end, and checks that nothing is left.
func (w *world) handBackAll() {
	back, stay, gone := w.l.Handback.Remains()
	w.checkRemains(back, stay, gone)
	if !w.s.exists {
		return // made again first, as by the next subscription; see recreate
	}
	for _, r := range stay {
		w.s.release(me, []released{{r.Entry.id.MS, 0, r.Count}})
	}
	w.checkReleases(back)
	absent, deleted := w.s.release(handback, toServer(sorted(back)))
	w.given(back, names(absent), names(deleted))
	if w.isQuiet {
		for _, r := range back {
			if p := w.s.pending[r.Entry.id.MS]; p != nil && p.owner == handback && !slices.Contains(absent, r.Entry.id.MS) && p.count != r.Count {
				w.t.Fatalf("%s was handed back with count %d, want %d", r.Name, p.count, r.Count)
			}
		}
		w.held = map[*Entry]*tracked{}
		w.checkNothingForgotten()
	}
}

// checkRemains checks that all that is held goes back, stays, or is gone.
func (w *world) checkRemains(back, stay []Release, gone []string) {
	var got, want []string
	for _, r := range back {
		got = append(got, "back "+r.Name)
	}
	for _, r := range stay {
		got = append(got, "stay "+r.Name)
	}
	for _, name := range gone {
		got = append(got, "gone "+name)
	}
	for e, tr := range w.held {
		switch {
		case tr.deleted && !tr.acked:
			want = append(want, "gone "+e.name)
		case tr.deleted || tr.others:
		case e.stage == picked:
			want = append(want, "stay "+e.name)
		default:
			want = append(want, "back "+e.name)
		}
	}
	slices.SortFunc(got, cmp.Compare[string])
	slices.SortFunc(want, cmp.Compare[string])
	if !slices.Equal(got, want) {
		w.t.Fatalf("at the end %v, want %v", got, want)
	}
}
