package subscriber

import (
	"fmt"

	"github.com/ThreeDotsLabs/watermill/message"
)

// NoteFailure is a Router middleware that notes a handler's error on the delivery (see
// [Delivery.Failed]), so that a dead letter says why: the Router only refuses to
// acknowledge, and the error stays in its log. Add it first, so that it is outside of
// Retry and PoisonQueue and sees what they give up:
//
//	router.AddMiddleware(subscriber.NoteFailure)
//
// A panic is noted and goes on. Messages of other subscribers pass through. Handlers that
// package middleware has wrapped have their errors noted without it.
func NoteFailure(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		d, ok := DeliveryOf(msg)
		if !ok {
			return h(msg)
		}
		defer func() {
			if p := recover(); p != nil {
				d.Failed(fmt.Errorf("the handler panicked: %v", p))
				panic(p)
			}
			if err != nil {
				d.Failed(err)
			}
		}()
		return h(msg)
	}
}
