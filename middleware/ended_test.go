package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// retryAsTold is Retry with our ShouldRetry.
func retryAsTold(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) (out []*message.Message, err error) {
		for range 4 {
			if out, err = h(msg); !middleware.ShouldRetry(err) {
				break
			}
		}
		return out, err
	}
}

// Retry around Timeout: the second try has a context that has ended. A handler that has
// failed by then has failed, whether it was too slow or not; it was delivered again
// without end, and nobody learned it.
func TestRetryAroundTimeoutFails(t *testing.T) {
	slow := func(msg *message.Message) error { <-msg.Context().Done(); return msg.Context().Err() }
	for name, tt := range map[string]struct {
		retry message.HandlerMiddleware
		fn    func(*message.Message) error
		hooks int
	}{
		"too slow":             {retry, slow, 4},
		"fails at once":        {retry, func(*message.Message) error { return errors.New("no funds") }, 4},
		"panics":               {retry, func(*message.Message) error { panic("boom") }, 4},
		"asks our ShouldRetry": {retryAsTold, slow, 2},
	} {
		for _, ours := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", ours ", ours), func(t *testing.T) {
				poison, seen, logger, runs := &rig.Published{}, &rig.Log{}, watermill.NewCaptureLogger(), 0
				r := rig.New(t, rig.NewLogging(t, logger, rig.NewStore(t), seen.Into).Handler(func(msg *message.Message) ([]*message.Message, error) {
					runs++
					return nil, tt.fn(msg)
				}), heedless(poison), tt.retry, timeout(20*time.Millisecond), recoverer)
				msg, d := rig.NewMessage("pay:1", "{}"), &fakeDelivery{}
				if ours {
					d.on(msg)
				}
				r.WantAcked(msg) // by the PoisonQueue
				if runs != 1 || len(poison.Messages()) != 1 {
					t.Errorf("%d runs, %d poisoned, want one of each", runs, len(poison.Messages()))
				}
				if seen.Count("failed") != tt.hooks || seen.Count("delayed") != 0 || ours && (len(d.failed) != tt.hooks || len(d.delays) != 0) {
					t.Errorf("hooks got %v, delivery %+v", seen.Events, d)
				}
				if lines := errorLines(logger); countOf(lines, "ResetContextOnRetry") != 1 || len(lines) != 1 {
					t.Errorf("logged %q", lines)
				}
			})
		}
	}
}

// heedless is a PoisonQueue whose publisher does not look at contexts.
func heedless(queue *rig.Published) message.HandlerMiddleware {
	return func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) ([]*message.Message, error) {
			out, err := h(msg)
			if err != nil {
				return nil, queue.Publish("poison", msg.Copy())
			}
			return out, nil
		}
	}
}

// With a context of its own for each try (Watermill's ResetContextOnRetry) a slow handler
// is tried again, and may succeed.
func TestRetryAroundTimeoutWithContextReset(t *testing.T) {
	runs := 0
	reset := func(h message.HandlerFunc) message.HandlerFunc {
		return func(msg *message.Message) (out []*message.Message, err error) {
			own := msg.Context()
			for range 3 {
				msg.SetContext(own)
				if out, err = h(msg); err == nil {
					break
				}
			}
			return out, err
		}
	}
	r := rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(func(*message.Message) ([]*message.Message, error) {
		if runs++; runs < 3 {
			return nil, errors.New("no funds")
		}
		return nil, nil
	}), reset, timeout(time.Minute))
	r.WantAcked(rig.NewMessage("pay:1", "{}"))
	if runs != 3 {
		t.Errorf("%d runs", runs)
	}
}

// Our subscriber has ended the context: that is no failure, whatever an earlier try was.
func TestFailureBeforeTheEndOfASubscription(t *testing.T) {
	ended := errors.New("subscription ended")
	runs, seen, d := 0, &rig.Log{}, &fakeDelivery{}
	ctx, end := context.WithCancelCause(t.Context())
	defer end(nil)
	once := rig.NewOnce(t, rig.NewStore(t), seen.Into)
	r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) {
		runs++
		end(ended)
		return nil, errors.New("no funds")
	}), retry, timeout(time.Minute))
	msg := rig.NewMessage("pay:1", "{}")
	msg.SetContext(delivery.With(ctx, d))
	r.WantNacked(msg)
	if r.Err != nil || runs != 1 || seen.Count("failed") != 1 || seen.Count("delayed") != 1 {
		t.Errorf("error %v, %d runs, hooks got %v", r.Err, runs, seen.Events)
	}
}

// The mark of a failure is the message's own: contexts travel with copies.
func TestFailureOfAnotherMessage(t *testing.T) {
	once := rig.NewOnce(t, rig.NewStore(t))
	fails := func(context.Context) ([]*message.Message, error) { return nil, errors.New("no funds") }
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	msg := rig.NewMessage("pay:1", "{}")
	_, _ = once.Run(ctx, msg, "h", fails)
	cancel()
	if _, err := once.Run(msg.Context(), msg, "h", fails); err == nil || errors.Is(err, dedupe.ErrRetryLater) {
		t.Errorf("error %v, want the failure", err)
	}
	other := rig.NewMessage("pay:2", "{}")
	if _, err := once.Run(msg.Context(), other, "h", fails); !errors.Is(err, dedupe.ErrRetryLater) {
		t.Errorf("error %v, want that it was interrupted", err)
	}
}

// A handler that is too slow, and only then runs another one: it has failed, each time.
func TestRunInsideAHandlerThatIsTooSlow(t *testing.T) {
	seen, d, runs := &rig.Log{}, &fakeDelivery{}, 0
	once := rig.NewOnce(t, rig.NewStore(t), seen.Into)
	r := rig.New(t, once.Handler(func(msg *message.Message) ([]*message.Message, error) {
		<-msg.Context().Done()
		return once.Run(msg.Context(), msg, "inner", func(context.Context) ([]*message.Message, error) { runs++; return nil, nil })
	}), timeout(20*time.Millisecond))
	r.WantNacked(d.on(rig.NewMessage("pay:1", "{}")))
	if !errors.Is(r.Err, context.DeadlineExceeded) || len(d.failed) != 1 || len(d.delays) != 0 || runs != 0 {
		t.Errorf("error %v, delivery %+v, %d runs", r.Err, d, runs)
	}
	if got := seen.Outcomes(); !slices.Equal(got, []string{"delayed", "failed"}) {
		t.Errorf("hooks got %v, want one for each of the two", got)
	}
}
