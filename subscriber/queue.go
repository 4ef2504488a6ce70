package subscriber

import "container/heap"

// queue is first in, first out.
type queue struct {
	list []*entry
	head int
}

func (q *queue) push(e *entry) {
	if q.head > 64 && q.head > len(q.list)/2 { // make room at the end
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.list = append(q.list, e)
}

// unpop puts an entry back in front.
func (q *queue) unpop(e *entry) {
	if q.head == 0 {
		q.list = append(q.list, nil)
		copy(q.list[1:], q.list)
		q.list[0] = e
		return
	}
	q.head--
	q.list[q.head] = e
}

// peek returns the first entry that is ready and may go, and puts it in front. It drops
// those before it that are not ready any more.
func (q *queue) peek(mayGo func(*entry) bool) *entry {
	for i := q.head; i < len(q.list); i++ {
		e := q.list[i]
		switch {
		case e.state == stateReady && mayGo(e):
			copy(q.list[q.head+1:i+1], q.list[q.head:i])
			q.list[q.head] = e
			return e
		case e.state != stateReady && i == q.head:
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

// waiting has the entries that wait for redelivery, the one that is due first on top.
type waiting []*entry

func (w waiting) Len() int           { return len(w) }
func (w waiting) Less(i, j int) bool { return w[i].due < w[j].due }
func (w waiting) Swap(i, j int)      { w[i], w[j] = w[j], w[i] }
func (w *waiting) Push(x any)        { *w = append(*w, x.(*entry)) }

// Pop is for package heap.
func (w *waiting) Pop() any {
	old := *w
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*w = old[:len(old)-1]
	return e
}

// top returns the entry that is due first, dropping those that don't wait any more.
func (w *waiting) top() *entry {
	for len(*w) > 0 {
		if e := (*w)[0]; e.state == stateWaiting {
			return e
		}
		heap.Pop(w)
	}
	return nil
}
