package middleware_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// groupStore remembers who has handled an event, as stores do.
type groupStore struct {
	dedupe.Store
	mu sync.Mutex
	by map[dedupe.Key]string
}

func (s *groupStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	c, err := s.Store.Claim(ctx, k, o)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.State() == dedupe.StateClaimed {
		s.by[k] = o.Group
	}
	return groupClaim{c, s.by[k]}, nil
}

type groupClaim struct {
	dedupe.Claim
	by string
}

func (c groupClaim) Info() dedupe.ClaimInfo {
	info := c.Claim.Info()
	info.Group = c.by
	return info
}

func withoutNamespace(c *middleware.Config) { c.Namespace = "" }

// readBy is a message as our subscriber hands it out for a group.
func readBy(group, key string) *message.Message {
	return (&fakeDelivery{info: delivery.Info{Group: group}}).on(rig.NewMessage(key, "{}"))
}

// errorLines are what was logged at ERROR, with the errors.
func errorLines(l *watermill.CaptureLoggerAdapter) (lines []string) {
	for _, m := range l.Captured()[watermill.ErrorLogLevel] {
		if m.Err == nil {
			lines = append(lines, "no error: "+m.Msg)
			continue
		}
		lines = append(lines, m.Msg+": "+m.Err.Error())
	}
	return lines
}

