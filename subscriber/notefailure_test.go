package subscriber

import (
	"errors"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// notes is a delivery that keeps what it is told.
type notes struct {
	delivery.Delivery
	failed []error
}

func (n *notes) Failed(err error) { n.failed = append(n.failed, err) }

func TestNoteFailure(t *testing.T) {
	broken := errors.New("no funds")
	for name, tt := range map[string]struct {
		h    message.HandlerFunc
		want string
	}{
		"error":   {func(*message.Message) ([]*message.Message, error) { return nil, broken }, "no funds"},
		"panic":   {func(*message.Message) ([]*message.Message, error) { panic("boom") }, "the handler panicked: boom"},
		"success": {func(*message.Message) ([]*message.Message, error) { return nil, nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d, msg := &notes{}, message.NewMessage("1", nil)
			msg.SetContext(delivery.With(msg.Context(), d))
			func() {
				defer func() {
					if p := recover(); (p != nil) != (name == "panic") {
						t.Errorf("panic %v", p)
					}
				}()
				if _, err := NoteFailure(tt.h)(msg); (err != nil) != (name == "error") {
					t.Errorf("error %v", err)
				}
			}()
			if got := errors.Join(d.failed...); (got == nil) != (tt.want == "") || got != nil && got.Error() != tt.want {
				t.Errorf("noted %v, want %q", got, tt.want)
			}
		})
	}
	t.Run("another subscriber's message", func(t *testing.T) {
		h := func(*message.Message) ([]*message.Message, error) { return nil, broken }
		if _, err := NoteFailure(h)(message.NewMessage("1", nil)); !errors.Is(err, broken) {
			t.Errorf("error %v", err)
		}
	})
}
