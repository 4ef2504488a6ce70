package subscriber

import (
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/internal/delivery"
)

// outWith is a book with one message at its handler, on the delivery given.
func outWith(t *testing.T, maxDeliveries int) (*book, *entry) {
	t.Helper()
	b := testBook(func(c *Config) { c.MaxDeliveries = maxDeliveries })
	b.add([]arrival{read(1)}, b.now())
	e, _ := b.next(0)
	if e == nil {
		t.Fatal("nothing to hand out")
	}
	return b, e
}

// A delivery in which the handler ran and failed counts, whatever a later step asks for,
// or a message that always fails would come again without end. A handler that asks for a
// delay itself, and says so by an error, has not failed.
func TestFailureBeforeADelayCounts(t *testing.T) {
	broken := errors.New("no funds")
	fail := func(e *entry) { e.Failed(broken) }
	delay := func(e *entry) { e.Delay(time.Minute) }
	for name, tt := range map[string]struct {
		steps    []func(*entry)
		acked    bool
		max      int
		want     Settlement
		count    int
		after    time.Duration
		isBuried bool
	}{
		"a delay alone":                  {[]func(*entry){delay}, false, 1, Delayed, 0, time.Minute, false},
		"a delay, acknowledged":          {[]func(*entry){delay}, true, 1, Delayed, 0, time.Minute, false},
		"a delay, then an error":         {[]func(*entry){delay, fail}, false, 1, Delayed, 0, time.Minute, false},
		"a failure, then a delay":        {[]func(*entry){fail, delay}, false, 2, Nacked, 1, time.Minute, false},
		"the same, acknowledged":         {[]func(*entry){fail, delay}, true, 2, Nacked, 1, time.Minute, false},
		"the same, the last delivery":    {[]func(*entry){fail, delay}, false, 1, Nacked, 1, 0, true},
		"a failure, then a success":      {[]func(*entry){fail}, true, 1, Acked, 1, 0, false},
		"a failure alone":                {[]func(*entry){fail}, false, 2, Nacked, 1, 100 * time.Millisecond, false},
		"delay, failure and delay again": {[]func(*entry){delay, fail, delay}, false, 2, Nacked, 1, time.Minute, false},
		"failure and delay as it ends":   {[]func(*entry){fail, delay, func(e *entry) { e.end(ErrClosing) }}, false, 1, Delayed, 0, time.Minute, false},
	} {
		t.Run(name, func(t *testing.T) {
			b, e := outWith(t, tt.max)
			for _, step := range tt.steps {
				step(e)
			}
			ev, again, _ := b.settled(e, tt.acked, ask{})
			if ev.Settlement != tt.want || e.count != tt.count {
				t.Errorf("%v, %d deliveries count, want %v and %d", ev.Settlement, e.count, tt.want, tt.count)
			}
			if tt.after != 0 && (again == nil || again.After < tt.after/2 || again.After > 2*tt.after) {
				t.Errorf("redelivery %+v, want one after %v", again, tt.after)
			}
			buried := b.takeJobs().graves
			if (len(buried) == 1) != tt.isBuried {
				t.Errorf("%d dead letters", len(buried))
			}
			if tt.isBuried && (e.reason != ReasonMaxDeliveries || !errors.Is(e.failure, broken)) {
				t.Errorf("dead letter for %q, %v", e.reason, e.failure)
			}
		})
	}
}

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
