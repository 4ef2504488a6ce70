package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"go.uber.org/goleak"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testLedger is an active ledger with the settings that a Config has by default.
func testLedger(change func(*Settings)) *Ledger {
	s := Settings{
		Topic: "orders", Group: "g", Consumer: "c-1",
		MaxInFlight: 1, ReadAhead: 256, ReadAheadBytes: 32 << 20, MinIdle: 60 * time.Second,
		RedeliverAfter: 100 * time.Millisecond, RedeliverMax: 30 * time.Second,
	}
	change(&s)
	if s.MaxHeld == 0 {
		s.MaxHeld = max(10*s.ReadAhead, 2*s.MaxInFlight)
	}
	l := New(s)
	l.Role.Activate(l.Now(), streamid.ID{}, l.Role.Losses())
	return l
}

// fresh is an entry as the fetcher brings it.
func fresh(n int) Arrival {
	id := streamid.ID{MS: uint64(n)}
	return Arrival{ID: id, Name: id.String(), Count: 1, Msg: message.NewMessage(fmt.Sprint(n), nil), Size: 1000}
}

// keyed is an entry of a key as the fetcher brings it.
func keyed(n int, key string) Arrival {
	a := fresh(n)
	a.Key, a.HasKey = key, true
	return a
}

// left is an entry that a dead consumer has left, as a takeover brings it.
func left(n int) Arrival {
	a := fresh(n)
	a.Msg, a.Size, a.Recovered, a.Suspect = nil, 0, true, true
	return a
}

func (l *Ledger) add(list ...Arrival) { l.Intake.Add(list, l.Now()) }

func (l *Ledger) next(worker int) *Entry {
	p, _ := l.Dispatch.Next(worker)
	return p.Entry
}

// prepared picks the next entry and prepares it as prepare.lua does.
func (l *Ledger) prepared(worker int) *Entry {
	e := l.next(worker)
	if e != nil && e.msg == nil {
		l.prepare(e)
	}
	return e
}

func (l *Ledger) prepare(e *Entry) {
	l.Dispatch.Prepared(e, message.NewMessage("", nil), 1000, Delay{}, l.Now())
}

func (l *Ledger) settle(e *Entry, acked bool) Outcome {
	return l.Outcomes.Settle(e, acked, message.NewMessage("", nil))
}

// commit has the server take all that there is to report.
func (l *Ledger) commit() {
	var todo Todo
	l.Commits.Take(&todo)
	l.Commits.Acked(todo.Acks, nil, nil)
	l.Commits.CountsWritten(todo.Counts, l.Commits.NextCounts(todo.Counts), nil)
}
