package middleware_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"
)

// The library has these names as literals, since the packages that define them import
// routers, metrics and protobuf.
func TestNamesThatWatermillDefines(t *testing.T) {
	for got, want := range map[string]string{
		wmiddleware.ReasonForPoisonedKey:  "reason_poisoned",
		wmiddleware.PoisonedTopicKey:      "topic_poisoned",
		wmiddleware.PoisonedHandlerKey:    "handler_poisoned",
		wmiddleware.PoisonedSubscriberKey: "subscriber_poisoned",
		requeuer.RetriesKey:               "_watermill_requeuer_retries",
	} {
		if got != want {
			t.Errorf("Watermill writes %q, we read %q", got, want)
		}
	}
	msg, err := cqrs.JSONMarshaler{}.Marshal(struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if msg.Metadata.Get("name") == "" {
		t.Errorf("the CQRS marshaler does not put the event's name into the field name: %v", msg.Metadata)
	}
}
