package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// What keeps events waiting is named, logged again every 30 s while it lasts, and Health
// is bad until it is over.
func TestStoreFaultIsNamedAndRepeated(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		hint string
	}{
		"unavailable": {errors.New("connection refused"), "unavailable"},
		"no table":    {fmt.Errorf("%w: table idempotency is missing: run Migrate", dedupe.ErrRefused), "an operator has to mend that"},
		"closed":      {dedupe.ErrClosed, "close the Router first"},
		"full":        {dedupe.ErrFull, "give it more room"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				logger, store := watermill.NewCaptureLogger(), &faultStore{Store: rig.NewStore(t), claim: tt.err}
				once := rig.NewLogging(t, logger, store, func(c *middleware.Config) { c.Delay = 2 * time.Second })
				handle := func() error {
					msg := rig.NewMessage("pay:1", "{}")
					_, err := once.Run(t.Context(), msg, "h", func(context.Context) ([]*message.Message, error) { return nil, nil })
					return err
				}
				began := time.Now()
				for time.Since(began) < 105*time.Second { // each line may be late by a delay
					if err := handle(); !errors.Is(err, dedupe.ErrRetryLater) || !errors.Is(err, tt.err) {
						t.Fatalf("error %v", err)
					}
				}
				if lines := errorLines(logger); len(lines) != 4 || countOf(lines, tt.hint) != 4 {
					t.Fatalf("logged %q in 105 s, want 4 lines", lines)
				}
				last := logger.Captured()[watermill.ErrorLogLevel][3]
				if last.Fields["since"] != began.Format(time.RFC3339) || last.Fields["handler"] != "h" || last.Fields["key"] != "pay:1" {
					t.Errorf("fields %v", last.Fields)
				}
				if err := once.Health(); !errors.Is(err, tt.err) || !strings.Contains(err.Error(), began.Format(time.RFC3339)) {
					t.Errorf("health %v, want what is wrong and since when", err)
				}
				store.claim = nil
				if err := handle(); err != nil {
					t.Fatal(err)
				}
				if err := once.Health(); err != nil {
					t.Errorf("health %v after it was over", err)
				}
				if n := len(logger.Captured()[watermill.InfoLogLevel]); n != 1 {
					t.Errorf("%d lines at INFO, want one that it is over", n)
				}
			})
		})
	}
}

// A fault that no message meets any more does not keep a readiness probe down for ever.
func TestHealthForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faultStore{Store: rig.NewStore(t), claim: errors.New("connection refused")}
		once := rig.NewOnce(t, store, func(c *middleware.Config) { c.Delay = time.Second })
		msg := rig.NewMessage("pay:1", "{}")
		_, _ = once.Run(t.Context(), msg, "h", func(context.Context) ([]*message.Message, error) { return nil, nil })
		if once.Health() == nil {
			t.Error("healthy in an outage")
		}
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the bubble's clock
		if err := once.Health(); err != nil {
			t.Errorf("health %v, two minutes after the last message", err)
		}
	})
}

// The right to record is missing, the right to claim is there: the handler runs, and
// Health must not call that well in between.
func TestRecordRefusedIsUnhealthy(t *testing.T) {
	logger, store := watermill.NewCaptureLogger(), &faultStore{Store: rig.NewStore(t), commit: fmt.Errorf("%w: NOPERM", dedupe.ErrRefused)}
	once := rig.NewLogging(t, logger, store)
	r := rig.New(t, once.Handler(func(*message.Message) ([]*message.Message, error) { return nil, nil }))
	for n := range 3 {
		r.WantNacked(rig.NewMessage(fmt.Sprint("pay:", n), "{}"))
	}
	if err := once.Health(); !errors.Is(err, dedupe.ErrRefused) {
		t.Errorf("health %v", err)
	}
	if lines := errorLines(logger); len(lines) != 1 || countOf(lines, "a handler has run") != 1 {
		t.Errorf("logged %q, want one line", lines)
	}
	store.commit = nil
	r.WantAcked(rig.NewMessage("pay:4", "{}"))
	if err := once.Health(); err != nil {
		t.Errorf("health %v", err)
	}
}

