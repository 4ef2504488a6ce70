package ledger

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

// orders are the ways in which entries wait for each other.
var orders = []string{"none", "key", "stream"}

// A read whose reply was lost has made an entry pending, which is found only when later ones
// of its key are there. As long as none of these is with a handler it goes first.
func TestLateReadKeepsTheOrderOfItsKey(t *testing.T) {
	for name, late := range map[string][]int{
		"before all that was read": {1},
		"between":                  {3},
		"several":                  {1, 3, 5},
	} {
		for order, key := range map[string]string{"key": "order-7", "stream": ""} {
			t.Run(order+"/"+name, func(t *testing.T) {
				l := testLedger(func(s *Settings) { s.Ordered, s.MaxInFlight = true, 4 })
				l.add(keyed(2, key), keyed(4, key))
				want := map[int]bool{2: true, 4: true}
				for _, n := range late {
					a := keyed(n, key)
					a.Msg, a.Size = nil, 0 // only its ID is known
					l.add(a)
					want[n] = true
				}
				for n := range 6 {
					if !want[n] {
						continue
					}
					e := l.next(0)
					if e == nil {
						t.Fatalf("nothing goes out, want entry %d", n)
					} else if int(e.id.MS) != n {
						t.Fatalf("entry %d goes out, want %d", e.id.MS, n)
					}
					if other := l.next(1); other != nil {
						t.Fatalf("entry %d goes out beside %d", other.id.MS, n)
					}
					l.settle(e, true)
					l.commit()
				}
				if c := l.core; len(c.entries) != 0 || c.queues.ready != 0 || len(c.lanes) != 0 {
					t.Errorf("left: %d entries, %d ready, %d lanes", len(c.entries), c.queues.ready, len(c.lanes))
				}
			})
		}
	}
}

// When an entry of a key comes back, what came meanwhile and is lower goes first.
func TestLowerEntriesGoBeforeOneThatComesBack(t *testing.T) {
	for name, comesBack := range map[string]func(*Ledger, *Entry){
		"withdrawn": func(l *Ledger, e *Entry) {
			l.add(keyed(3, "order-7"), keyed(2, "order-7"))
			l.Dispatch.Withdraw(e)
		},
		"withdrawn, and then another comes": func(l *Ledger, e *Entry) {
			l.add(keyed(2, "order-7"))
			l.Dispatch.Withdraw(e)
			l.add(keyed(3, "order-7"))
		},
		"not acknowledged": func(l *Ledger, e *Entry) {
			l.add(keyed(3, "order-7"))
			l.settle(e, false)
			l.add(keyed(2, "order-7"))
			l.commit()
			<-time.After(time.Second)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := testLedger(func(s *Settings) { s.Ordered, s.MaxInFlight = true, 4 })
				l.add(keyed(4, "order-7"), keyed(5, "order-7"))
				comesBack(l, l.next(0))
				for want := uint64(2); want <= 5; want++ {
					e := l.next(0)
					if e == nil || e.id.MS != want {
						t.Fatalf("%+v goes out, want entry %d", e, want)
					}
					l.settle(e, true)
					l.commit()
				}
				if c := l.core; len(c.entries) != 0 || c.queues.ready != 0 || len(c.lanes) != 0 {
					t.Errorf("left: %d entries, %d ready, %d lanes", len(c.entries), c.queues.ready, len(c.lanes))
				}
			})
		})
	}
}

// What is dropped since it will be read again lets nothing of its key go out before.
func TestForgottenEntriesKeepTheirOrder(t *testing.T) {
	l := testLedger(func(s *Settings) { s.Ordered = true })
	var list []Arrival
	for n := range 4 {
		list = append(list, keyed(n+1, ""))
	}
	l.add(list...)
	first := l.next(0)
	l.core.mu.Lock()
	dropped := l.core.forget(l.core.entriesFrom(3))
	l.core.mu.Unlock()
	if len(dropped) != 2 {
		t.Errorf("%v dropped, want 2", dropped)
	}
	l.settle(first, true)
	if e := l.next(0); e == nil || e.name != "2-0" {
		t.Errorf("next is %+v, want 2-0", e)
	}
	if e := l.next(0); e != nil {
		t.Errorf("%s goes out, which will be read again", e.name)
	}
}

