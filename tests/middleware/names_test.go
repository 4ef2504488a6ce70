package middleware_test

import (
	"testing"

	"github.com/ThreeDotsLabs/watermill/components/cqrs"
	"github.com/ThreeDotsLabs/watermill/components/delay"
	"github.com/ThreeDotsLabs/watermill/components/requeuer"
	wmiddleware "github.com/ThreeDotsLabs/watermill/message/router/middleware"

	"github.com/onceward/watermill-idempotent/internal/wmeta"
)

func TestNamesThatWatermillDefines(t *testing.T) {
	for got, want := range map[string]string{
		wmiddleware.ReasonForPoisonedKey:  wmeta.PoisonedReason,
		wmiddleware.PoisonedTopicKey:      wmeta.PoisonedTopic,
		wmiddleware.PoisonedHandlerKey:    wmeta.PoisonedHandler,
		wmiddleware.PoisonedSubscriberKey: wmeta.PoisonedSubscriber,
		delay.DelayedUntilKey:             wmeta.DelayedUntil,
		delay.DelayedForKey:               wmeta.DelayedFor,
		requeuer.RetriesKey:               wmeta.RequeuerRetries,
	} {
		if got != want {
			t.Errorf("Watermill writes %q, we read %q", got, want)
		}
	}
	msg, err := cqrs.JSONMarshaler{}.Marshal(struct{}{})
	if err != nil {
		t.Fatal(err)
	}
	if msg.Metadata.Get(wmeta.CQRSName) == "" {
		t.Errorf("the CQRS marshaler does not put the event's name into the field %q: %v", wmeta.CQRSName, msg.Metadata)
	}
}
