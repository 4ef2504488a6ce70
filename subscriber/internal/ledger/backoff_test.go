package ledger

import (
	"testing"
	"time"
)

func TestBackoffGrowsToItsLimit(t *testing.T) {
	for count, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond, 9: 25600 * time.Millisecond, 10: 30 * time.Second, 1000: 30 * time.Second} {
		for range 50 {
			if d := backoff(count, 100*time.Millisecond, 30*time.Second); d > want || d < want*3/4 {
				t.Errorf("after %d deliveries: %v, want %v less up to a quarter", count, d, want)
			}
		}
	}
}
