package publisher

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/ThreeDotsLabs/watermill-redisstream/pkg/redisstream"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/publisher/internal/appender"
)

func TestIsPermanent(t *testing.T) {
	call := func(errs ...error) error {
		e := &PublishError{Topic: "orders"}
		for _, err := range errs {
			e.Receipts = append(e.Receipts, Receipt{MessageUUID: "u", Err: err})
		}
		return fmt.Errorf("handler: %w", e)
	}
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false}, {io.EOF, false}, {ErrNotSent, false}, {ErrOutcomeUnknown, false}, {ErrNotReplicated, false},
		{ErrNoKey, true}, {&ConflictError{}, true}, {ErrTooLarge, true}, {ErrClosed, false}, {ErrModeUnsupported, false}, {appender.Final(io.EOF), false}, {permanent(io.EOF), true},
		{fmt.Errorf("message: %w", eventkey.ErrInvalidMessage), true},
		{appender.Final(fmt.Errorf("the original: %w", eventkey.ErrInvalidMessage)), false},
		{call(nil, &ConflictError{}), true},
		{call(&ConflictError{}, ErrNotSent), false},
		{call(ErrNoKey, permanent(ErrNotSent)), true},
	} {
		if got := IsPermanent(tt.err); got != tt.want {
			t.Errorf("IsPermanent(%v) = %v", tt.err, got)
		}
	}
}

// Calls that can't succeed, whatever changes around them, say so before anything is sent.
func TestCallsThatCannotSucceed(t *testing.T) {
	p, err := New(good(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close() }()
	order := func(payload string) *message.Message { return message.NewMessage("u", []byte(payload)) }
	reserved := order(`{"id":"1"}`)
	reserved.Metadata.Set(redisstream.UUIDHeaderKey, "x")
	for name, tt := range map[string]struct {
		topic string
		msg   *message.Message
	}{
		"no topic": {"", order(`{"id":"1"}`)}, "reserved topic": {"{orders}:idem:layout", order(`{"id":"1"}`)},
		"no message": {"orders", nil}, "no JSON": {"orders", order(`{`)}, "reserved metadata": {"orders", reserved},
	} {
		if err := p.Publish(tt.topic, tt.msg); !errors.Is(err, ErrInvalidMessage) || !IsPermanent(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPublishErrorNamesWhatFailed(t *testing.T) {
	err := error(&PublishError{Topic: "orders", Receipts: []Receipt{
		{MessageUUID: "a"}, {MessageUUID: "b", Err: ErrNotSent}, {MessageUUID: "c", Err: &ConflictError{Key: "pay:1", Field: "$.amount"}},
	}})
	var conflict *ConflictError
	if !errors.Is(err, ErrNotSent) || !errors.Is(err, ErrConflict) || !errors.As(err, &conflict) || conflict.Field != "$.amount" {
		t.Errorf("%v does not match", err)
	}
	for _, want := range []string{`"orders"`, "2 of 3", "message b"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("no %q in %q", want, err)
		}
	}
}