func countOf(lines []string, text string) (n int) {
	for _, l := range lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// Two services with equal handler names and no namespace lose nothing to each other.
func TestTwoGroupsWithoutANamespace(t *testing.T) {
	store, runs := rig.NewStore(t), map[string]int{}
	for _, group := range []string{"billing", "shipping"} {
		seen := &rig.Log{}
		r := rig.New(t, rig.NewOnce(t, store, withoutNamespace, seen.Into).Handler(func(*message.Message) ([]*message.Message, error) {
			runs[group]++
			return nil, nil
		}))
		for n := range 10 {
			for range 2 {
				r.WantAcked(readBy(group, fmt.Sprint("pay:", n)))
			}
		}
		if ev := seen.Get("handled"); ev.Namespace != group || ev.Group != group || seen.Count("skipped") != 10 {
			t.Errorf("hooks got %+v, %d skipped", ev, seen.Count("skipped"))
		}
	}
	if runs["billing"] != 10 || runs["shipping"] != 10 {
		t.Errorf("handled %v, want 10 and 10", runs)
	}
}

// wantWaiting delivers messages that are fine, for a service that is not set up right:
// nothing is acknowledged, poisoned, counted or repeated on the spot, and all of it is reported.
func wantWaiting(t *testing.T, store dedupe.Store, next func() (*message.Message, *fakeDelivery), want error, hint string, changes ...rig.Change) {
	t.Helper()
	logger, poison, seen, runs := watermill.NewCaptureLogger(), &rig.Published{}, &rig.Log{}, 0
	once := rig.NewLogging(t, logger, store, append(changes, seen.Into)...)
	r := rig.New(t, once.Handler(counting(&runs)), chain(poison)...)
	for range 3 {
		msg, d := next()
		r.WantNacked(msg)
		if r.Err != nil {
			t.Errorf("it travels as an error, which a PoisonQueue would acknowledge: %v", r.Err)
		}
		if d != nil && (len(d.delays) != 1 || len(d.failed)+len(d.rejected) != 0) {
			t.Errorf("delivery %+v, want one delay", d)
		}
	}
	msg, _ := next()
	_, err := once.Run(msg.Context(), msg, rig.HandlerName, func(context.Context) ([]*message.Message, error) { runs++; return nil, nil })
	if !errors.Is(err, want) || !errors.Is(err, dedupe.ErrRetryLater) {
		t.Errorf("error of Run %v, want %v", err, want)
	}
	if runs != 0 || len(poison.Messages()) != 0 {
		t.Errorf("%d runs, %d poisoned", runs, len(poison.Messages()))
	}
	if err := once.Health(); !errors.Is(err, want) {
		t.Errorf("health %v, want %v", err, want)
	}
	if lines := errorLines(logger); countOf(lines, hint) != 1 || len(lines) != 1 {
		t.Errorf("logged %q, want one line with %q", lines, hint)
	}
	if got := seen.Outcomes(); !slices.Equal(got, []string{"delayed", "delayed", "delayed", "delayed"}) || !errors.Is(seen.Get("delayed").Err, want) {
		t.Errorf("hooks got %v, %v", got, seen.Get("delayed").Err)
	}
}

func counting(runs *int) message.HandlerFunc {
	return func(*message.Message) ([]*message.Message, error) { *runs++; return nil, nil }
}

func TestNeitherNamespaceNorGroup(t *testing.T) {
	t.Run("another subscriber", func(t *testing.T) {
		wantWaiting(t, rig.NewStore(t), func() (*message.Message, *fakeDelivery) { return rig.NewMessage("pay:1", "{}"), nil },
			middleware.ErrNoNamespace, "Config.Namespace", withoutNamespace)
	})
	t.Run("fan-out", func(t *testing.T) {
		wantWaiting(t, rig.NewStore(t), fanOut, middleware.ErrNoNamespace, "Config.Namespace", withoutNamespace)
	})
}

func fanOut() (*message.Message, *fakeDelivery) {
	d := &fakeDelivery{info: delivery.Info{FanOut: true}}
	return d.on(rig.NewMessage("pay:1", "{}")), d
}

// sharedStore is one that processes share, to all that can be seen.
type sharedStore struct{ dedupe.Store }

// wrapped is a store around another one, as one that measures it.
type wrapped struct{ dedupe.Store }

func (w wrapped) Unwrap() dedupe.Store { return w.Store }

func TestFanOutOnASharedStore(t *testing.T) {
	t.Run("a store of its own, wrapped", func(t *testing.T) {
		runs := 0
		msg, _ := fanOut()
		rig.New(t, rig.NewOnce(t, wrapped{wrapped{rig.NewStore(t)}}).Handler(counting(&runs))).WantAcked(msg)
		if runs != 1 {
			t.Errorf("%d runs", runs)
		}
	})
	t.Run("a shared store, wrapped", func(t *testing.T) {
		wantWaiting(t, wrapped{sharedStore{rig.NewStore(t)}}, fanOut, middleware.ErrSharedFanOut, "Config.ShareAcrossFanOut")
	})
	t.Run("refused", func(t *testing.T) {
		wantWaiting(t, sharedStore{rig.NewStore(t)}, fanOut, middleware.ErrSharedFanOut, "Config.ShareAcrossFanOut")
	})
	t.Run("asked for", func(t *testing.T) {
		store, runs := sharedStore{rig.NewStore(t)}, 0
		for range 2 {
			once := rig.NewOnce(t, store, func(c *middleware.Config) { c.ShareAcrossFanOut = true })
			msg, _ := fanOut()
			rig.New(t, once.Handler(counting(&runs))).WantAcked(msg)
		}
		if runs != 1 {
			t.Errorf("%d runs, want one of all instances", runs)
		}
	})
	t.Run("a store of its own", func(t *testing.T) {
		runs := 0
		for range 2 {
			msg, _ := fanOut()
			rig.New(t, rig.NewOnce(t, rig.NewStore(t)).Handler(counting(&runs))).WantAcked(msg)
		}
		if runs != 2 {
			t.Errorf("%d runs, want one in each instance", runs)
		}
	})
}

// One namespace in two services: what the other has handled is skipped, and no longer in
// silence.
func TestSkipOfWhatAnotherGroupHandled(t *testing.T) {
	store := &groupStore{Store: rig.NewStore(t), by: map[dedupe.Key]string{}}
	runs := 0
	first := rig.New(t, rig.NewOnce(t, store).Handler(counting(&runs)))
	for n := range 10 {
		first.WantAcked(readBy("billing", fmt.Sprint("pay:", n)))
	}
	logger, seen := watermill.NewCaptureLogger(), &rig.Log{}
	second := rig.New(t, rig.NewLogging(t, logger, store, seen.Into).Handler(counting(&runs)))
	for n := range 10 {
		second.WantAcked(readBy("shipping", fmt.Sprint("pay:", n)))
	}
	if runs != 10 || seen.Count("foreign skip") != 10 || seen.Count("skipped") != 0 {
		t.Errorf("%d runs, hooks got %v", runs, seen.Events)
	}
	if ev := seen.Get("foreign skip"); ev.Group != "shipping" || ev.HandledBy != "billing" || ev.CommittedAt.IsZero() {
		t.Errorf("hooks got %+v", ev)
	}
	if lines := errorLines(logger); len(lines) != 1 || countOf(lines, `"billing"`) != 1 || countOf(lines, "Namespace of its own") != 1 {
		t.Errorf("logged %q, want one line for the pair", lines)
	}
	second.WantAcked(readBy("mail", "pay:1")) // another pair
	second.WantAcked(readBy("billing", "pay:1"))
	second.WantAcked(rig.NewMessage("pay:1", "{}")) // of a group that nobody knows
	if lines := errorLines(logger); len(lines) != 2 || countOf(lines, `"billing"`) != 2 {
		t.Errorf("logged %q, want a line for each pair", lines)
	}
	if seen.Count("foreign skip") != 11 || seen.Count("skipped") != 2 {
		t.Errorf("hooks got %v", seen.Events)
	}
}

// After Close nothing is handled any more, and nothing is acknowledged.
func TestHandledAfterClose(t *testing.T) {
	store, logger, runs := rig.NewStore(t), watermill.NewCaptureLogger(), 0
	once := rig.NewLogging(t, logger, store)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := once.Close(ctx); err != nil {
		t.Fatal(err)
	}
	r := rig.New(t, once.Handler(counting(&runs)))
	r.WantNacked(rig.NewMessage("pay:1", "{}"))
	msg := rig.NewMessage("pay:1", "{}")
	_, err := once.Run(t.Context(), msg, "h", func(context.Context) ([]*message.Message, error) { runs++; return nil, nil })
	if !errors.Is(err, middleware.ErrClosed) || runs != 0 {
		t.Errorf("error %v, %d runs, want ErrClosed", err, runs)
	}
	if lines := errorLines(logger); countOf(lines, "close the Router first") != len(lines) || len(lines) == 0 {
		t.Errorf("logged %q", lines)
	}
}