func (c *core) entriesFrom(ms uint64) (list []*Entry) {
	for id, e := range c.entries {
		if id.MS >= ms {
			list = append(list, e)
		}
	}
	return list
}

// The invariants of a ledger with one consumer alone, under any sequence of events: an entry
// is out once at a time, in order within its key, and never lost.
func TestLedgerKeepsOrderAndEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SampledFrom(orders).Draw(t, "order")
		isOrdered := order != "none"
		l := testLedger(func(s *Settings) { s.Ordered, s.MaxInFlight, s.MaxHeld, s.ReadAhead = isOrdered, 4, 40, 8 })
		l.core.set.RedeliverAfter, l.core.set.RedeliverMax = 0, 0
		keyOf := func(n uint64) string {
			if order == "stream" {
				return ""
			}
			return fmt.Sprint(n % 3)
		}
		read, acked := 0, map[string]bool{}
		last := map[string]uint64{} // the last one acknowledged of each key
		out := map[int]*Entry{}
		step := func(action int) {
			switch action {
			case 0: // read
				var list []Arrival
				for range min(l.Intake.Free(0), 5) {
					read++
					a := fresh(read)
					a.Size, a.Key, a.HasKey = 1, keyOf(uint64(read)), isOrdered
					list = append(list, a)
				}
				l.add(list...)
				l.add(list[:len(list)/2]...) // and found again
			case 1: // hand out
				worker := 0
				for out[worker] != nil {
					worker++
				}
				if worker == l.core.set.MaxInFlight {
					return
				}
				e := l.next(worker)
				if e == nil {
					return
				}
				for _, other := range out {
					if other == e {
						t.Fatalf("%s is out twice", e.name)
					}
					if isOrdered && other != nil && keyOf(other.id.MS) == keyOf(e.id.MS) {
						t.Fatalf("%s is out with %s of the same key", e.name, other.name)
					}
				}
				if acked[e.name] {
					t.Fatalf("%s goes out after its acknowledgement", e.name)
				}
				if isOrdered && e.id.MS < last[keyOf(e.id.MS)] {
					t.Fatalf("%s goes out after %d of its key", e.name, last[keyOf(e.id.MS)])
				}
				if e.msg == nil {
					l.prepare(e)
				}
				out[worker] = e
			default: // settle or withdraw
				for worker := range l.core.set.MaxInFlight {
					e := out[worker]
					if e == nil {
						continue
					}
					out[worker] = nil
					switch action {
					case 2:
						acked[e.name] = true
						last[keyOf(e.id.MS)] = e.id.MS
						l.settle(e, true)
					case 3:
						l.settle(e, false)
					case 4:
						l.Dispatch.Withdraw(e)
					}
					break
				}
				l.commit()
			}
			inQueues, counted := 0, l.core.queues.ready
			for _, e := range l.core.entries {
				if e.stage == ready {
					inQueues++
				}
			}
			if inQueues != counted {
				t.Fatalf("%d ready, counted %d", inQueues, counted)
			}
		}
		for _, a := range rapid.SliceOfN(rapid.IntRange(0, 4), 1, 200).Draw(t, "actions") {
			step(a)
		}
		// All that was read is acknowledged in the end.
		for i := 0; len(acked) < read; i++ {
			if i > 10*read+100 {
				t.Fatalf("%d of %d acknowledged", len(acked), read)
			}
			step(1)
			step(2)
		}
		if c := l.core; len(c.entries) != 0 || len(c.lanes) != 0 || c.bytes != 0 || c.queues.ready != 0 {
			t.Fatalf("left: %d entries, %d lanes, %d bytes, %d ready", len(c.entries), len(c.lanes), c.bytes, c.queues.ready)
		}
	})
}

