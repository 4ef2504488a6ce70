package eventkey_test

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
)

func TestHandledFrom(t *testing.T) {
	if _, ok := eventkey.HandledFrom(context.Background()); ok {
		t.Error("something is being handled")
	}
	came := message.Metadata{"_dead_origin": "orders 1-0"}
	want := eventkey.Handled{Namespace: "billing", Topic: "orders", Handler: "charge", Key: "k", Metadata: came}
	ctx := eventkey.WithHandled(context.Background(), want)
	came["_dead_origin"] = "what a handler has written over it"
	got, ok := eventkey.HandledFrom(ctx)
	if !ok || got.Key != want.Key || got.Topic != want.Topic || got.Handler != want.Handler || got.Namespace != want.Namespace {
		t.Errorf("got %+v", got)
	}
	if origin := got.Metadata["_dead_origin"]; origin != "orders 1-0" {
		t.Errorf("the metadata is not that of the message as it came: %q", origin)
	}
}
