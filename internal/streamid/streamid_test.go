package streamid_test

import (
	"testing"

	"github.com/onceward/watermill-idempotent/internal/streamid"
)

func TestBefore(t *testing.T) {
	for id, want := range map[streamid.ID]streamid.ID{
		{MS: 5, Seq: 3}: {MS: 5, Seq: 2},
		{MS: 5, Seq: 0}: {MS: 4, Seq: 1<<64 - 1},
		{}:              {},
	} {
		if got := id.Before(); got != want {
			t.Errorf("before %v is %v, want %v", id, got, want)
		}
	}
}
