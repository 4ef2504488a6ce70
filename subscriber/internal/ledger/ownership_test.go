package ledger

import (
	"testing"
	"time"
)

// A heartbeat was on its way when the fetcher got an entry again: its answer is older than
// the read, and does not take the entry away.
func TestAnswerOfTheHeartbeatIsOlderThanARead(t *testing.T) {
	for name, v := range map[string]Verdict{
		"another's": {Others: map[string]bool{"1-0": true}},
		"nobody's":  {Nobodys: map[string]bool{"1-0": true}},
		"deleted":   {Deleted: map[string]bool{"1-0": true}},
	} {
		l := testLedger(func(*Settings) {})
		l.add(fresh(1))
		held, sent := l.Ownership.Held(), l.Now()
		<-time.After(time.Millisecond)
		l.add(fresh(1))
		l.Ownership.Renewed(held, sent, v)
		if e := l.next(0); e == nil || e.owner.state == deleted {
			t.Errorf("%s: the entry is gone", name)
		}
	}
}

// In a group that was made again a read begins with the count of a first delivery: the count
// that the server had is written again.
func TestCountOfAGroupMadeAgain(t *testing.T) {
	l := testLedger(func(s *Settings) { s.MaxDeliveries = 3 })
	l.add(left(1))
	e := l.prepared(0)
	l.add(fresh(1))
	l.settle(e, false)
	var todo Todo
	if l.Commits.Take(&todo); len(todo.Counts) != 1 {
		t.Error("the server is not told how often it was delivered")
	}
}
