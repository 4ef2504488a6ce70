package subscriber

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/onceward/watermill-idempotent/internal/server"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func testBook(change func(*Config)) *book {
	cfg := Config{Group: "g", RedeliverAfter: 100 * time.Millisecond, RedeliverMax: 30 * time.Second}
	change(&cfg)
	cfg.defaults()
	b := newBook(&cfg, "orders", "c-1")
	b.openGate(forever, server.ID{}, 0)
	return b
}

// read is an entry as the reader brings it.
func read(n int) arrival {
	id := server.ID{MS: uint64(n)}
	return arrival{entry: &entry{id: id, name: idText(id), written: 1, msg: message.NewMessage(fmt.Sprint(n), nil), size: 1000}}
}

// An hour in which every message fails: what is held stays bounded, and nothing is lost.
func TestHourOfFailuresStaysBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testBook(func(c *Config) { c.MaxHeld, c.ReadAhead = 500, 50 })
		n, deliveries, renewed := 0, 0, time.Now()
		for end := time.Now().Add(time.Hour); time.Now().Before(end); {
			var batch []arrival
			for range b.free(1000) {
				n++
				batch = append(batch, read(n))
			}
			b.add(batch, b.now())
			e, until := b.next(0)
			if e == nil {
				<-time.After(max(time.Duration(until-b.now()), time.Millisecond))
				if time.Since(renewed) > b.cfg.Heartbeat {
					b.renewed(b.held(), b.now(), verdict{})
					renewed = time.Now()
				}
				b.marked(b.takeJobs().marks, nil)
				continue
			}
			if e.msg == nil { // as the script would have it
				b.prepared(e, message.NewMessage("", nil), 1000, b.now())
			}
			deliveries++
			b.settled(e, false, ask{})
			if len(b.entries) > 500 || len(b.waiting) > 500 || b.bytes > 100*1000 {
				t.Fatalf("%d entries, %d waiting, %d bytes", len(b.entries), len(b.waiting), b.bytes)
			}
		}
		if n != 500 {
			t.Errorf("%d entries read, 500 may be held", n)
		}
		// The backoff reaches its cap of 30 s: about 120 deliveries of each in an hour.
		if per := deliveries / n; per < 100 || per > 180 {
			t.Errorf("%d deliveries of each entry", per)
		}
	})
}

// What is held ends by our clock before MinIdle has passed since it was confirmed.
func TestOwnershipEndsByOurClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := testBook(func(*Config) {})
		sent := b.now()
		b.add([]arrival{read(1), read(2)}, sent)
		e, _ := b.next(0)
		var cause error
		if !b.offer(e, func(err error) { cause = err }) {
			t.Fatal("a fresh entry is not offered")
		}
		<-time.After(53 * time.Second)
		if ended := b.expire(); len(ended) != 0 {
			t.Fatal("ended early")
		}
		<-time.After(2 * time.Second)
		if ended := b.expire(); len(ended) != 1 || !errors.Is(cause, ErrOwnershipLost) {
			t.Errorf("after 55 s of 60: %d ended, cause %v", len(ended), cause)
		}
		// Nothing is handed out that was not renewed.
		if e, _ := b.next(0); e != nil {
			t.Error("a stale entry goes out")
		}
		b.renewed(b.held(), b.now(), verdict{})
		if e, _ := b.next(0); e == nil || e.name != "2-0" {
			t.Error("a renewed entry does not go out")
		}
	})
}

func TestBackoffGrowsToItsCap(t *testing.T) {
	b := testBook(func(*Config) {})
	for count, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond, 9: 25600 * time.Millisecond, 10: 30 * time.Second, 1000: 30 * time.Second} {
		for range 50 {
			if d := b.backoff(count); d > want || d < want*3/4 {
				t.Errorf("after %d deliveries: %v, want %v less up to a quarter", count, d, want)
			}
		}
	}
}

