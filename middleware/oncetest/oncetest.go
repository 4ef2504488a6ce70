// Package oncetest runs a handler of yours under the faults that package middleware is
// for, in process and with the memory store, and reports what happened:
//
//	func TestCharge(t *testing.T) {
//		oncetest.Check(t, oncetest.Config{
//			Handler: charge,
//			Message: func() *message.Message { return newPayment("pay:1001") },
//		})
//	}
//
// It finds handlers that fail when their event comes again, that return something else
// in a second run, and that go on after their context has ended.
package oncetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/onceward/watermill-idempotent/dedupe"
	"github.com/onceward/watermill-idempotent/eventkey"
	"github.com/onceward/watermill-idempotent/middleware"
)

// Config says what to run.
type Config struct {
	// Handler is yours, not wrapped; required. For one that returns no messages see
	// [Consumer].
	Handler message.HandlerFunc
	// Message makes one delivery of the event, the same event each time; required.
	Message func() *message.Message
	// Key and Fingerprint are those of your middleware.Config.
	Key         eventkey.Source
	Fingerprint eventkey.Fingerprint
	// Topic, HandlerName and PublishTopic are what the Router gets; any will do.
	Topic, HandlerName, PublishTopic string
	// Timeout bounds each run of the handler; 0 means 10 s.
	Timeout time.Duration
}

// Consumer makes a HandlerFunc of a handler that returns no messages.
func Consumer(fn message.NoPublishHandlerFunc) message.HandlerFunc {
	return func(msg *message.Message) ([]*message.Message, error) { return nil, fn(msg) }
}

// Fault is what goes wrong.
type Fault string

const (
	// Duplicates means that the event comes three times, one after the other, and then twice at
	// the same time in two processes.
	Duplicates Fault = "duplicates"
	// CrashBeforeAck means that the process dies after the returned messages were published and
	// before the event is acknowledged. It comes again, in another process.
	CrashBeforeAck Fault = "crash before the ack"
	// PublishFails means that the broker refuses the returned messages twice.
	PublishFails Fault = "publish fails"
	// LeaseLost means that the process loses its claim while the handler runs, and the event
	// comes again in another process. What the first run did besides can't be taken
	// back; that is where a leased store ends, and a transactional one goes on.
	LeaseLost Fault = "lease lost"
)

// Faults are all of them.
func Faults() []Fault { return []Fault{Duplicates, CrashBeforeAck, PublishFails, LeaseLost} }

// Report is what happened.
type Report struct {
	Fault Fault
	// Runs is how often the handler was called, Succeeded how often it returned no
	// error.
	Runs, Succeeded int
	// Acked and Nacked count deliveries.
	Acked, Nacked int
	// Published are the returned messages, each once by its key, as our publisher
	// appends them; Publishes counts the messages given to the publisher.
	Published []*message.Message
	Publishes int
	// Skipped counts deliveries that were handled before, Refused results that came
	// after the claim was lost.
	Skipped, Refused int
	// Returned has, for each run that succeeded, the messages that it returned.
	Returned [][]*message.Message
	// IgnoresContext: the handler did not return within a second after its context
	// had ended (LeaseLost). It would run on beside another.
	IgnoresContext bool
	// Errs are what the handler, or the middleware, returned.
	Errs []error
}

// String is for logs.
func (r Report) String() string {
	return fmt.Sprintf("%s: %d runs, %d succeeded, %d skipped, %d refused; %d deliveries acked, %d nacked; %d messages published, %d different",
		r.Fault, r.Runs, r.Succeeded, r.Skipped, r.Refused, r.Acked, r.Nacked, r.Publishes, len(r.Published))
}

// Check runs the handler under all faults, each as a test, and fails where the handler
// does not do its part.
func Check(t *testing.T, cfg Config) {
	t.Helper()
	for _, f := range Faults() {
		t.Run(string(f), func(t *testing.T) {
			t.Helper()
			r, err := Run(t.Context(), cfg, f)
			if err != nil {
				t.Fatal(err)
			}
			t.Log(r)
			for _, complaint := range r.Complaints() {
				t.Error(complaint)
			}
		})
	}
}

