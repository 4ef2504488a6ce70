package hook_test

import (
	"slices"
	"testing"

	"github.com/ThreeDotsLabs/watermill"

	"github.com/onceward/watermill-idempotent/internal/hook"
)

type hooks struct{ onEvent func(event) }

type event struct{ Topic string }

func TestCall(t *testing.T) {
	var got []string
	logger := watermill.NewCaptureLogger()
	hook.Call(logger, []hooks{
		{onEvent: func(e event) { got = append(got, "first "+e.Topic) }},
		{onEvent: func(event) { panic("no metrics today") }},
		{},
		{onEvent: func(e event) { got = append(got, "last "+e.Topic) }},
	}, func(h hooks) func(event) { return h.onEvent }, event{"orders"})
	if want := []string{"first orders", "last orders"}; !slices.Equal(got, want) {
		t.Errorf("called %q, want %q", got, want)
	}
	logged := logger.Captured()[watermill.ErrorLogLevel]
	if len(logged) != 1 || logged[0].Err.Error() != "no metrics today" || logged[0].Fields["event"] != "hook_test.event" || logged[0].Fields["value"] != "{Topic:orders}" {
		t.Errorf("logged %+v", logged)
	}
}
