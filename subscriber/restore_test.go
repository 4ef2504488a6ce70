package subscriber

import (
	"testing"
	"time"
)

// A heartbeat was on its way when the reader got an entry again: its answer is older than
// the read, and does not take the entry away.
func TestAnswerOfTheHeartbeatIsOlderThanARead(t *testing.T) {
	for name, v := range map[string]verdict{
		"another's": {others: map[string]bool{"1-0": true}},
		"nobody's":  {nobodys: map[string]bool{"1-0": true}},
		"deleted":   {deleted: map[string]bool{"1-0": true}},
	} {
		b := testBook(func(*Config) {})
		b.add([]arrival{read(1)}, b.now())
		held, sent := b.held(), b.now()
		<-time.After(time.Millisecond)
		b.add([]arrival{read(1)}, b.now())
		b.renewed(held, sent, v)
		if e, _ := b.next(0); e == nil || e.deleted {
			t.Errorf("%s: the entry is gone", name)
		}
	}
}

// What is dropped since it will be read again lets nothing of its key go out before.
func TestForgottenEntriesKeepTheirOrder(t *testing.T) {
	b := testBook(func(c *Config) { c.Order = OrderStream })
	var list []arrival
	for n := range 4 {
		a := read(n + 1)
		a.hasKey = true
		list = append(list, a)
	}
	b.add(list, b.now())
	first, _ := b.next(0)
	b.mu.Lock()
	dropped := b.forget(b.entriesFrom(3))
	b.mu.Unlock()
	if len(dropped) != 2 {
		t.Errorf("%v dropped, want 2", dropped)
	}
	b.settled(first, true, ask{})
	if e, _ := b.next(0); e == nil || e.name != "2-0" {
		t.Errorf("next is %+v, want 2-0", e)
	}
	if e, _ := b.next(0); e != nil {
		t.Errorf("%s goes out, which will be read again", e.name)
	}
}

func (b *book) entriesFrom(ms uint64) (list []*entry) {
	for id, e := range b.entries {
		if id.MS >= ms {
			list = append(list, e)
		}
	}
	return list
}
