package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/middleware"
	"github.com/onceward/watermill-idempotent/publisher"
)

// What our publisher refuses for good inside a handler is permanent here, too, as it comes
// from Publish, from a receipt, and joined with other errors.
func TestPermanentErrorsOfThePublisher(t *testing.T) {
	conflict := &publisher.ConflictError{Topic: "orders", Key: "pay:1"}
	call := func(errs ...error) error {
		e := &publisher.PublishError{Topic: "orders"}
		for _, err := range errs {
			e.Receipts = append(e.Receipts, publisher.Receipt{Err: err})
		}
		return fmt.Errorf("handler: %w", e)
	}
	for _, c := range []struct {
		name      string
		err       error
		permanent bool
	}{
		{"conflict of a call", call(nil, conflict), true},
		{"conflict of a receipt", fmt.Errorf("handler: %w", conflict), true},
		{"conflict that is joined", errors.Join(errors.New("audit failed"), call(conflict)), true},
		{"conflict behind a call that may be repeated", errors.Join(call(publisher.ErrNotSent), call(conflict)), true},
		{"conflict beside a message that was not sent", call(conflict, publisher.ErrNotSent), false},
		{"nothing is wrong with the message", call(publisher.ErrOutcomeUnknown), false},
	} {
		if got := middleware.IsPermanent(c.err); got != c.permanent {
			t.Errorf("%s: permanent %v, want %v", c.name, got, c.permanent)
		}
		if got := middleware.ShouldRetry(c.err); got == c.permanent {
			t.Errorf("%s: another try %v, want %v", c.name, got, !c.permanent)
		}
		if !middleware.ShouldPoison(c.err) {
			t.Errorf("%s: it is not poisoned", c.name)
		}
	}
	if err := fmt.Errorf("%w: %w", dedupe.ErrRetryLater, context.DeadlineExceeded); middleware.IsPermanent(err) || middleware.ShouldRetry(err) || middleware.ShouldPoison(err) {
		t.Errorf("%v is permanent, tried again on the spot, or poisoned", err)
	}
}
