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
