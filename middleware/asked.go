package middleware

import (
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// asked is a delivery as the handler sees it. It notes what the handler asks for: nothing
// where the message was not read by our subscriber, and there is none.
type asked struct {
	delivery.Delivery
	delayed, rejected atomic.Bool
}

func (a *asked) Delay(d time.Duration) {
	a.delayed.Store(true)
	a.Delivery.Delay(d)
}

func (a *asked) Reject(reason string, err error) {
	a.rejected.Store(true)
	a.Delivery.Reject(reason, err)
}

func (a *asked) delay() bool  { return a.delayed.Load() }
func (a *asked) reject() bool { return a.rejected.Load() }

func isNacked(msg *message.Message) bool {
	select {
	case <-msg.Nacked():
		return true
	default:
		return false
	}
}

func isAcked(msg *message.Message) bool {
	select {
	case <-msg.Acked():
		return true
	default:
		return false
	}
}
