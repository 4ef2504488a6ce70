package subscriber

import "testing"

func TestBatchSize(t *testing.T) {
	var b batchSize
	read := func(room, want, got int) {
		t.Helper()
		asked := b.atMost(room)
		if asked != want {
			t.Fatalf("asks for %d, want %d", asked, want)
		}
		if got < 0 {
			b.noReply(asked)
		} else {
			b.came(asked, got)
		}
	}
	read(256, 1, 1)
	read(256, 2, 2)
	read(256, 4, 3) // not full: it says nothing about more
	read(256, 4, 4)
	read(5, 5, 5) // there was no room for more
	read(256, 8, -1)
	read(256, 4, 4)
	read(256, 5, 5) // from where it was lost on by one
	read(256, 6, -1)
	read(256, 3, -1)
	read(256, 1, -1)
	read(256, 1, 1)
	read(256, 2, 2)
}
