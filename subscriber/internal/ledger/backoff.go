package ledger

import (
	"math/rand/v2"
	"time"
)

// backoff is how long an entry waits for its redelivery after so many deliveries: first, and
// twice as long each time, up to a limit; up to a quarter less at random, since entries that
// failed together would come again together.
func backoff(deliveries int, first, limit time.Duration) time.Duration {
	d := first
	for range min(deliveries-1, 40) {
		if d >= limit/2 {
			d = limit
			break
		}
		d *= 2
	}
	if d <= 0 {
		return 0
	}
	return d - time.Duration(rand.Int64N(int64(d)/4+1))
}
