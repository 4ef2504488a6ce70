package childkey

import (
	"context"
	"testing"

	"github.com/ThreeDotsLabs/watermill/message"
)

// What becomes of a message decides who may have its key next.
func TestSettledClaims(t *testing.T) {
	if From(context.Background()) != nil {
		t.Error("claims of no run")
	}
	for _, tt := range []struct {
		outcomes         []Outcome // of one message that is published again and again
		other, samePrint bool      // whether another message has the key then, of another payload or the same
	}{
		{[]Outcome{NotSent}, true, true},
		{[]Outcome{MaybeSent}, false, true},
		{[]Outcome{Sent}, false, false},
		{[]Outcome{MaybeSent, NotSent}, false, true},
		{[]Outcome{MaybeSent, Sent}, false, false},
		{[]Outcome{Sent, NotSent}, false, false},
	} {
		claims := From(With(context.Background(), nil))
		msg := message.NewMessage("u1", []byte("p"))
		for _, o := range tt.outcomes {
			c := claims.Take("orders", "Sent", msg)
			if claims.Take("orders", "Sent", message.NewMessage("u2", []byte("p"))) != nil {
				t.Errorf("%v: two messages under way have the key", tt.outcomes)
			}
			c.End(o)
		}
		for payload, want := range map[string]bool{"q": tt.other, "p": tt.samePrint} {
			c := claims.Take("orders", "Sent", message.NewMessage("u2", []byte(payload)))
			if (c != nil) != want {
				t.Errorf("%v: another message with payload %s has the key: %v", tt.outcomes, payload, c != nil)
			}
			c.End(NotSent)
		}
		if claims.Take("mail", "Sent", msg) == nil || claims.Take("orders", "Paid", msg) == nil {
			t.Error("another topic or name has no key of its own")
		}
	}
}
