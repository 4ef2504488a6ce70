package middleware_test

import (
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// panickingHooks receive everything, and panic.
func panickingHooks() (h middleware.Hooks) {
	v := reflect.ValueOf(&h).Elem()
	for i := range v.NumField() {
		v.Field(i).Set(reflect.ValueOf(func(middleware.Event) { panic("hook of a user") }))
	}
	return h
}

// A hook that panics is logged and changes nothing: after the record it would leave the
// returned messages unpublished and, with a PoisonQueue around, the event acknowledged.
func TestHookPanics(t *testing.T) {
	logger, runs, poison := watermill.NewCaptureLogger(), 0, &rig.Published{}
	once, err := middleware.New(middleware.Config{
		Store: rig.NewStore(t), Namespace: "payments", Retention: time.Hour, Wait: middleware.NoWait, PassWithoutKey: true,
		Hooks: []middleware.Hooks{panickingHooks()},
	}, logger)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = once.Close(t.Context()) })
	r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs == 1 {
			return nil, errors.New("no funds")
		}
		return []*message.Message{rig.NewMessage("", "receipt")}, nil
	}), poisonQueue(poison), recoverer)
	r.WantAcked(rig.NewMessage("pay:0", "{}")) // failed, and poisoned for that
	r.WantAcked(rig.NewMessage("pay:1", "{}")) // handled
	r.WantAcked(rig.NewMessage("pay:1", "{}")) // skipped: its message once more
	r.WantAcked(rig.NewMessage("", "{}"))      // passed
	wantPublished(t, r, 2)
	if n := len(poison.Messages()); n != 1 || runs != 3 {
		t.Errorf("%d poisoned, want 1; %d runs, want 3", n, runs)
	}
	panics := 0
	for _, m := range logger.Captured()[watermill.ErrorLogLevel] {
		if m.Err != nil && m.Err.Error() == "hook of a user" {
			panics++
		}
	}
	if panics != 4 {
		t.Errorf("%d panics in the log, want 4", panics)
	}
}