// Under an order nothing goes out above the lowest entry that another consumer has, in
// whatever parts ownership is lost and comes back.
func TestNothingOvertakesWhatOthersHave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SampledFrom([]string{"key", "stream"}).Draw(t, "order")
		l := testLedger(func(s *Settings) { s.Ordered, s.MaxInFlight, s.MaxHeld, s.ReadAhead = true, 4, 40, 8 })
		l.core.set.RedeliverAfter, l.core.set.RedeliverMax = 0, 0
		arrive := func(n uint64) Arrival {
			a := Arrival{ID: streamid.ID{MS: n}, Count: 1, Size: 1, HasKey: true}
			a.Name = a.ID.String()
			if order == "key" {
				a.Key = fmt.Sprint(n % 3)
			}
			return a
		}
		var read uint64
		others := map[uint64]bool{}
		acked := map[uint64]bool{}
		out := map[int]*Entry{}
		answer := func() {} // to a question that was asked some time ago
		lowest := func() (id streamid.ID) {
			for n := range others {
				if id.MS == 0 || n < id.MS {
					id.MS = n
				}
			}
			return id
		}
		settle := func(worker int, ack bool) {
			e := out[worker]
			delete(out, worker)
			l.settle(e, ack)
			var todo Todo
			if l.Commits.Take(&todo); len(todo.Acks) > 0 {
				refused := map[string]bool{}
				for _, e := range todo.Acks {
					refused[e.name] = others[e.id.MS]
					acked[e.id.MS] = acked[e.id.MS] || !refused[e.name]
				}
				l.Commits.Acked(todo.Acks, refused, nil)
			} else {
				l.Commits.CountsWritten(todo.Counts, l.Commits.NextCounts(todo.Counts), nil)
			}
		}
		step := func(action, draw int) {
			switch action {
			case 0: // read
				var list []Arrival
				for range min(l.Intake.Free(0), 5) {
					read++
					a := arrive(read)
					a.Msg = message.NewMessage("", nil)
					list = append(list, a)
				}
				l.add(list...)
			case 1, 2: // hand out
				worker := 0
				for out[worker] != nil {
					worker++
				}
				if worker == l.core.set.MaxInFlight {
					return
				}
				e := l.next(worker)
				if e == nil {
					return
				}
				if e.msg == nil {
					l.Dispatch.Prepared(e, message.NewMessage("", nil), 1, Delay{}, l.Now())
				}
				if !l.Dispatch.Offer(e, func(error) {}) {
					l.Dispatch.Withdraw(e)
					return
				}
				if low := lowest(); low.MS != 0 && low.MS < e.id.MS {
					t.Fatalf("%s goes out while another has %d", e.name, low.MS)
				}
				out[worker] = e
			case 3, 4: // settle
				for worker := range l.core.set.MaxInFlight {
					if out[worker] != nil {
						settle(worker, action == 3)
						break
					}
				}
			case 5: // another consumer takes some, which the heartbeat finds out
				v := Verdict{Others: map[string]bool{}}
				held := l.Ownership.Held()
				for i, e := range held {
					if (i+draw)%3 == 0 && !acked[e.id.MS] {
						others[e.id.MS], v.Others[e.name] = true, true
					}
				}
				l.Ownership.Renewed(held, l.Now(), v)
			case 6: // it hands some back
				losses := l.Role.Losses()
				var list []Arrival
				for range draw {
					if low := lowest(); low.MS != 0 {
						delete(others, low.MS)
						list = append(list, arrive(low.MS))
					}
				}
				l.add(list...)
				l.Role.Activate(l.Now(), lowest(), losses)
			case 7:
				low, losses := lowest(), l.Role.Losses()
				answer = func() { l.Role.Activate(l.Now(), low, losses) }
			case 8:
				answer()
			}
		}
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			step(rapid.IntRange(0, 8).Draw(t, "action"), rapid.IntRange(0, 3).Draw(t, "draw"))
		}
		for i := 0; len(acked) < int(read); i++ {
			if i > 20*int(read)+100 {
				t.Fatalf("%d of %d acknowledged; others have %v", len(acked), read, others)
			}
			step(6, 1)
			step(1, 0)
			step(3, 0)
		}
	})
}
