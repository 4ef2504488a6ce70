package subscriber_test

import (
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/faultlink"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// The server, or a proxy in front of it, answers that it can't now, at each step that a
// subscription takes: nothing is lost, dead or handed out twice for that, and all is settled
// in the end.
func TestServerThatCannotNow(t *testing.T) {
	t.Parallel()
	for _, reply := range faultlink.NotNow {
		t.Run(reply, func(t *testing.T) {
			t.Parallel()
			s := testserver.Shared(t, testserver.Redis86)
			topic := testserver.Topic(t)
			link := faultlink.New(t, s.Addr())
			publish(t, s.Client(), topic, "fails once", "bad", "good")
			link.Answer(reply, 2, "xgroup")
			messages, cancel := subscribe(t, newSubscriber(t, link.Client(), func(c *subscriber.Config) {
				c.RedeliverAfter, c.RedeliverMax, c.CloseTimeout = time.Second, time.Second, within
			}), topic)
			next := func(want string) *subscriber.Delivery {
				t.Helper()
				msg := receive(t, messages)
				if string(msg.Payload) != want {
					t.Fatalf("got %q, want %q", msg.Payload, want)
				}
				d, _ := subscriber.DeliveryOf(msg)
				switch {
				case want == "fails once" && d.Count() == 1:
					msg.Nack()
				case want == "bad":
					d.Reject("bad", nil)
					msg.Ack()
				default:
					msg.Ack()
				}
				return &d
			}
			next("fails once")
			link.Answer(reply, 5, "evalsha", "eval", "xreadgroup") // its count, and reading on
			next("bad")
			link.Answer(reply, 5, "evalsha", "eval") // the dead letter, and renewals
			next("good")
			link.Answer(reply, 5, "evalsha", "eval") // the acknowledgement, and the next hand-out
			if d := next("fails once"); d.Count() != 2 {
				t.Errorf("delivery %d, want 2", d.Count())
			}
			link.Answer(reply, 5, "evalsha", "eval") // at the end
			cancel()
			wantClosed(t, messages)
			wantPending(t, s.Client(), topic, "billing", 0)
			wantDeadLetters(t, s.Client(), topic, 1)
		})
	}
}
