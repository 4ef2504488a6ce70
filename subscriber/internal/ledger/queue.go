package ledger

import "container/heap"

// queues are the entries that are ready, and those that wait for their time.
type queues struct {
	fresh       queue // read, with their message
	recovered   queue // of which only the ID is known: handed back, or left by a lost reply
	suspects    queue // the same, from consumers that died
	redelivered queue // to be handed out again
	again       bool  // the last one that went out was redelivered
	waiting     waitingList

	ready     int     // entries that are ready, in any of them
	notBefore Instant // when the server is to be asked again for a message
}

func (q *queues) of(e *Entry) *queue {
	switch {
	case e.msg != nil && e.isFresh():
		return &q.fresh
	case e.suspicion.isSuspect():
		return &q.suspects
	case !e.counts.redelivered:
		return &q.recovered
	default:
		return &q.redelivered
	}
}

// queue is first in, first out.
type queue struct {
	list []*Entry
	head int
}

func (q *queue) push(e *Entry) {
	if q.head > 64 && q.head > len(q.list)/2 { // make room at the end
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, e)
}

// unpop puts an entry back in front.
func (q *queue) unpop(e *Entry) {
	e.queued = true
	if q.head == 0 {
		q.list = append(q.list, nil)
		copy(q.list[1:], q.list)
		q.list[0] = e
		return
	}
	q.head--
	q.list[q.head] = e
}

// bringToFront returns the first entry that is ready and may go, and puts it in front. It drops
// those before it that are not ready any more.
func (q *queue) bringToFront(mayGo func(*Entry) bool) *Entry {
	for i := q.head; i < len(q.list); i++ {
		e := q.list[i]
		switch {
		case e.stage == ready && mayGo(e):
			copy(q.list[q.head+1:i+1], q.list[q.head:i])
			q.list[q.head] = e
			return e
		case e.stage != ready && i == q.head:
			q.pop()
		}
	}
	return nil
}

func (q *queue) pop() {
	q.list[q.head].queued = false
	q.list[q.head] = nil
	q.head++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
	}
}

// waitingList has the entries that wait for redelivery, the one that is due first on top.
type waitingList []*Entry

func (w waitingList) Len() int           { return len(w) }
func (w waitingList) Less(i, j int) bool { return w[i].due < w[j].due }
func (w waitingList) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }

// Push is for package heap.
func (w *waitingList) Push(x any) { *w = append(*w, x.(*Entry)) }

// Pop is for package heap.
func (w *waitingList) Pop() any {
	old := *w
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	return e
}

func (w *waitingList) add(e *Entry) { heap.Push(w, e) }

// takeDue returns the next entry that is due, nil if there is none; then next is when to
// look again. It drops those that don't wait any more.
func (w *waitingList) takeDue(now Instant) (due *Entry, next Instant) {
	for len(*w) > 0 {
		switch e := (*w)[0]; {
		case e.stage != waiting:
			heap.Pop(w)
		case e.due > now:
			return nil, e.due
		default:
			heap.Pop(w)
			return e, Forever
		}
	}
	return nil, Forever
}
