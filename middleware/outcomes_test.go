package middleware_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/internal/delivery"
	"github.com/onceward/watermill-idempotent/internal/rig"
	"github.com/onceward/watermill-idempotent/middleware"
)

// faultStore answers claims by an error, or by a state of its own, or its steps fail.
type faultStore struct {
	dedupe.Store
	claim            error
	state            dedupe.State
	outputs          [][]byte
	commit, rollback error
}

func (s *faultStore) Claim(ctx context.Context, k dedupe.Key, o dedupe.ClaimOptions) (dedupe.Claim, error) {
	if s.claim != nil {
		return nil, s.claim
	}
	c, err := s.Store.Claim(ctx, k, o)
	return faultClaim{c, s}, err
}

type faultClaim struct {
	dedupe.Claim
	store *faultStore
}

func (c faultClaim) State() dedupe.State {
	if c.store.state != 0 {
		return c.store.state
	}
	return c.Claim.State()
}

func (c faultClaim) Outputs() [][]byte {
	if c.store.outputs != nil {
		return c.store.outputs
	}
	return c.Claim.Outputs()
}

func (c faultClaim) Commit(ctx context.Context, outputs [][]byte) error {
	if c.store.commit != nil {
		return c.store.commit
	}
	return c.Claim.Commit(ctx, outputs)
}

func (c faultClaim) Rollback(ctx context.Context) error {
	return errors.Join(c.store.rollback, c.Claim.Rollback(ctx))
}

