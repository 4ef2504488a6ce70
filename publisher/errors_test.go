package publisher

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/server"
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
		{ErrNoKey, true}, {&ConflictError{}, true}, {ErrTooLarge, true}, {ErrClosed, false}, {ErrModeUnsupported, false}, {final(io.EOF), false}, {permanent(io.EOF), true},
		{fmt.Errorf("message: %w", eventkey.ErrInvalidMessage), true},
		{final(fmt.Errorf("the original: %w", eventkey.ErrInvalidMessage)), false},
		{call(nil, &ConflictError{}), true},
		{call(&ConflictError{}, ErrNotSent), false},
		{call(ErrNoKey, permanent(ErrNotSent)), true},
	} {
		if got := IsPermanent(tt.err); got != tt.want {
			t.Errorf("IsPermanent(%v) = %v", tt.err, got)
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

func TestClassify(t *testing.T) {
	reply := func(text string) error { return fmt.Errorf("wrapped: %w", replyError(text)) }
	for _, tt := range []struct {
		err  error
		want server.Class
	}{
		{errStale, server.Refused}, {ErrLayout, server.Final}, {permanent(io.EOF), server.Final}, {final(io.EOF), server.Final}, {ErrClosed, server.Final}, {becauseOf(ErrNoKey), server.Final},
		{reply("READONLY You can't write"), server.Refused}, {reply("LOADING"), server.Refused}, {reply("TRYAGAIN x"), server.Refused},
		{reply("CLUSTERDOWN"), server.Refused}, {reply("MASTERDOWN"), server.Refused}, {reply("NOSCRIPT"), server.Refused},
		{reply("WRONGTYPE"), server.Final}, {reply("OOM command not allowed"), server.Refused}, {reply("MISCONF Redis is"), server.Refused}, {reply("BUSYGROUP Consumer Group name already exists"), server.Final}, {reply("NOPERM x"), server.Final},
		{io.EOF, server.Ambiguous}, {redis.ErrPoolTimeout, server.Refused}, {redis.ErrClosed, server.Final},
	} {
		if got := classify(tt.err); got != tt.want {
			t.Errorf("classify(%v) = %v, want %v", tt.err, got, tt.want)
		}
	}
}

// replyError is an error reply of a server.
type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

var _ redis.Error = replyError("")