// The store refuses to give a claim up: what happens to its event is in the log.
func TestClaimThatCannotBeGivenUpIsLogged(t *testing.T) {
	logger, store := watermill.NewCaptureLogger(), &faultStore{Store: rig.NewStore(t), rollback: errors.New("MISCONF")}
	r := rig.New(t, rig.NewLogging(t, logger, store).Handler(func(*message.Message) ([]*message.Message, error) { return nil, errors.New("no funds") }))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	lines := logger.Captured()[watermill.ErrorLogLevel]
	if len(lines) != 1 || !strings.Contains(lines[0].Msg, "the event waits until the claim ends") || lines[0].Fields["key"] != "pay:1" || lines[0].Fields["lease"] != "30s" {
		t.Errorf("logged %+v", lines)
	}
}

// A handler runs for an entry that is older than the records are kept.
func TestEntryOlderThanRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		logger := watermill.NewCaptureLogger()
		once := rig.NewLogging(t, logger, rig.NewStore(t), func(c *middleware.Config) { c.Retention = time.Hour })
		handle := func(handler, key string, age time.Duration) {
			d := &fakeDelivery{info: delivery.Info{AddedAt: time.Now().Add(-age), Redelivered: true, EntryID: "1-0"}}
			msg := d.on(rig.NewMessage(key, "{}"))
			if _, err := once.Run(msg.Context(), msg, handler, func(context.Context) ([]*message.Message, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
		}
		want := func(n int) {
			t.Helper()
			if lines := errorLines(logger); len(lines) != n || countOf(lines, "make Retention longer") != n {
				t.Fatalf("logged %q, want %d", lines, n)
			}
		}
		handle("h", "pay:0", time.Minute)
		want(0)
		handle("h", "pay:1", 2*time.Hour)
		handle("h", "pay:1", 2*time.Hour) // skipped
		handle("h", "pay:2", 2*time.Hour)
		want(1)
		handle("other", "pay:2", 2*time.Hour)
		want(2)
		time.Sleep(31 * time.Second) //nolint:forbidigo // the bubble's clock
		handle("h", "pay:3", 2*time.Hour)
		want(3)
	})
}

func TestRetentionTooShortIsLogged(t *testing.T) {
	for retention, want := range map[time.Duration]int{5 * time.Second: 1, time.Hour: 0} {
		logger := watermill.NewCaptureLogger()
		once, err := middleware.New(middleware.Config{Store: rig.NewStore(t), Namespace: "n", Retention: retention}, logger)
		if err != nil {
			t.Fatal(err)
		}
		if lines := errorLines(logger); countOf(lines, "its record has run out") != want || len(lines) != want {
			t.Errorf("retention %v: logged %q", retention, lines)
		}
		_ = once.Close(t.Context())
	}
}

func TestShouldRetryShouldPoison(t *testing.T) {
	for _, tt := range []struct {
		err           error
		retry, poison bool
	}{
		{nil, false, false},
		{errors.New("no funds"), true, true},
		{context.DeadlineExceeded, true, true},
		{context.Canceled, false, false},
		{dedupe.ErrRetryLater, false, false},
		{dedupe.ErrRefused, false, false},
		{dedupe.ErrCorrupt, false, false},
		{dedupe.ErrConflict, false, true},
		{dedupe.ErrAborted, true, true},
		{eventkey.ErrNoKey, false, true},
		{middleware.ErrOutputsTooLarge, false, true},
		{middleware.ErrUnexpectedOutputs, false, false},
		{middleware.ErrNested, false, false},
		{middleware.ErrNoHandler, false, false},
	} {
		err := tt.err
		if err != nil {
			err = fmt.Errorf("handler h: %w", err)
		}
		if middleware.ShouldRetry(err) != tt.retry || middleware.ShouldPoison(err) != tt.poison {
			t.Errorf("%v: retry %v, poison %v", err, middleware.ShouldRetry(err), middleware.ShouldPoison(err))
		}
	}
}