// Complaints are what is wrong with the handler, by what happened. A handler that fails
// on its own account is no case for this package: every fault needs its success.
func (r Report) Complaints() (all []string) {
	complain := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	want := 1
	if r.Fault == LeaseLost {
		want = 2
	}
	if r.Succeeded == 0 {
		complain("the handler never succeeded: %v", errors.Join(r.Errs...))
		return all
	}
	if r.Fault != LeaseLost && r.Runs != want {
		complain("the handler ran %d times, and had to run once", r.Runs)
	}
	if r.Fault == LeaseLost && r.Runs < want {
		complain("the handler ran %d times, and had to run again after it lost its claim", r.Runs)
	}
	for i, later := range r.Returned[1:] {
		if diff := differ(r.Returned[0], later); diff != "" {
			complain("run %d returned something else than run 1: %s; what is published must be the same, or have keys of its own", i+2, diff)
		}
	}
	if last := r.Returned[len(r.Returned)-1]; len(r.Published) != len(last) {
		complain("%d different messages were published, the handler returned %d", len(r.Published), len(last))
	}
	if r.IgnoresContext {
		complain("the handler goes on after its context has ended: it would run beside the one that took over. Pass msg.Context() on")
	}
	return all
}

func differ(a, b []*message.Message) string {
	if len(a) != len(b) {
		return fmt.Sprintf("%d messages, and %d", len(a), len(b))
	}
	for i := range a {
		if string(a[i].Payload) != string(b[i].Payload) {
			return fmt.Sprintf("message %d is %q, and %q", i, a[i].Payload, b[i].Payload)
		}
	}
	return ""
}

func (c Config) resolve() (Config, error) {
	if c.Handler == nil || c.Message == nil {
		return c, errors.New("oncetest: Config.Handler and Config.Message are required")
	}
	for field, def := range map[*string]string{&c.Topic: "events", &c.HandlerName: "handler", &c.PublishTopic: "produced"} {
		if *field == "" {
			*field = def
		}
	}
	if c.Timeout < 0 {
		return c, fmt.Errorf("oncetest: Config.Timeout %v is negative", c.Timeout)
	}
	if c.Timeout == 0 {
		c.Timeout = 10 * time.Second
	}
	return c, nil
}

// Run runs the handler under one fault.
func Run(ctx context.Context, cfg Config, fault Fault) (Report, error) {
	cfg, err := cfg.resolve()
	if err != nil {
		return Report{}, err
	}
	store, err := dedupe.NewMemory(dedupe.MemoryConfig{})
	if err != nil {
		return Report{}, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &world{cfg: cfg, fault: fault, store: store, report: Report{Fault: fault}, keys: make(map[string]bool)}
	err = w.play(ctx)
	cancel()
	w.wg.Wait()
	_ = store.Close() // a memory store has nothing to say
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.report, err
}

// world is what the processes of one run share.
type world struct {
	cfg   Config
	fault Fault
	store *dedupe.Memory
	wg    sync.WaitGroup

	mu     sync.Mutex
	report Report
	keys   map[string]bool
	// failing publishes that are left: before it goes through, or after.
	failBefore, failAfter int
}

func (w *world) note(f func(*Report)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f(&w.report)
}

// Publish and Close make the world the publisher of its processes.
func (w *world) Publish(_ string, msgs ...*message.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.failBefore > 0 {
		w.failBefore--
		return errors.New("oncetest: the broker refuses")
	}
	for _, msg := range msgs {
		w.report.Publishes++
		key := msg.Metadata.Get(eventkey.MetadataKey)
		if key == "" {
			key = msg.Metadata.Get(eventkey.MetadataChildKey)
		}
		if !w.keys[key] {
			w.keys[key] = true
			w.report.Published = append(w.report.Published, msg)
		}
	}
	if w.failAfter > 0 {
		w.failAfter--
		return errors.New("oncetest: the process dies here")
	}
	return nil
}

func (w *world) Close() error { return nil }

var _ message.Publisher = (*world)(nil)

func (w *world) hooks() middleware.Hooks {
	return middleware.Hooks{
		OnSkipped:   func(middleware.Event) { w.note(func(r *Report) { r.Skipped++ }) },
		OnLeaseLost: func(middleware.Event) { w.note(func(r *Report) { r.Refused++ }) },
	}
}
