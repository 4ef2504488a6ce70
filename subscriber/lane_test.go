package subscriber

import "testing"

// keyed is an entry of a key as the reader brings it.
func keyed(n int, key string) arrival {
	a := read(n)
	a.key, a.hasKey = key, true
	return a
}

// A read whose reply was lost has made an entry pending, which is found only when later ones
// of its key are there. As long as none of these is with a handler it goes first.
func TestLateReadKeepsTheOrderOfItsKey(t *testing.T) {
	for name, late := range map[string][]int{
		"before all that was read": {1},
		"between":                  {3},
		"several":                  {1, 3, 5},
	} {
		for _, order := range []Order{OrderKey, OrderStream} {
			t.Run(order.String()+"/"+name, func(t *testing.T) {
				b := testBook(func(c *Config) { c.Order, c.MaxInFlight = order, 4 })
				key := ""
				if order == OrderKey {
					key = "order-7"
				}
				b.add([]arrival{keyed(2, key), keyed(4, key)}, b.now())
				want := map[int]bool{2: true, 4: true}
				for _, n := range late {
					a := keyed(n, key)
					a.entry.msg, a.entry.size = nil, 0 // only its ID is known
					b.add([]arrival{a}, b.now())
					want[n] = true
				}
				for n := range 6 {
					if !want[n] {
						continue
					}
					e, _ := b.next(0)
					if e == nil {
						t.Fatalf("nothing goes out, want entry %d", n)
					} else if int(e.id.MS) != n {
						t.Fatalf("entry %d goes out, want %d", e.id.MS, n)
					}
					if other, _ := b.next(1); other != nil {
						t.Fatalf("entry %d goes out beside %d", other.id.MS, n)
					}
					b.settled(e, true, ask{})
					b.confirm(b.takeJobs().acks)
				}
				if len(b.entries) != 0 || b.readyCount != 0 || len(b.lanes) != 0 {
					t.Errorf("left: %d entries, %d ready, %d lanes", len(b.entries), b.readyCount, len(b.lanes))
				}
			})
		}
	}
}
