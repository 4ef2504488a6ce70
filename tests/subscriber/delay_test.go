package subscriber_test

import (
	"errors"
	"testing"
	"time"

	"github.com/onceward/watermill-idempotent/subscriber"
	"github.com/onceward/watermill-idempotent/tests/internal/observe"
	"github.com/onceward/watermill-idempotent/tests/testserver"
)

// A message is delayed, its subscription ends, and the next one waits for the rest of the
// delay; under an order so does what comes after it.
func TestDelayOutlivesAShutdown(t *testing.T) {
	t.Parallel()
	for name, order := range map[string]func(*subscriber.Config){
		"none": func(*subscriber.Config) {}, "key": orderKey, "stream": orderStream,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testserver.Each(t, func(t *testing.T, s *testserver.Server) {
				t.Parallel()
				client, topic := s.Client(), testserver.Topic(t)
				publish(t, client, topic, "k/0", "k/1")
				var redelivered observe.Events[subscriber.RedeliverEvent]
				messages, end := subscribe(t, newSubscriber(t, client, order, func(c *subscriber.Config) {
					c.Hooks = []subscriber.Hooks{{OnRedeliver: redelivered.Add}}
				}), topic)
				const delay = 4 * time.Second // half of MinIdle
				asked, msg := time.Now(), receive(t, messages)
				d, _ := subscriber.DeliveryOf(msg)
				d.Delay(delay)
				msg.Nack()
				testserver.Eventually(t, within, func() error {
					if len(redelivered.All()) == 0 {
						return errors.New("it does not wait yet")
					}
					return nil
				})
				end()
				for msg := range messages { // handed out before the end was seen
					msg.Nack()
				}
				next, _ := subscribe(t, newSubscriber(t, client, order), topic)
				var got []string
				for range 2 {
					msg := receive(t, next)
					got = append(got, string(msg.Payload))
					if took := time.Since(asked); string(msg.Payload) == "k/0" && took < delay {
						t.Errorf("it comes again after %v, a delay of %v was asked for", took, delay)
					}
					msg.Ack()
				}
				if name != "none" && got[0] != "k/0" {
					t.Errorf("out of order: %q", got)
				}
				wantPending(t, client, topic, "billing", 0)
			})
		})
	}
}
