package middleware

import (
	"sync/atomic"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// asked is a delivery as the handler sees it. It notes what the handler asks for.
type asked struct {
	delivery.Delivery
	delayed, rejected atomic.Bool
}

// askedOf is nil where the message was not read by our subscriber.
func askedOf(d delivery.Delivery) *asked {
	if d == nil {
		return nil
	}
	return &asked{Delivery: d}
}

func (a *asked) Delay(d time.Duration) {
	a.delayed.Store(true)
	a.Delivery.Delay(d)
}

func (a *asked) Reject(reason string, err error) {
	a.rejected.Store(true)
	a.Delivery.Reject(reason, err)
}

func (a *asked) delay() bool  { return a != nil && a.delayed.Load() }
func (a *asked) reject() bool { return a != nil && a.rejected.Load() }

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