// Whatever becomes of a message, exactly one hook receives it, and what is logged at ERROR has
// an error.
func TestEachOutcomeIsToldOnce(t *testing.T) {
	ok := func(*message.Message) ([]*message.Message, error) { return nil, nil }
	fails := func(err error) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) { return nil, err }
	}
	returns := func(msgs ...*message.Message) message.HandlerFunc {
		return func(*message.Message) ([]*message.Message, error) { return msgs, nil }
	}
	type outcome struct {
		want   string
		h      message.HandlerFunc
		store  faultStore
		cfg    rig.Change
		before bool // the event was handled before
		msg    func(*message.Message)
		err    error // of the event that is reported
		around []message.HandlerMiddleware
	}
	noKey := func(msg *message.Message) { delete(msg.Metadata, eventkey.MetadataKey) }
	cancelled := func(msg *message.Message) {
		ctx, cancel := context.WithCancel(msg.Context())
		cancel()
		msg.SetContext(ctx)
	}
	for name, o := range map[string]outcome{
		"handled":                  {want: "handled", h: ok},
		"handled, with outputs":    {want: "handled", h: returns(rig.NewMessage("", "out"))},
		"skipped":                  {want: "skipped", h: ok, before: true},
		"passed":                   {want: "passed", h: ok, msg: noKey, cfg: func(c *middleware.Config) { c.PassWithoutKey = true }},
		"no key":                   {want: "refused", h: ok, msg: noKey, err: eventkey.ErrNoKey},
		"key source panics":        {want: "refused", h: ok, msg: noKey, cfg: func(c *middleware.Config) { c.Key = panicking }},
		"fingerprint panics":       {want: "refused", h: ok, cfg: func(c *middleware.Config) { c.Fingerprint = panickingPrint }},
		"key is no UTF-8":          {want: "refused", h: ok, msg: func(m *message.Message) { m.Metadata.Set(eventkey.MetadataKey, "\xff") }},
		"invalid":                  {want: "refused", h: ok, store: faultStore{claim: dedupe.ErrInvalid}, err: dedupe.ErrInvalid},
		"corrupt":                  {want: "refused", h: ok, store: faultStore{claim: dedupe.ErrCorrupt}, err: dedupe.ErrCorrupt},
		"state that nobody knows":  {want: "refused", h: ok, store: faultStore{state: 77}},
		"outputs can't be decoded": {want: "refused", h: ok, before: true, store: faultStore{outputs: [][]byte{{0xff}}}, err: dedupe.ErrCorrupt},
		"conflict":                 {want: "conflict", h: ok, before: true, msg: func(m *message.Message) { m.Payload = []byte("other") }, err: dedupe.ErrConflict},
		"in progress":              {want: "delayed", h: ok, store: faultStore{state: dedupe.StateInProgress}, err: dedupe.ErrRetryLater},
		"store is away":            {want: "delayed", h: ok, store: faultStore{claim: errors.New("connection refused")}, err: dedupe.ErrRetryLater},
		"store refuses claims":     {want: "delayed", h: ok, store: faultStore{claim: dedupe.ErrRefused}, err: dedupe.ErrRetryLater},
		"store is closed":          {want: "delayed", h: ok, store: faultStore{claim: dedupe.ErrClosed}, err: dedupe.ErrRetryLater},
		"shutdown before the run":  {want: "delayed", h: ok, msg: cancelled, err: context.Canceled},
		"no namespace":             {want: "delayed", h: ok, cfg: withoutNamespace, err: middleware.ErrNoNamespace},
		"fails":                    {want: "failed", h: fails(errors.New("no funds"))},
		"panics":                   {want: "failed", h: func(*message.Message) ([]*message.Message, error) { panic("boom") }, around: []message.HandlerMiddleware{recoverer}},
		"returns a nil message":    {want: "failed", h: returns(nil)},
		"says retry later":         {want: "delayed", h: fails(dedupe.ErrRetryLater), err: dedupe.ErrRetryLater},
		"nacks":                    {want: "delayed", h: func(m *message.Message) ([]*message.Message, error) { m.Nack(); return nil, nil }, err: dedupe.ErrRetryLater},
		"poisons inside":           {want: "failed", h: poisonQueueMarks(fails(errors.New("no funds")))},
		"delays": {want: "delayed", err: dedupe.ErrRetryLater, h: func(m *message.Message) ([]*message.Message, error) {
			delivery.From(m.Context()).Delay(time.Minute)
			return nil, dedupe.ErrRetryLater
		}},
		"rejects": {want: "delayed", err: dedupe.ErrRetryLater, h: func(m *message.Message) ([]*message.Message, error) {
			delivery.From(m.Context()).Reject("not ours", nil)
			return nil, nil
		}},
		"outputs too large":       {want: "failed", h: returns(rig.NewMessage("", "large")), cfg: func(c *middleware.Config) { c.MaxOutputBytes = 1 }, err: middleware.ErrOutputsTooLarge},
		"record too large":        {want: "failed", h: ok, store: faultStore{commit: dedupe.ErrTooLarge}, err: middleware.ErrOutputsTooLarge},
		"record refused":          {want: "failed", h: ok, store: faultStore{commit: dedupe.ErrRefused}, err: dedupe.ErrRefused},
		"transaction aborted":     {want: "failed", h: ok, store: faultStore{commit: dedupe.ErrAborted}, err: dedupe.ErrAborted},
		"record without answer":   {want: "delayed", h: ok, store: faultStore{commit: errors.New("i/o timeout")}, err: dedupe.ErrRetryLater},
		"lease lost":              {want: "lease lost", h: ok, store: faultStore{commit: dedupe.ErrLeaseLost}, err: dedupe.ErrLeaseLost},
		"claim can't be given up": {want: "failed", h: fails(errors.New("no funds")), store: faultStore{rollback: dedupe.ErrRefused}},
	} {
		t.Run(name, func(t *testing.T) {
			seen, logger := &rig.Log{}, watermill.NewCaptureLogger()
			memory := rig.NewStore(t)
			o.store.Store = memory
			if o.before {
				rig.New(t, rig.NewOnce(t, memory).Handler(ok)).WantAcked(rig.NewMessage("pay:1", "{}"))
			}
			changes := []rig.Change{seen.Into}
			if o.cfg != nil {
				changes = append(changes, o.cfg)
			}
			r := rig.New(t, rig.NewLogging(t, logger, &o.store, changes...).Handler(o.h), o.around...)
			msg := (&fakeDelivery{}).on(rig.NewMessage("pay:1", "{}"))
			if o.msg != nil {
				o.msg(msg)
			}
			r.Deliver(msg)
			if got := seen.Outcomes(); !slices.Equal(got, []string{o.want}) {
				t.Errorf("hooks got %v, want %q alone", got, o.want)
			}
			ev := seen.Get(o.want)
			if o.err != nil && !errors.Is(ev.Err, o.err) {
				t.Errorf("hooks got %v, want %v", ev.Err, o.err)
			}
			if isGood := slices.Contains([]string{"handled", "skipped", "passed"}, o.want); isGood != (ev.Err == nil) {
				t.Errorf("hooks got %v", ev.Err)
			}
			if lines := errorLines(logger); countOf(lines, "no error:") != 0 {
				t.Errorf("logged %q", lines)
			}
		})
	}
	t.Run("nested", func(t *testing.T) {
		seen, msg := &rig.Log{}, rig.NewMessage("pay:1", "{}")
		once := rig.NewOnce(t, rig.NewStore(t), seen.Into)
		_, err := once.Run(t.Context(), msg, "h", func(ctx context.Context) ([]*message.Message, error) {
			if _, err := once.Run(ctx, msg, "h", nil); !errors.Is(err, middleware.ErrNested) {
				t.Errorf("error %v, want ErrNested", err)
			}
			return nil, nil
		})
		if got := seen.Outcomes(); err != nil || !slices.Equal(got, []string{"refused", "handled"}) {
			t.Errorf("error %v, hooks got %v, want one for each of the two", err, got)
		}
	})
	t.Run("no handler", func(t *testing.T) {
		seen := &rig.Log{}
		_ = rig.NewOnce(t, rig.NewStore(t), seen.Into).Consumer(func(*message.Message) error { return nil })(rig.NewMessage("k", "{}"))
		if got := seen.Outcomes(); !slices.Equal(got, []string{"refused"}) || !errors.Is(seen.Get("refused").Err, middleware.ErrNoHandler) {
			t.Errorf("hooks got %v", got)
		}
	})
	t.Run("outputs of a consumer", func(t *testing.T) {
		seen, store := &rig.Log{}, rig.NewStore(t)
		first := rig.New(t, rig.NewOnce(t, store).Handler(returns(rig.NewMessage("", "out"))))
		first.Out.Fail = 1
		first.WantNacked(rig.NewMessage("pay:1", "{}"))
		consumer := rig.NewOnce(t, store, seen.Into).Consumer(func(*message.Message) error { return nil })
		rig.New(t, func(msg *message.Message) ([]*message.Message, error) { return nil, consumer(msg) }).WantNacked(rig.NewMessage("pay:1", "{}"))
		if got := seen.Outcomes(); !slices.Equal(got, []string{"refused"}) || !errors.Is(seen.Get("refused").Err, middleware.ErrUnexpectedOutputs) {
			t.Errorf("hooks got %v", got)
		}
	})
}

// poisonQueueMarks is a PoisonQueue inside of ours.
func poisonQueueMarks(h message.HandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) {
		if _, err := h(msg); err != nil {
			for _, mark := range poisonMarks {
				msg.Metadata.Set(mark, "x")
			}
		}
		return nil, nil
	}
}
