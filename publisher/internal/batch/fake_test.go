package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var (
	errRefused = errors.New("refused")
	errStale   = errors.New("stale")
	errCut     = errors.New("connection cut")
	errFinal   = errors.New("final")
)

func classify(err error) Class {
	switch {
	case errors.Is(err, errStale):
		return Stale
	case errors.Is(err, errCut):
		return Ambiguous
	case errors.Is(err, errFinal):
		return Final
	}
	return Refused
}

// fake is a stream, its session and the observer of its queue, in a bubble of its own
// time.
type fake struct {
	t      *testing.T
	runner *Runner
	queue  *Queue
	window time.Duration
	begun  time.Time

	// ready and answer say what becomes of the nth set-up and append, from 1.
	ready  func(n int) error
	answer func(ctx context.Context, n int, items []*Item) ([]Outcome, error)

	mu       sync.Mutex
	readies  int
	appends  []try
	done     map[string]Result
	retries  []error
	panics   int
	outages  int
	recovers int
	onDone   func()
}

// try is one append: when, and of which items.
type try struct {
	at    time.Duration
	items []string
}

// inBubble runs a test with a fake whose appends add everything unless answer says
// otherwise.
func inBubble(t *testing.T, config Config, f func(t *testing.T, f *fake)) {
	synctest.Test(t, func(t *testing.T) {
		config.Classify = classify
		if config.RetryFor == 0 {
			config.RetryFor = 10 * time.Second
		}
		fk := &fake{t: t, runner: NewRunner(config), window: time.Hour, begun: time.Now(), done: make(map[string]Result)}
		fk.queue = NewQueue(fk.runner, fk, fk)
		f(t, fk)
		synctest.Wait()
		if !fk.queue.Idle() {
			t.Error("the queue is not idle at the end")
		}
		_ = fk.runner.Close()
	})
}

func (f *fake) Ready(context.Context) (Session, error) {
	f.mu.Lock()
	f.readies++
	n := f.readies
	f.mu.Unlock()
	if f.ready != nil {
		if err := f.ready(n); err != nil {
			return nil, err
		}
	}
	return f, nil
}

func (f *fake) Window() time.Duration { return f.window }
func (f *fake) Address(it *Item)      { it.ProducerID, it.Mode = "p/1", 1 }

func (f *fake) Append(ctx context.Context, items []*Item) ([]Outcome, error) {
	f.mu.Lock()
	this := try{at: time.Since(f.begun)}
	for _, it := range items {
		this.items = append(this.items, it.MessageUUID)
	}
	f.appends = append(f.appends, this)
	n := len(f.appends)
	f.mu.Unlock()
	if f.answer == nil {
		return added(items), nil
	}
	return f.answer(ctx, n, items)
}

// added are the outcomes of items that are all new.
func added(items []*Item) []Outcome {
	outcomes := make([]Outcome, len(items))
	for i, it := range items {
		outcomes[i] = Outcome{Known: true, Verdict: Added, EntryID: "entry of " + it.MessageUUID}
	}
	return outcomes
}

func (f *fake) Done(it *Item, r *Result) {
	f.mu.Lock()
	if _, ok := f.done[it.MessageUUID]; ok {
		f.t.Errorf("%s is done twice", it.MessageUUID)
	}
	f.done[it.MessageUUID] = *r
	onDone := f.onDone
	f.mu.Unlock()
	if onDone != nil {
		onDone()
	}
}

func (f *fake) count(n *int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	*n++
}

func (f *fake) Retry(_, _ int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.retries = append(f.retries, err)
}
func (f *fake) Panicked(error, []byte) { f.count(&f.panics) }
func (f *fake) Outage(error)           { f.count(&f.outages) }
func (f *fake) Recovered()             { f.count(&f.recovers) }

// tries is how often an item was appended.
func (f *fake) tries(uuid string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, try := range f.appends {
		for _, item := range try.items {
			if item == uuid {
				n++
			}
		}
	}
	return n
}

// result is what the observer received of an item.
func (f *fake) result(uuid string) (Result, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	r, ok := f.done[uuid]
	return r, ok
}

// send sends a call of items with these UUIDs and returns their results, when the senders
// are through with it as well: the caller is served before them.
func (f *fake) send(ctx context.Context, uuids ...string) []Result {
	defer synctest.Wait()
	return f.call(ctx, uuids...)
}

func (f *fake) call(ctx context.Context, uuids ...string) []Result {
	c := NewCall(len(uuids), time.Now())
	for i, uuid := range uuids {
		c.Items[i].MessageUUID, c.Items[i].Size = uuid, 100
	}
	if !f.runner.Begin() {
		f.t.Errorf("%v: the runner is closed", uuids)
		return nil
	}
	defer f.runner.End()
	results := make([]Result, len(uuids))
	f.queue.Send(ctx, c, func(i int, r Result) { results[i] = r })
	return results
}

// sending sends a call that can give up and returns at once.
func (f *fake) sending(ctx context.Context, uuids ...string) (results func() []Result) {
	done := make(chan []Result, 1)
	go func() { done <- f.call(ctx, uuids...) }()
	synctest.Wait()
	return func() []Result {
		defer synctest.Wait()
		return <-done
	}
}

// holdSenders has all senders busy until release is called.
func (f *fake) holdSenders() (release func()) {
	held := make(chan struct{})
	answer := f.answer
	f.answer = func(ctx context.Context, n int, items []*Item) ([]Outcome, error) {
		if n <= Senders {
			<-held
			return added(items), nil
		}
		if answer != nil {
			return answer(ctx, n, items)
		}
		return added(items), nil
	}
	for n := range Senders {
		f.sending(f.t.Context(), fmt.Sprintf("held %d", n))
	}
	return sync.OnceFunc(func() { close(held) })
}

func check(t *testing.T, what string, r Result, verdict Verdict, errs ...error) {
	t.Helper()
	if r.Verdict != verdict || (r.Err == nil) != (len(errs) == 0) {
		t.Errorf("%s: verdict %v with %v, want %v with %v", what, r.Verdict, r.Err, verdict, errs)
	}
	for _, err := range errs {
		if !errors.Is(r.Err, err) {
			t.Errorf("%s: %v, want %v", what, r.Err, err)
		}
	}
}
