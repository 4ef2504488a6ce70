package subscriber

import (
	"testing"
	"testing/synctest"
	"time"
)

// An entry was picked, and the process stood still, or the answer to its preparation was
// long on its way: it is offered only while its lease lasts, 54 of 60 seconds.
func TestNoOfferAfterTheLease(t *testing.T) {
	for stood, want := range map[time.Duration]bool{0: true, 53 * time.Second: true, 55 * time.Second: false} {
		t.Run(stood.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := testBook(func(c *Config) { c.MinIdle = 60 * time.Second })
				b.add([]arrival{read(1)}, b.now())
				e, _ := b.next(0)
				<-time.After(stood)
				if got := b.offer(e, func(error) {}); got != want {
					t.Errorf("offered after %v: %v", stood, got)
				}
			})
		})
	}
}