// The invariants of the book under any sequence of events: an entry is out once at a
// time, in order within its key, and never lost.
func TestBookKeepsOrderAndEntries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		order := rapid.SampledFrom([]Order{OrderNone, OrderKey, OrderStream}).Draw(t, "order")
		b := testBook(func(c *Config) { c.Order, c.MaxInFlight, c.MaxHeld, c.ReadAhead = order, 4, 40, 8 })
		b.cfg.RedeliverAfter, b.cfg.RedeliverMax = 0, 0
		keyOf := func(n uint64) string {
			if order == OrderStream {
				return ""
			}
			return fmt.Sprint(n % 3)
		}
		read, acked := 0, map[string]bool{}
		last := map[string]uint64{} // the last one acknowledged of each key
		out := map[int]*entry{}
		step := func(actions int) {
			switch actions {
			case 0: // read
				var list []arrival
				for range min(b.free(0), 5) {
					read++
					a := arrival{entry: &entry{id: server.ID{MS: uint64(read)}, written: 1, msg: message.NewMessage("", nil), size: 1}}
					a.entry.name = idText(a.entry.id)
					a.key, a.hasKey = keyOf(uint64(read)), order != OrderNone
					list = append(list, a)
				}
				b.add(list, b.now())
				b.add(list[:len(list)/2], b.now()) // and found again
			case 1: // hand out
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
				for _, other := range out {
					if other == e {
						t.Fatalf("%s is out twice", e.name)
					}
					if order != OrderNone && other != nil && keyOf(other.id.MS) == keyOf(e.id.MS) {
						t.Fatalf("%s is out with %s of the same key", e.name, other.name)
					}
				}
				if acked[e.name] {
					t.Fatalf("%s goes out after its acknowledgement", e.name)
				}
				if order != OrderNone && e.id.MS < last[keyOf(e.id.MS)] {
					t.Fatalf("%s goes out after %d of its key", e.name, last[keyOf(e.id.MS)])
				}
				if e.msg == nil {
					b.prepared(e, message.NewMessage("", nil), 1, b.now())
				}
				out[slot] = e
			default: // settle or withdraw
				for slot := range b.cfg.MaxInFlight {
					e := out[slot]
					if e == nil {
						continue
					}
					out[slot] = nil
					switch actions {
					case 2:
						acked[e.name] = true
						last[keyOf(e.id.MS)] = e.id.MS
						b.settled(e, true, ask{})
					case 3:
						b.settled(e, false, ask{})
					case 4:
						b.withdraw(e)
					}
					break
				}
				j := b.takeJobs()
				b.marked(j.marks, nil)
				b.confirm(j.acks)
			}
			inQueues := 0
			for _, e := range b.entries {
				if e.state == stateReady {
					inQueues++
				}
			}
			if inQueues != b.readyCount {
				t.Fatalf("%d ready, counted %d", inQueues, b.readyCount)
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
		if len(b.entries) != 0 || len(b.lanes) != 0 || b.bytes != 0 || b.readyCount != 0 {
			t.Fatalf("left: %d entries, %d lanes, %d bytes, %d ready", len(b.entries), len(b.lanes), b.bytes, b.readyCount)
		}
	})
}

// Every script begins with its contract.
func TestScriptsHaveTheirContract(t *testing.T) {
	for name, source := range map[string]string{
		"hold": holdSource, "ack": ackSource, "prepare": prepareSource, "release": releaseSource,
		"bury": burySource, "take": takeSource, "standby": standbySource, "sweep": sweepSource,
		"own": ownSource, "info": infoSource, "restore": restoreSource, "peek": peekSource,
	} {
		for _, part := range []string{"-- KEYS[1]", "-- ARGV[1", "-- Returns", "-- Errors"} {
			if !strings.Contains(source, part) {
				t.Errorf("%s.lua has no %q", name, part)
			}
		}
	}
}

func TestIDBefore(t *testing.T) {
	for id, want := range map[server.ID]server.ID{
		{MS: 5, Seq: 3}: {MS: 5, Seq: 2},
		{MS: 5, Seq: 0}: {MS: 4, Seq: 1<<64 - 1},
		{}:              {},
	} {
		if got := before(id); got != want {
			t.Errorf("before %v is %v, want %v", id, got, want)
		}
	}
}
