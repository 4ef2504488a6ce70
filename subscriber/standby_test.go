package subscriber

import (
	"fmt"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/internal/server"
)

// Under an order nothing goes out above the lowest entry that another consumer has, in
// whatever parts ownership is lost and comes back.
func TestNothingOvertakesWhatOthersHave(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SampledFrom([]Order{OrderKey, OrderStream}).Draw(t, "order")
		b := testBook(func(c *Config) { c.Order, c.MaxInFlight, c.MaxHeld, c.ReadAhead = order, 4, 40, 8 })
		b.cfg.RedeliverAfter, b.cfg.RedeliverMax = 0, 0
		arrive := func(n uint64) arrival {
			a := arrival{entry: &entry{id: server.ID{MS: n}, written: 1, size: 1}, hasKey: true}
			a.entry.name = idText(a.entry.id)
			if order == OrderKey {
				a.key = fmt.Sprint(n % 3)
			}
			return a
		}
		var read uint64
		others := map[uint64]bool{}
		acked := map[uint64]bool{}
		out := map[int]*entry{}
		answer := func() {} // to a question that was asked some time ago
		lowest := func() (id server.ID) {
			for n := range others {
				if id.MS == 0 || n < id.MS {
					id.MS = n
				}
			}
			return id
		}
		settle := func(slot int, ack bool) {
			e := out[slot]
			delete(out, slot)
			b.settled(e, ack, ask{})
			if j := b.takeJobs(); len(j.acks) > 0 {
				refused := map[string]bool{}
				for _, e := range j.acks {
					refused[e.name] = others[e.id.MS]
					acked[e.id.MS] = acked[e.id.MS] || !refused[e.name]
				}
				b.refused(j.acks, refused, nil)
				b.confirm(j.acks)
			} else {
				b.marked(j.marks, nil)
			}
		}
		step := func(action, draw int) {
			switch action {
			case 0: // read
				var list []arrival
				for range min(b.free(0), 5) {
					read++
					a := arrive(read)
					a.entry.msg = message.NewMessage("", nil)
					list = append(list, a)
				}
				b.add(list, b.now())
			case 1, 2: // hand out
				slot := 0
				for out[slot] != nil {
					slot++
				}
				if slot == b.cfg.MaxInFlight {
					return
				}
				e, _ := b.next(slot)
				if e == nil {
					return
				}
				if e.msg == nil {
					b.prepared(e, message.NewMessage("", nil), 1, b.now())
				}
				if !b.offer(e, func(error) {}) {
					b.withdraw(e)
					return
				}
				if low := lowest(); low.MS != 0 && low.MS < e.id.MS {
					t.Fatalf("%s goes out while another has %d", e.name, low.MS)
				}
				out[slot] = e
			case 3, 4: // settle
				for slot := range b.cfg.MaxInFlight {
					if out[slot] != nil {
						settle(slot, action == 3)
						break
					}
				}
			case 5: // another consumer takes some, which the heartbeat finds out
				v := verdict{others: map[string]bool{}}
				held := b.held()
				for i, e := range held {
					if (i+draw)%3 == 0 && !acked[e.id.MS] {
						others[e.id.MS], v.others[e.name] = true, true
					}
				}
				b.renewed(held, b.now(), v)
			case 6: // it hands some back
				losses := b.losses()
				var list []arrival
				for range draw {
					if low := lowest(); low.MS != 0 {
						delete(others, low.MS)
						list = append(list, arrive(low.MS))
					}
				}
				b.add(list, b.now())
				b.openGate(forever, lowest(), losses)
			case 7:
				low, losses := lowest(), b.losses()
				answer = func() { b.openGate(forever, low, losses) }
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
